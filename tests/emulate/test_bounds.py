"""The emulator holds a launch to its __launch_bounds__: false promises are planted in emitted texts."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.arch import by_name
from flashgen.emulate import EmulationFault, emulate
from flashgen.emulate.bounds import LaunchBounds
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec


@pytest.mark.parametrize(
    ("arch", "right", "wrong", "found"),
    [
        (
            "sm_90a",
            "__launch_bounds__(THREADS, 1)",
            "__launch_bounds__(THREADS - 128, 1)",
            r"with (384|512) threads, .* at most (256|384)\b",
        ),
        (
            "sm_90a",
            "__launch_bounds__(THREADS, 1)",
            "__launch_bounds__(THREADS, 2)",
            "promises 2 blocks at once, of .* bytes of shared memory",
        ),
        (
            "sm_80",
            "__launch_bounds__(THREADS, 2)",
            "__launch_bounds__(THREADS, 3)",
            "promises 3 blocks at once, of .* bytes of shared memory",
        ),
        ("sm_80", "__launch_bounds__(THREADS, 2)", "__launch_bounds__(WARPS)", "with 128 threads, .* at most 4"),
    ],
)
def test_planted(arch, right, wrong, found):
    chosen = plan(Spec(head_dim=128, dtype="float16", mask="causal"), arch)
    source = render(chosen)
    assert right in source.text
    x = np.zeros((1, 8, 1, 128), np.float16)
    with pytest.raises(EmulationFault, match=found):
        emulate(chosen, replace(source, text=source.text.replace(right, wrong)), x, x, x)


def test_what_a_multiprocessor_holds():
    LaunchBounds("f", 128, 2).judge(128, 81 << 10, by_name("sm_80"))
    LaunchBounds("f", 0, 1).judge(1024, 163 << 10, by_name("sm_80"))
    with pytest.raises(EmulationFault, match="of 84992 bytes of shared memory each; a multiprocessor of sm_80 has 167936"):
        LaunchBounds("f", 128, 2).judge(128, 82 << 10, by_name("sm_80"))
    with pytest.raises(EmulationFault, match="promises 4 blocks at once, of 512 threads each; a multiprocessor of sm_89 has 1536"):
        LaunchBounds("f", 512, 4).judge(512, 0, by_name("sm_89"))
