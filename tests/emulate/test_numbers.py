"""Reports of numbers: where an output is off, how, and who wrote it."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.emulate.numbers import differences
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays

RIGHT = np.random.default_rng(0).standard_normal((2, 3, 300, 64))


def told(change=np.copy, block_m=128):
    wrong = RIGHT.copy()
    change(wrong)
    return differences("o", wrong, (RIGHT, RIGHT), 1e-6, block_m)


def test_nothing_is_off():
    assert told() == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[1, 2, 64:128].__imul__(2), ("batch 1 of 2, head 2 of 3, rows 64-127 of 300, all 64 columns", "each about 2 times")),
        (lambda x: x[1, 2, 64:128].__imul__(2), ("query tile 0 of 128 rows", "warpgroup 1")),
        (lambda x: x[:, :, 128:256].__imul__(0), ("query tile 1 of 128 rows", "each is 0", "all 2 batches, all 3 heads")),
        (lambda x: x[0].__iadd__(0.25), ("batch 0 of 2, all 3 heads", "each about 0.25 more than it should be")),
        (lambda x: x[..., 48:].fill(np.nan), ("28800 of 115200 elements are off, 28800 of them NaN", "columns 48-63 of 64", "is nan, not")),
        (
            lambda x: x[0, 0, 5].put([3], np.inf),
            ("1 of 115200 elements are off, 1 infinite", "row 5 of 300, column 3 of 64"),
        ),
        (lambda x: x[:, :, :-8].__setitem__(..., RIGHT[:, :, 8:]), ("what belongs 8 rows further on", "rows 0-291 of 300")),
        (lambda x: x[:, 1].__setitem__(..., RIGHT[:, 0]), ("head 1 of 3", "what belongs 1 head before")),
    ],
)
def test_what_is_off_and_how(change, said):
    report = told(change)
    assert all(part in report for part in said), report


def test_one_nan_is_not_hidden_by_an_error_of_another_element():
    def change(x):
        x[0, 0, 0, 0], x[1, 1, 1, 1] = np.nan, 1e9

    assert "2 of 115200 elements are off, 1 of them NaN, by up to 1e+09" in told(change)


def test_bounds_of_the_wrong_side_are_not_nan():
    low, high = np.full((1, 1, 4), -np.inf), np.array([[[-np.inf, 0.0, 1.0, 2.0]]])
    assert differences("lse", high, (low, high), 0.0) == ""


def test_who_wrote_an_element_last():
    spec = Spec(head_dim=64, dtype="float16", mask="causal")
    chosen = plan(spec, "sm_80")
    source = render(chosen)
    q, k, v = arrays(spec, 1, 2, 1, 70, 70)
    found = emulate(chosen, source, q, k, v)
    who = found.writer("o", (0, 69, 1, 5))
    line = int(who.split(":")[1].split(" ")[0])
    assert who.startswith("block ")
    assert " = " in source.text.splitlines()[line - 1]
    wrong = emulate(chosen, replace(source, text=source.text.replace("p.softmax_scale", "2 * p.softmax_scale")), q, k, v)
    report = differences("o", wrong["o"].swapaxes(1, 2), (found["o"].swapaxes(1, 2).astype(np.float64),) * 2, 1e-2)
    assert "all 2 heads" in report
