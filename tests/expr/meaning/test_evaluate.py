"""NumPy's values of expressions: their types and clamped reads."""

import numpy as np
import pytest

from flashgen.errors import Position
from flashgen.expr import evaluate, parse
from tests.expr.grammar import PARAMS, SCOPE, TENSORS

EXTENTS = {"b": 2, "hq": 4, "hk": 2, "q_len": 5, "kv_len": 6}


def read(text):
    return parse(text, SCOPE, Position("<score>", 1, 1, text))


def place(dtype=np.float64):
    """Values of every name for batch 1, query head 3: s [5, 6], some of it not finite."""
    rng = np.random.default_rng(7)
    draw = {
        "float32": lambda s: rng.standard_normal(s).astype(dtype),
        "int32": lambda s: rng.integers(0, 4, s),
        "bool": lambda s: rng.random(s) < 0.5,
    }
    values = {t.name: draw[t.dtype](tuple(EXTENTS.get(x, x) for x in t.shape)) for t in TENSORS}
    s = draw["float32"]((5, 6))
    s[0, :3] = np.inf, -np.inf, np.nan
    index = {"b": 1, "h": 3, "hk": 1, "q_idx": np.arange(5)[:, None], "kv_idx": np.arange(6)[None], "q_len": 5, "kv_len": 6}
    return {**values, **{p.name: p.default for p in PARAMS}, **index, "s": s}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_follow_the_arrays(dtype):
    assert evaluate(read("c * tanh(s / c) + kv_idx / 3"), place(dtype)).dtype == dtype
    assert evaluate(read("q_idx * 2 // n"), place(dtype)).dtype == np.int64


def test_reads_outside_a_tensor_are_clamped():
    values = {**place(), "table": np.arange(20.0).reshape(5, 4)}
    assert evaluate(read("table[n - 9, h + 5]"), values) == 3.0
    assert evaluate(read("table[n + 900, 0]"), values) == 16.0


def test_integers_round_down():
    assert evaluate(read("m // 3"), {"m": -2}) == -1
    assert evaluate(read("m % 3"), {"m": -2}) == 1


def test_a_tensor_without_elements_reads_as_0():
    """As of no key, whose condition the interpreter asks once a head."""
    found = evaluate(read("ids[b, 1] + kv_idx"), place() | {"ids": np.zeros((2, 0), np.int32), "b": 1, "kv_idx": np.arange(3)})
    assert found.tolist() == [0, 1, 2]
