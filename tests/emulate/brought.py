"""Calls that are drawn and kernels with a planted fault, shared by tests of the warp that brings numbers of key tiles."""

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.emulate import EmulationFault, emulate
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import Source, render
from flashgen.spec import Spec
from tests.plan.agreement import judge_of

Fault = tuple[str, str, str | None]  # text, what stands there instead, and what the emulator says of it; None: the result is wrong

FAULTS: dict[str, Fault] = {  # of the warp, whatever it brings
    "the warp does not wait for a stage": (
        "      ptx::mbarrier_wait(shared + NUMBERS_EMPTY + BARRIER_BYTES * stage, parity);\n",
        "",
        "race|deadlock",
    ),
    "passed tiles keep their stage": ("      await_numbers();\n      pass_numbers();\n", "", "race|no end|deadlock|phase"),
    "lanes do not meet": (
        "      __syncwarp();\n      if (lane == 0) ptx::mbarrier_arrive(shared + NUMBERS_FULL",
        "      if (lane == 0) ptx::mbarrier_arrive(shared + NUMBERS_FULL",
        "race",
    ),
}


class Call:
    """A call of a spec by the plan of sm_90a, with arrays that are drawn."""

    def __init__(self, said: Mapping[str, object], lengths: tuple[int, int], *, kinds: Iterable[str] = (), seed: int = 0) -> None:
        self.spec = Spec(**{"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "lse"], **said})
        self.arrays = hostile.draw(self.spec, Sizes(2, *lengths, 4, 2), kinds, np.random.RandomState(seed))
        self.plan = plan(self.spec, "sm_90a")
        self.source = render(self.plan)

    def judge(self, source: Source | None = None) -> None:
        """Holds what the emulator computes to the reference."""
        q, k, v, values = self.arrays
        judge_of(self.spec, q, k, v, **values)(emulate(self.plan, source or self.source, q, k, v, values))

    def find(self, fault: Fault) -> None:
        """Holds that the emulator or the reference tells of a planted fault."""
        old, new, message = fault
        assert old in self.source.text
        whole = self.source
        broken = Source(whole.name, whole.text.replace(old, new), whole.arch, whole.entries, whole.options)
        with pytest.raises(EmulationFault, match=message) if message else pytest.raises(AssertionError):
            self.judge(broken)
