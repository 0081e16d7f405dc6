"""Calls prepared once: whatever came before, a call launches what it would launch were it the first.

CuPy arrays at made-up addresses stand for those on a GPU, and instead of a launch its record, grids and stream are kept.
"""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import CallError
from flashgen.runtime import choice, executable, gpu, tuned
from flashgen.runtime.arrays import CupyFamily
from flashgen.runtime.gpu import Gpu
from flashgen.spec import Spec
from tests.runtime.launches import Launches, launches
from tests.runtime.test_arrays import on_gpu

cupy = pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

__all__ = ["launches"]
SPEC = Spec(
    head_dim=64,
    dtype="bfloat16",
    score="softcap * s + bias[h, q_idx]",
    mask="causal",
    params={"softcap": 2.0},
    tensors={"bias": {"shape": ["hq", "q_len"], "dtype": "float32"}},
    outputs=["o", "lse"],
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, float], int]:
    """Given arrays, outputs or none, params, a stream. Few values of each, so that parts of calls come again."""
    q_len, kv_len, heads = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.sampled_from([1, 2]))

    def array(length: int, place: int = 1) -> Any:
        address = draw(st.integers(place, place + 1)) << 40
        memory = on_gpu((2, length + 1, heads + 1, 64 + 8), SPEC.element.numpy, address=address)
        first = draw(st.sampled_from([0, 1, 8]))  # elements: the second is not aligned as tensor maps want
        x = memory[:, draw(st.integers(0, 1)) :, :heads, first : first + 64]
        return x[:, :length]

    bias = on_gpu((heads, q_len), np.float32, address=draw(st.integers(3, 4)) << 40)
    out = (array(q_len, 7), on_gpu((2, heads, q_len), np.float32, address=draw(st.integers(5, 6)) << 40)) if draw(st.booleans()) else ()
    params = draw(st.sampled_from([{}, {"softcap": 3.0}]))
    return (array(q_len), array(kv_len), array(kv_len), bias), out, params, draw(st.sampled_from([0, 5]))


def made_by(attend: Gpu, call: Any, launches: Launches) -> list[Any]:
    given, out, params, launches.stream = call
    launches.made = 0
    launches.clear()
    results = attend(given, out, params)
    assert all(x is y for x, y in zip(results, out, strict=True)) if out else launches.made
    return list(launches)


@given(sequence=st.lists(calls(), min_size=2, max_size=8), kept=st.sampled_from([2, 512]), states=st.sampled_from([1, 2]))
def test_a_call_launches_what_it_would_launch_were_it_the_first(launches: Launches, sequence: list[Any], kept: int, states: int) -> None:
    """Some were prepared before: with other lengths, strides, addresses, params."""
    before, (gpu._CALLS_KEPT, gpu._STATES) = (gpu._CALLS_KEPT, gpu._STATES), (kept, states)
    try:
        warm = Gpu(SPEC, None)
        for call in sequence:
            assert made_by(warm, call, launches) == made_by(Gpu(SPEC, None), call, launches)
        assert len(warm._prepared) <= kept
    finally:
        gpu._CALLS_KEPT, gpu._STATES = before


def test_what_comes_again_is_not_prepared_again(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    prepare = executable.Executable.prepare
    monkeypatch.setattr(executable.Executable, "prepare", lambda *given: prepared.append(given) or prepare(*given))
    attend = Gpu(Spec(head_dim=64, dtype="float16"), None)
    for i in range(1, 9):
        qkv = tuple(on_gpu((1, 70 + i // 5, 2, 64), np.float16, address=(3 * i + j) << 40) for j in range(3))
        made_by(attend, (qkv, (), {}, i % 2), launches)
    assert len(prepared) == 4  # of each length, and once more for others that come


def test_other_lengths_of_a_class_are_not_planned_again(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(choice, "planned", lambda spec, arch, length, card: asked.append(length) or tuned.planned(spec, arch, length, card))
    attend = Gpu(Spec(head_dim=64, dtype="float16"), None)
    for kv_len in (*range(1020, 1030), 5000):
        given = tuple(on_gpu((1, n, 2, 64), np.float16) for n in (200, kv_len, kv_len))
        made_by(attend, (given, (), {}, 0), launches)
    assert asked == [1024, 8192]
    kernels = dict(attend.kernels)
    for kv_len in (300, 1020, 30_000):  # one token: a plan serves all lengths
        given = tuple(on_gpu((1, n, 2, 64), np.float16) for n in (1, kv_len, kv_len))
        made_by(attend, (given, (), {}, 0), launches)
    assert len(attend.kernels) == len(kernels) + 1


@pytest.mark.parametrize(
    ("view", "kernels", "why"),
    [
        ({}, 2, None),  # keys and values are split in place
        ({"k": lambda x: x[:, ::-1]}, 3, r"^k: an axis has stride -\d+. So a kernel that copies 16 bytes at a time serves such calls"),
        ({"v": lambda x: x[..., ::2]}, 3, "^v: the last axis has stride 2, not 1. So a kernel that copies 4 bytes"),
        ({"q": lambda x: x[:, ::-1]}, 2, None),  # no tensor map has q
        ({"q": lambda x: x[..., 2:]}, 3, "^q: rows are aligned to 8 bytes, not 16. So a kernel that copies 8 bytes"),
    ],
)
def test_float32_that_tensor_maps_do_not_take(launches: Launches, view: dict[str, Any], kernels: int, why: str | None) -> None:
    attend = Gpu(Spec(head_dim=64, dtype="float32", mask="causal"), None)
    columns = {"v": 128, "q": 66} if why else {}
    given = []
    for i, x in enumerate("qkv"):
        array = on_gpu((1, 70, 2, columns.get(x, 64) if x in view else 64), np.float32, address=(i + 1) << 40)
        given.append(view[x](array) if x in view else array)
    (launched,) = made_by(attend, (tuple(given), (), {}, 0), launches)
    assert len(launched[1]) == kernels
    assert bool(attend.choice.reasons) == bool(why)
    assert why is None or re.match(why, next(iter(attend.choice.reasons)))


def test_a_mistake_is_found_after_calls_without_one(launches: Launches) -> None:
    attend, call = Gpu(SPEC, None), [on_gpu((1, 70, 2, 64), SPEC.element.numpy) for _ in range(3)]
    bias = on_gpu((2, 70), np.float32)
    made_by(attend, ((*call, bias), (), {}, 0), launches)
    for wrong, message in (
        ((*call, on_gpu((3, 70), np.float32)), r"bias has shape \[3, 70\]"),
        ((call[0], call[1].view(np.float16), call[2], bias), "k is float16"),
        ((*call, on_gpu((2, 70), np.float32, device=1)), "bias lies on GPU 1"),
    ):
        for _ in range(2):
            with pytest.raises(CallError, match=message):
                attend(wrong, (), {})
    assert len(attend.kernels) == 1


def test_an_array_whose_memory_says_too_little_is_told_by_name_in_every_call(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, call = Gpu(SPEC, None), [on_gpu((1, 70, 2, 64), SPEC.element.numpy) for _ in range(3)]
    given = (*call, on_gpu((2, 70), np.float32))
    made_by(attend, (given, (), {}, 0), launches)
    locate = CupyFamily.locate

    def refuse(self: CupyFamily, x: Any) -> Any:
        if x is call[1]:
            raise CallError("a tensor stands for what its memory holds negated")
        return locate(self, x)

    monkeypatch.setattr(CupyFamily, "locate", refuse)
    for _ in range(2):
        with pytest.raises(CallError, match="k: a tensor stands for"):
            attend(given, (), {})


def test_outputs_that_meet_what_is_read_are_refused_in_every_call(launches: Launches) -> None:
    attend = Gpu(Spec(head_dim=64, dtype="float16"), None)
    packed = on_gpu((1, 70, 4, 2, 64), np.float16)  # q, k, v and o side by side: between each other, and apart
    q, k, v, o = (packed[:, :, i] for i in range(4))
    made_by(attend, ((q, k, v), (o,), {}, 0), launches)
    with pytest.raises(CallError, match=r"^out for o shares memory with k: give an array of its own"):
        attend((q, k, v), (k,), {})
    apart = tuple(on_gpu((1, 70, 2, 64), np.float16, address=(i + 1) << 40) for i in range(4))
    made_by(attend, (apart[:3], (apart[3],), {}, 0), launches)
    launched = len(launches)
    with pytest.raises(CallError, match=r"^out for o shares memory with v: give an array of its own"):
        attend(apart[:3], (apart[2],), {})
    assert len(launches) == launched
    alias = cupy.broadcast_to(on_gpu((1, 1, 2, 64), np.float16, address=9 << 40), (1, 70, 2, 64))
    with pytest.raises(CallError, match=r"^out for o has shape .* some of its elements are one"):
        attend((q, k, v), (alias,), {})
