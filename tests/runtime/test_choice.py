"""The plan of a call follows from its arrays, wherever it runs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashgen.interpret
from flashgen import api
from flashgen.arch import by_name
from flashgen.dtypes import by_name as by_dtype
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes, extent
from flashgen.plan.shares import Demand, Demands
from flashgen.render import render
from flashgen.runtime.arrays import liken
from flashgen.runtime.choice import Choice
from flashgen.spec import Spec
from tests.runtime.test_arrays import on_gpu

SPEC = Spec(head_dim=64, dtype="float16", mask="causal")
CLUSTER = Demand(shared=True, rows=16, strands=4, cluster=8, alone=True)
ANY: dict[str, Any] = {"strands": 1, "cluster": 1, "each": 1, "in_turn": False, "alone": False}  # of a demand: who has which strands
VIEWS: dict[str, tuple[str, Any, str]] = {  # which array, a view as wide as the head dim, what is said of it
    "backwards": ("k", lambda x: x[:, ::-1, :, :64], "k: an axis has stride -"),
    "every second column": ("v", lambda x: x[..., ::2], "v: the last axis has stride 2, not 1"),
    "between two multiples of 16": ("q", lambda x: x[..., 4:68], "q: the first element is 8 bytes off a multiple of 16"),
}


def arrays(name: str) -> dict[str, np.ndarray[Any, Any]]:
    made = {x: np.random.default_rng(ord(x)).standard_normal((1, 70, 2, 128)).astype(np.float16) for x in "qkv"}
    which, view, _ = VIEWS[name]
    return {x: view(array) if x == which else np.ascontiguousarray(array[..., :64]) for x, array in made.items()}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_tensor_maps_do_not_take_run_under_the_emulator(name: str) -> None:
    attn, given = api.compile(SPEC, arch="sm_90a", backend="emulate"), arrays(name)
    o = attn(*given.values())
    assert np.abs(o.astype(np.float64) - reference(SPEC, *given.values())[0]).max() < 2e-3
    assert f"calls: {VIEWS[name][2]}" in attn.explain()


@pytest.mark.parametrize("name", VIEWS)
def test_a_gpu_and_the_host_choose_alike(name: str) -> None:
    given = arrays(name)
    here = Choice(SPEC).serving_arrays(by_name("sm_90a"), *given.values())
    there = []
    for at, x in enumerate(given.values(), 1):
        memory = on_gpu((1 << 21,), np.uint8, address=at << 40)
        pointer = memory.data + (1 << 20) + x.ctypes.data % 16
        there.append(type(memory)(x.shape, x.dtype, memptr=pointer, strides=x.strides))
    choice = Choice(SPEC)
    assert choice.serving_arrays(by_name("sm_90a"), *there) == here
    assert here != plan(SPEC, "sm_90a")
    assert len(choice.reasons) == 1


@pytest.mark.parametrize("split", [1, 3])
def test_strides_of_o_matter_where_the_attention_copies_rows_to_it(split: int) -> None:
    """Not where shares of keys are merged, and not of o where it is made of o_raw, as either is written element by element."""
    gate = {"output": "2.0 * o", "outputs": ["o", "o_raw"]}
    sizes = {"q": (1, 70, 2, 64), "k": (1, 700, 2, 64), "v": (1, 700, 2, 64)}
    dense = {name: liken(np.zeros(shape, np.float16), name).layout for name, shape in sizes.items()}
    odd = liken(np.zeros((1, 70, 2, 67), np.float16)[..., :64], "o").layout
    for more, name in (({}, "o"), (gate, "o_raw"), (gate, "o")):
        choice = Choice(Spec(**(SPEC.to_json() | more | {"split": split})))
        preferred = choice.serving(by_name("sm_90a"), dense)
        assert bool(preferred.combine) == (split > 1)
        exempt = split > 1 or (name == "o" and more == gate)
        assert (choice.serving(by_name("sm_90a"), {**dense, name: odd}) == preferred) == exempt
        assert list(choice.reasons) == [] if exempt else next(iter(choice.reasons)).startswith(f"{name}: ")


@pytest.mark.parametrize(("keys", "length"), [(0, 512), (1, 512), (512, 512), (513, 1024), (1100, 8192)])
def test_lengths_have_plans_of_their_own(keys: int, length: int) -> None:
    q, k = (np.zeros((1, n, 1, 64), np.float16) for n in (150, keys))
    assert Choice(SPEC).serving_arrays(by_name("sm_90a"), q, k, k) == plan(SPEC, "sm_90a", 0, length)


@pytest.mark.parametrize(
    ("q_len", "kv_len", "heads", "split", "expected"),
    [
        (1, 4, 8, "invariant", CLUSTER),  # whatever the number of keys: some sequences of a batch may grow
        (1, 70_000, 8, "invariant", CLUSTER),
        (1, 4000, 8, "auto", CLUSTER),
        (1, 70_000, 8, "auto", CLUSTER),
        (3, 70_000, 16, "invariant", replace(CLUSTER, rows=32)),
        (16, 400, 8, "invariant", Demand(shared=True, rows=64, together=True)),  # a warpgroup's
        (100, 128, 2, "invariant", Demand()),  # the queries are as many as the keys
        (512, 65_536, 8, "invariant", Demand(shared=True)),
        (1024, 65_536, 18, "invariant", Demand(shared=True)),  # 144 query tiles would fill 132 multiprocessors, and then 12
        (1024, 65_536, 32, "invariant", Demand()),
        (512, 4096, 8, "invariant", Demand()),
        (512, 4096, 8, "auto", Demand(shared=True)),
        (1, 70_000, 8, 1, Demand()),
        (512, 512, 8, 3, Demand(shared=True)),
    ],
)
def test_what_lengths_ask_for(q_len: int, kv_len: int, heads: int, split: str | int, expected: Demand) -> None:
    spec, sizes = Spec(**(SPEC.to_json() | {"split": split})), Sizes(batch=1, q_len=q_len, kv_len=kv_len, heads=heads, kv_heads=2)
    assert Demands(spec, by_name("sm_90a")).of(sizes) == expected


@given(st.integers(1, 300), st.integers(0, 100_000), st.sampled_from([1, 2, 8]), st.integers(2, 64))
def test_a_sequence_is_served_alike_alone_and_in_company(q_len: int, kv_len: int, group: int, batch: int) -> None:
    alone, together = (Sizes(batch=b, q_len=q_len, kv_len=kv_len, heads=2 * group, kv_heads=2) for b in (1, batch))
    asked, beside = (Demands(SPEC, by_name("sm_90a")).of(sizes) for sizes in (alone, together))
    assert asked.strands * asked.cluster == beside.strands * beside.cluster  # strands have the same bits whichever warp has them
    assert replace(asked, **ANY) == replace(beside, **ANY)
    if asked.shared:
        attention, other = (plan(SPEC, "sm_90a", demand=demand).attention for demand in (asked, beside))
        assert attention.tile.block_n == other.tile.block_n
        assert extent(attention.dealing.shares, alone) == extent(other.dealing.shares, together)


def test_the_interpreter_runs_the_plan_of_the_arch_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    right = flashgen.interpret.interpret
    monkeypatch.setattr(flashgen.interpret, "interpret", lambda chosen, *given: seen.append(chosen.digest) or right(chosen, *given))
    given = arrays("backwards").values()
    api.compile(SPEC, arch="sm_90a", backend="interpreter")(*given)
    api.compile(SPEC, backend="interpreter")(*given)
    expected = Choice(SPEC)
    assert seen == [expected.serving_arrays(by_name(arch), *given).digest for arch in ("sm_90a", "host")]


@pytest.mark.parametrize(
    ("dtype", "keys", "copied"), [("bfloat16", 304, True), ("bfloat16", 300, False), ("float32", 300, True), ("float32", 301, False)]
)
def test_rows_of_a_bias_are_copied_where_all_begin_at_16_bytes(dtype: str, keys: int, copied: bool) -> None:
    tensors = {"t": {"shape": ["hq", "q_len", "kv_len"], "dtype": dtype}}
    attn = api.compile(
        Spec(head_dim=64, dtype="float16", score="s + t[h, q_idx, kv_idx]", tensors=tensors), arch="sm_90a", backend="emulate"
    )
    random = np.random.default_rng(0)
    given = [random.standard_normal((1, n, 2, 64)).astype(np.float16) for n in (200, keys, keys)]
    bias = random.standard_normal((2, 200, keys)).astype(by_dtype(dtype).numpy)
    assert np.abs(attn(*given, t=bias).astype(np.float64) - reference(attn.spec, *given, t=bias)[0]).max() < 2e-3
    chosen = Choice(attn.spec).serving_arrays(by_name("sm_90a"), *given)
    assert ("copy_rows" in render(chosen).text) is ("two key tiles ahead" in dict(chosen.decision.reasons).get("tensor", "")) is copied


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_120"])
def test_few_queries_of_any_head_dims_have_a_plan(arch: str) -> None:
    for qk in range(8, 521, 8):
        for v in {min(qk, 256), 64, 128, 256}:
            spec = Spec(head_dim={"qk": qk, "v": v}, dtype="float16")
            demands = Demands(spec, by_name(arch))
            for batch in (1, 8, 64):  # whose strands have a warp each, or share one, or are in turn
                demand = demands.of(Sizes(batch=batch, q_len=1, kv_len=70_000, heads=8, kv_heads=8))
                assert plan(spec, arch, demand=demand).attention.tile.block_m == 16
            if arch == "sm_90a":
                for batch in (1, 8, 64):
                    assert plan(spec, arch, demand=demands.of(Sizes(batch=batch, q_len=20, kv_len=70_000, heads=8, kv_heads=8)))


@pytest.mark.parametrize(("arch", "columns"), [("sm_86", 320), ("sm_86", 512), ("sm_80", 512), ("sm_90a", 264), ("sm_90a", 512)])
def test_wide_rows_that_no_tile_of_few_holds_have_the_plan_of_many(arch: str, columns: int) -> None:
    spec = Spec(head_dim=columns, dtype="bfloat16")
    for q_len in (1, 16, 32, 64, 100, 128):
        sizes = Sizes(batch=1, q_len=q_len, kv_len=70_000, heads=8, kv_heads=8)
        demand = Demands(spec, by_name(arch)).of(sizes)
        assert plan(spec, arch, demand=demand).attention.tile.block_m >= demand.rows
        assert demand.rows == 0 or demand.rows >= q_len
