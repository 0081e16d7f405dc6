"""Calls that differ in lengths alone: a prepared one is adapted to them, and launches what each would launch were it the first.

CuPy arrays at made-up addresses stand for those on a GPU, and instead of a launch its record, grids and stream are kept.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import CallError
from flashgen.plan.geometry import Sizes
from flashgen.plan.params import record_dtype
from flashgen.runtime import executable, gpu, lengths
from flashgen.runtime.gpu import Gpu
from flashgen.spec import Spec
from tests.runtime.launches import Launches, launches
from tests.runtime.test_arrays import on_gpu
from tests.runtime.test_gpu import made_by

cupy = pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

__all__ = ["launches"]


def growing(spec: Spec, kv_len: int, layer: int, whole: bool) -> tuple[Any, ...]:
    """A query and a cache: the first keys of memory for more, or as many as there are."""
    q = on_gpu((2, 1, 4, 64), spec.element.numpy, address=1 << 40)
    room = kv_len if whole else 1024
    k, v = (on_gpu((2, room, 2, 64), spec.element.numpy, address=(2 * layer + i) << 40)[:, :kv_len] for i in (2, 3))
    return (q, k, v, *(on_gpu((4, kv_len), np.float32, address=99 << 40) for _ in spec.tensors))


GROWING = [
    Spec(head_dim=64, dtype="bfloat16", mask="causal"),
    Spec(head_dim=64, dtype="bfloat16", score="s + bias[h, kv_idx]", tensors={"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}}),
    Spec(head_dim=64, dtype="float32", mask="causal", outputs=["o", "lse"]),
]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("spec", GROWING, ids=["causal", "bias", "float32"])
def test_a_cache_that_grows_is_prepared_a_few_times(launches: Launches, monkeypatch: pytest.MonkeyPatch, spec: Spec, whole: bool) -> None:
    prepared: list[Any] = []
    prepare = executable.Executable.prepare
    attend = Gpu(spec, None)
    for kv_len in range(600, 640):
        monkeypatch.setattr(executable.Executable, "prepare", prepare)
        expected = [made_by(Gpu(spec, None), (growing(spec, kv_len, layer, whole), (), {}, 0), launches) for layer in range(2)]
        monkeypatch.setattr(executable.Executable, "prepare", lambda *given: prepared.append(given) or prepare(*given))
        assert [made_by(attend, (growing(spec, kv_len, layer, whole), (), {}, 0), launches) for layer in range(2)] == expected
    assert len(prepared) == 2 * gpu._STATES


def test_a_plan_that_asks_for_whole_chunks_is_asked_for_at_each_number_of_keys(launches: Launches) -> None:
    """Whatever came before, calls of 608 keys have rows of whole chunks, and run the kernel that copies them."""
    tensors = {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "bfloat16"}}
    spec = Spec(head_dim=64, dtype="bfloat16", score="s + bias[h, q_idx, kv_idx]", tensors=tensors)
    attend, ranges = Gpu(spec, None), []
    for kv_len in range(602, 625):
        q = on_gpu((2, 256, 4, 64), spec.element.numpy, address=1 << 40)
        _, k, v, _ = growing(spec, kv_len, 0, False)
        bias = on_gpu((4, 256, kv_len), spec.element.numpy, address=99 << 40)
        made_by(attend, ((q, k, v, bias), (), {}, 0), launches)
        ranges += [(pattern._steady, pattern._serves) for turns in attend._patterns.values() for pattern in turns.patterns]
    for steady, serves in ranges:
        sizes = [Sizes(batch=2, q_len=256, kv_len=n, heads=4, kv_heads=2) for n in steady.keys]
        assert {serves(size) for size in sizes} == {steady.decided[0]}
    assert {steady.decided[0][1].by_threads for steady, _ in ranges} == {False, True}


def test_a_bias_of_few_queries_has_one_plan_however_many_keys(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "bfloat16"}}
    spec = Spec(head_dim=64, dtype="bfloat16", score="s + bias[h, q_idx, kv_idx]", tensors=tensors)
    prepared: list[Any] = []
    prepare = executable.Executable.prepare
    monkeypatch.setattr(executable.Executable, "prepare", lambda *given: prepared.append(given) or prepare(*given))
    attend = Gpu(spec, None)
    for kv_len in range(600, 640):
        given = (*growing(spec, kv_len, 0, True)[:3], on_gpu((4, 1, kv_len), spec.element.numpy, address=99 << 40))
        made_by(attend, (given, (), {}, 0), launches)
    assert len(prepared) == 2 * gpu._STATES


def test_a_prompt_makes_room_for_the_steps_behind_it(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    prepare = executable.Executable.prepare
    monkeypatch.setattr(executable.Executable, "prepare", lambda *given: prepared.append(given) or prepare(*given))
    spec, counts = GROWING[0], []
    attend = Gpu(spec, None)
    for begin in (600, 700):
        prompt = on_gpu((2, begin, 4, 64), spec.element.numpy, address=1 << 40)
        made_by(attend, ((prompt, *growing(spec, begin, 0, True)[1:]), (), {}, 0), launches)
        for kv_len in range(begin + 1, begin + 40):
            made_by(attend, (growing(spec, kv_len, 0, True), (), {}, 0), launches)
        counts.append(len(prepared))
    assert counts[0] == 2 * (1 + gpu._STATES)
    assert counts[1] == counts[0] + 2  # for the prompt


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: (2, 610, 64)}, "^k has 3 axes"),
        ({1: (2, 610, 2, 64, 1), 2: (2, 610, 2, 64, 1)}, "^k has 5 axes"),
        ({2: (2, 609, 2, 64)}, r"^v has shape \[2, 609, 2, 64\], beside q"),
        ({1: (3, 610, 2, 64)}, r"^k has shape \[3, 610, 2, 64\]"),
        ({3: (4, 609)}, r"^bias has shape \[4, 609\]: axis 1 is indexed by kv_idx, of which there are 610"),
        ({3: (4, 610, 1)}, r"^bias has shape \[4, 610, 1\]"),
    ],
)
def test_mistakes_among_calls_of_other_lengths(launches: Launches, change: dict[int, tuple[int, ...]], message: str) -> None:
    spec = GROWING[1]
    attend = Gpu(spec, None)
    for kv_len in range(600, 609):
        made_by(attend, (growing(spec, kv_len, 0, False), (), {}, 0), launches)
    given = list(growing(spec, 610, 0, False))
    for i, shape in change.items():
        given[i] = on_gpu(shape, given[i].dtype, address=(9 + i) << 40)
    with pytest.raises(CallError, match=message):
        attend(tuple(given), (), {})


def test_an_axis_declared_as_a_number_is_as_long_as_what_runs_over_it(launches: Launches) -> None:
    spec = Spec(head_dim=64, dtype="bfloat16", score="s + bias[kv_idx]", tensors={"bias": {"shape": [610], "dtype": "float32"}})
    attend, bias = Gpu(spec, None), on_gpu((610,), np.float32, address=99 << 40)
    for stride in range(1, 7):
        given = (*growing(spec, 610, stride, False),)[:3]
        made_by(attend, ((*given, on_gpu((610 * stride,), np.float32, address=99 << 40)[::stride]), (), {}, 0), launches)
    with pytest.raises(CallError, match=r"^bias has shape \[610\]: axis 0 is indexed by kv_idx, of which there are 611"):
        attend((*growing(spec, 611, 0, False)[:3], bias), (), {})


def test_lengths_that_take_turns_are_not_adapted_each_time(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, adapted = GROWING[0], []
    attend = Gpu(spec, None)
    for kv_len in range(600, 610):
        made_by(attend, (growing(spec, kv_len, 0, False), (), {}, 0), launches)
    adapt = lengths.Pattern._adapt
    monkeypatch.setattr(lengths.Pattern, "_adapt", lambda *given: adapted.append(given) or adapt(*given))
    for _ in range(5):
        for kv_len in (620, 630, 640):
            made_by(attend, (growing(spec, kv_len, 0, False), (), {}, 0), launches)
    assert len(adapted) == 3


def test_threads_that_grow_side_by_side(launches: Launches) -> None:
    """Each launches what is its own, though they share what is patched."""
    spec = GROWING[0]
    attend, seen = Gpu(spec, None), Gpu(spec, None)
    for kv_len in range(600, 604):
        made_by(attend, (growing(spec, kv_len, 0, False), (), {}, 0), launches)
    expected = {n: made_by(seen, (growing(spec, n, 0, False), (), {}, 0), launches)[0][0] for n in range(610, 660)}
    launches.clear()

    def run(first: int) -> None:
        for n in range(610 + first, 660, 5):
            attend(growing(spec, n, 0, False), (), {})

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(run, range(5)))
    (made,) = attend.kernels.values()
    dtype = record_dtype(made.program.arguments)
    assert len(launches) == 50
    for record, _ in launches:
        n = int(np.frombuffer(record, dtype)[0]["kv_len"])
        mine, theirs = (np.frombuffer(x, dtype)[0] for x in (record, expected[n]))
        assert all(
            mine[name].tobytes() == theirs[name].tobytes()
            for name in dtype.names
            if name not in ("o", "shares_o", "shares_max", "shares_sum")
        )


def test_an_output_behind_the_keys_of_a_cache_is_apart_from_them(launches: Launches) -> None:
    """Until the keys grow into it."""
    spec = GROWING[0]
    attend, memory = Gpu(spec, None), on_gpu((1, 1024, 2, 64), spec.element.numpy, address=7 << 40)
    q, v = (on_gpu((1, n, 2, 64), spec.element.numpy, address=at << 40) for n, at in ((1, 1), (1024, 2)))
    o = memory[:, 640:641]
    for kv_len in range(600, 641):
        made_by(attend, ((q, memory[:, :kv_len], v[:, :kv_len]), (o,), {}, 0), launches)
    with pytest.raises(CallError, match=r"^out for o shares memory with k"):
        attend((q, memory[:, :641], v[:, :641]), (o,), {})
    launched = len(launches)
    made_by(attend, ((q, memory[:, :640], v[:, :640]), (o,), {}, 0), launches)
    assert launched == len(launches) == 1


SPLITS = [GROWING[0], Spec(head_dim=64, dtype="bfloat16", mask="causal", split=1), Spec(head_dim=64, dtype="bfloat16", split="auto")]


@pytest.mark.parametrize("spec", SPLITS, ids=["shares", "whole", "auto"])
@given(sizes=st.tuples(st.integers(1, 300), st.integers(1, 40_000)), last=st.integers(1, 255), between=st.integers(1, 254))
def test_what_both_ends_of_a_range_decide_holds_within(
    launches: Launches, spec: Spec, sizes: tuple[int, int], last: int, between: int
) -> None:
    attend = Gpu(spec, None)
    made_by(attend, (growing(spec, 700, 0, False), (), {}, 0), launches)
    (turns,) = attend._patterns.values()
    pattern = turns.patterns[0]
    q_len, kv_len = sizes
    begin, end, within = (pattern._decided(replace(pattern._sizes, q_len=q_len, kv_len=kv_len + n)) for n in (0, last, min(between, last)))
    assert begin != end or within == begin
