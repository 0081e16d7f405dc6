"""Arrays of any strides and alignment on a GPU: right, untouched, and the other kernel is reported."""

from typing import Any

import numpy as np
import pytest

import flashgen
from tests.gpu.judge import BF16, cupy, down, judge, poisoned, up
from tests.plan.agreement import arrays


def view_cases() -> dict[str, Any]:
    """Changes of memory that keep the values: the array, as CuPy has it, to one with other strides."""

    def padded(x: Any, columns: int, offset: int = 0) -> Any:
        memory = cupy().full(x.size // x.shape[3] * (x.shape[3] + columns) + 8, 0xFFFF, np.uint16)
        inside = memory[offset : offset + x.size // x.shape[3] * (x.shape[3] + columns)].reshape(*x.shape[:3], x.shape[3] + columns)
        inside[..., : x.shape[3]] = x.view(np.uint16)
        return inside.view(x.dtype)[..., : x.shape[3]]

    def spread(x: Any) -> Any:
        memory = cupy().full((*x.shape[:3], 2 * x.shape[3]), 0xFFFF, np.uint16)
        memory[..., ::2] = x.view(np.uint16)
        return memory.view(x.dtype)[..., ::2]

    def turned(x: Any) -> Any:
        return cupy().ascontiguousarray(x.view(np.uint16).swapaxes(1, 2)).view(x.dtype).swapaxes(1, 2)

    def reversed_rows(x: Any) -> Any:
        return cupy().ascontiguousarray(x.view(np.uint16)[:, ::-1]).view(x.dtype)[:, ::-1]

    return {
        "16-byte rows": lambda x: padded(x, 8),
        "heads first": turned,
        "8-byte rows": lambda x: padded(x, 4),
        "4-byte rows": lambda x: padded(x, 2),
        "2-byte rows": lambda x: padded(x, 1),
        "a first element off by 2 bytes": lambda x: padded(x, 8, 1),
        "every other column": spread,
        "rows reversed": reversed_rows,
        "Fortran order": lambda x: cupy().asfortranarray(x.view(np.uint16)).view(x.dtype),
    }


@pytest.mark.parametrize("case", view_cases())
@pytest.mark.parametrize("which", ["q", "k", "v", "out", "all"])
def test_views(case: str, which: str) -> None:
    q, k, v = arrays(BF16, 2, 4, 2, 150, 190)
    change = view_cases()[case]
    given = dict(zip("qkv", up(q, k, v), strict=True))
    given |= {name: change(x) for name, x in given.items() if which in (name, "all")}
    before = {name: x.view(np.uint16).get() if x.strides[3] == 2 else None for name, x in given.items()}
    o, lse = poisoned(BF16, q)
    if which in ("out", "all"):
        o = change(o)
    attn = flashgen.compile(BF16)
    attn(**given, out=(o, lse))
    judge(BF16, down((o, lse)), q, k, v)
    for name, bits in before.items():
        assert bits is None or np.array_equal(given[name].view(np.uint16).get(), bits)
    if case in ("16-byte rows", "heads first"):
        assert {kernel.program.skeleton for kernel in attn.kernels} == {attn.program.skeleton}
    elif attn.arch.name == "sm_90a":
        assert "calls: " in attn.explain()


def test_what_surrounds_a_view_of_the_output_stays() -> None:
    cp = cupy()
    q, k, v = arrays(BF16, 1, 2, 2, 130, 130)
    for margin in (8, 3):
        memory = cp.full((1, 140, 2 + 1, 64 + margin), 0x1234, np.uint16)
        o = memory.view(BF16.element.numpy)[:, 5:135, 1:, :64]
        flashgen.compile(BF16)(*up(q, k, v), out=(o, cp.empty((1, 2, 130), np.float32)))
        left = memory.get()
        left[:, 5:135, 1:, :64] = 0x1234
        assert (left == 0x1234).all()


def test_keys_and_values_that_are_broadcast() -> None:
    cp = cupy()
    q, k, v = arrays(BF16, 3, 4, 1, 100, 120)
    k, v = k[:1], v[:1]
    wide = [cp.broadcast_to(x.view(np.uint16), (3, 120, 2, 64)).view(BF16.element.numpy) for x in up(k, v)]
    got = flashgen.compile(BF16)(up(q)[0], *wide, out=poisoned(BF16, q))
    judge(BF16, down(got), q, *(np.ascontiguousarray(np.broadcast_to(x, (3, 120, 2, 64))) for x in (k, v)))
