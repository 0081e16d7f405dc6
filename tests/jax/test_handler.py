"""The handler of XLA on a GPU: what it launches is what a call on arrays at the same addresses launches.

Arrays at made-up addresses stand for XLA's memory, and instead of a launch its record, grids and stream are kept.
"""

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

from flashgen.attend import Sketch, attention_of
from flashgen.jax import targets
from flashgen.jax.text import Text, told
from flashgen.runtime.lent import Lent
from tests.runtime.launches import launches
from tests.runtime.test_arrays import on_gpu

__all__ = ["launches"]
ALIBI = Sketch(mask="causal", score="s + slopes[h] * (kv_idx - q_idx)", scale=None, layout="bshd", outputs=("o",))
SHAPES = {"q": (2, 700, 4, 64), "slopes": (4,), "v": (2, 700, 2, 64), "k": (2, 700, 2, 64), "o": (2, 700, 4, 64)}


def lent(shape, dtype, address):
    return Lent(pointer=address, shape=shape, dtype=dtype, device=0, stream=5)


def handled(names, first, foldable=True, more=()):
    """Runs the handler on arrays whose addresses begin at a number of terabytes."""
    arrays = {
        x: lent((*more, *SHAPES[x]), "float32" if x == "slopes" else "bfloat16", (first + i) << 40) for i, x in enumerate((*names, "o"))
    }
    text = told(Text(what=ALIBI if "slopes" in names else ALIBI._replace(score="s"), arrays=names, numbers={}, foldable=foldable))
    targets.forward_on_gpu([arrays[x] for x in names], [arrays["o"]], text)
    return arrays


def direct(arrays):
    """The same by a call on arrays of CuPy."""
    there = {
        name: on_gpu(x.shape, "float32" if x.dtype == "float32" else np.dtype(x.dtype), address=x.pointer) for name, x in arrays.items()
    }
    q, k, v, o = (there.pop(name) for name in "qkvo")
    sketch = ALIBI if there else ALIBI._replace(score="s")
    attention_of(sketch, (q, k, v), there)(q, k, v, out=o, **there)


@pytest.mark.parametrize("names", [("q", "k", "v"), ("q", "k", "v", "slopes"), ("v", "slopes", "q", "k")])
def test_it_launches_what_a_call_launches(launches, names):
    launches.stream = 5
    for first in (1, 21, 41):
        launches.clear()
        direct(handled(names, first))
        assert launches[0] == launches[1]
    launches.stream = 0


def test_arrays_of_several_calls(launches):
    """Sequences that nothing tells apart are those of one call; else there is a call for each."""
    names = ("q", "k", "v")
    launches.clear()
    arrays = handled(names, 1, more=(3,))
    launches.stream = 5
    direct({name: x.reshape(6, *x.shape[2:]) for name, x in arrays.items()})
    assert launches[0] == launches[1]
    launches.clear()
    arrays = handled(names, 1, foldable=False, more=(3,))
    for i in range(3):
        direct({name: x[i] for name, x in arrays.items()})
    assert launches[:3] == launches[3:]
    launches.stream = 0
