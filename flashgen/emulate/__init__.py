"""Runs the emitted CUDA on the CPU: all its threads, barriers and asynchronous copies, under a race checker.

>>> o, lse = emulate(plan, render(plan), q, k, v, seed=3)
"""

from flashgen.emulate.machine import HostKernel
from flashgen.emulate.report import EmulationFault
from flashgen.emulate.run import emulate
from flashgen.emulate.tensor_map import tensor_map
from flashgen.emulate.translate import MissingTwin

__all__ = ["EmulationFault", "HostKernel", "MissingTwin", "emulate", "tensor_map"]
