"""Memory that another library lends: a call on it launches what a call on arrays of CuPy at the same addresses launches."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flashgen.errors import CallError
from flashgen.runtime.arrays import FAMILIES
from flashgen.runtime.gpu import Gpu
from flashgen.runtime.lent import Lent, LentFamily
from flashgen.spec import Spec
from tests.runtime.launches import Launches, launches
from tests.runtime.test_arrays import on_gpu

pytest.importorskip("cupy")
driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

__all__ = ["launches"]
SPEC = Spec(head_dim=64, dtype="bfloat16", mask="causal", outputs=["o", "lse"], split=1)


def lent(x: Any, stream: int) -> Lent:
    return Lent(x.data.ptr, x.shape, x.dtype.name, 0, stream)


def call(kv_len: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    shapes = [(2, 7, 4, 64), (2, kv_len, 2, 64), (2, kv_len, 2, 64), (2, 7, 4, 64)]
    q, k, v, o = (on_gpu(shape, SPEC.element.numpy, address=(i + 1) << 40) for i, shape in enumerate(shapes))
    return (q, k, v), (o, on_gpu((2, 4, 7), np.float32, address=9 << 40))


@pytest.mark.parametrize("stream", [0, 5])
def test_it_launches_what_arrays_launch(launches: Launches, stream: int) -> None:
    ours, theirs = Gpu(SPEC, None), Gpu(SPEC, None)
    for kv_len in range(600, 612):
        launches.clear()
        given, out = call(kv_len)
        launches.stream = stream
        theirs(given, out, {})
        results = tuple(lent(x, stream) for x in out)
        assert ours(tuple(lent(x, stream) for x in given), results, {}) is results
        assert launches[0] == launches[1]


def test_a_bound_call_is_launched_at_other_addresses(launches: Launches) -> None:
    launches.clear()
    (given, out), (later, into) = call(600), call(600)
    bound = Gpu(SPEC, None).bound(given, out, {})
    assert bound
    moved = [x.data.ptr + (64 << 40) for x in (*later, *into)]
    bound(list(moved), later[0])
    elsewhere = [on_gpu(x.shape, x.dtype, address=at) for x, at in zip((*later, *into), moved, strict=True)]
    Gpu(SPEC, None)(tuple(elsewhere[:3]), tuple(elsewhere[3:]), {})
    assert launches[0] == launches[1]
    q = on_gpu((2, 0, 4, 64), SPEC.element.numpy)
    assert Gpu(SPEC, None).bound((q, *given[1:]), (q, on_gpu((2, 4, 0), np.float32)), {}) is None


def test_parts_and_other_shapes_lie_in_the_same_memory() -> None:
    x = Lent(0x1000, (3, 4, 8), "bfloat16", 0, 7)
    assert (x.ndim, x[2].shape, x[2].pointer) == (3, (4, 8), 0x1000 + 2 * 4 * 8 * 2)
    assert x.reshape(12, 8)[11].pointer == 0x1000 + 11 * 16
    assert x[0].stream == 7


def test_scratch_of_captured_calls_goes_by_where_results_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def allocate(nbytes: int) -> tuple[int, int]:
        made.append(nbytes)
        return 0, len(made) << 20

    monkeypatch.setattr(driver, "cuMemAlloc", allocate)
    monkeypatch.setattr("flashgen.runtime.lent.device", lambda _: SimpleNamespace(aside=contextlib.nullcontext))
    asked = [(0x9000, 64), (0x9000, 64), (0xA000, 64), (0x9000, 32), (0xA000, 64)]
    family = LentFamily()
    found = [
        family.pointer(family.scratch((n,), "int32", Lent(pointer=0x1000, shape=(3,), dtype="int32", device=0, stream=7, result=at)))
        for at, n in asked
    ]
    assert found == [1 << 20, 1 << 20, 2 << 20, 3 << 20, 2 << 20]
    assert made == [256, 256, 128]


def test_lengths_are_not_looked_at() -> None:
    x = Lent(0x1000, (3,), "int32", 0, 0)
    with pytest.raises(CallError, match="lent for a call"):
        FAMILIES[Lent].to_numpy(x)
    with pytest.raises(CallError, match="no place"):
        FAMILIES[Lent].from_numpy(np.zeros(3))
