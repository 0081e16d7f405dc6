"""Measures attention on this machine's GPU: flashgen and every peer that is installed, in turns, checked, host time apart.

>>> from flashgen.arch import by_name
>>> from flashgen.bench import DeviceClock, grid, implementations, run
>>> results = run(grid(), implementations(by_name("sm_90a")), DeviceClock(), cupy)
"""

from flashgen.bench.cases import Case, case, grid
from flashgen.bench.peers import Implementation, implementations
from flashgen.bench.run import Results, run
from flashgen.bench.timing import Timing, measure
from flashgen.runtime.clock import DeviceClock

__all__ = ["Case", "DeviceClock", "Implementation", "Results", "Timing", "case", "grid", "implementations", "measure", "run"]
