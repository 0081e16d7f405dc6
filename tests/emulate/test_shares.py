"""Keys in shares, and rows of a group: attention and `combine` under the race checker, beside the reference and the interpreter."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.emulate import EmulationFault, emulate
from flashgen.errors import PlanError
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes, extent
from flashgen.plan.kernel import Merging
from flashgen.plan.shares import Demand
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import check

SLOPES = {"slopes": {"shape": ["hq"], "dtype": "float32"}}
BIAS = {"bias": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": "float32"}}
SPECS: list[dict[str, Any]] = [
    {"head_dim": 16, "dtype": "bfloat16", "mask": "causal"},
    {"head_dim": 32, "dtype": "float16", "mask": "window(90, 0)", "softmax": {"sink": "slopes[h]"}, "tensors": SLOPES, "layout": "bhsd"},
    {
        "head_dim": {"qk": 40, "v": 24},
        "dtype": "bfloat16",
        "mask": "causal & (kv_idx % 7 != q_idx)",
        "score": "cap * tanh((s + slopes[h] * (kv_idx - q_idx)) / cap)",
        "tensors": SLOPES,
        "params": {"cap": 20.0},
        "out_dtype": "float32",
    },
    {"head_dim": 32, "dtype": "bfloat16", "mask": "prefix(70) | window(30, 10)", "score": "s + bias[b, h, q_idx, kv_idx]", "tensors": BIAS},
    {"head_dim": 16, "dtype": "float16", "mask": "kv_idx < 40 * h", "outputs": ["o", "lse", "max", "max_logit"], "softmax": "off_by_one"},
    {"head_dim": {"qk": 24, "v": 272}, "dtype": "float16", "mask": "chunk(50)", "scale": "0.1"},
    {"head_dim": 16, "dtype": "bfloat16", "mask": "causal & window(150, 0)", "cache": "contiguous"},
    {"head_dim": 16, "dtype": "bfloat16", "mask": "causal", "cache": "contiguous", "out_dtype": "float32"},
]
# A spec, an arch, and query rows where they are few.
CASES = [(0, "sm_90a", 16), (0, "sm_90a", 0), (1, "sm_90a", 16), (2, "sm_90a", 32), (3, "sm_80", 0), (4, "sm_90a", 0), (6, "sm_90a", 16)]
CASES += [(1, "sm_90a", 64), (2, "sm_90a", 64), (6, "sm_90a", 128)]  # of warpgroups
# A spec, an arch, and strands of keys of 16 rows.
STRANDS = [(0, "sm_90a", 4), (1, "sm_90a", 2), (2, "sm_80", 4), (3, "sm_90a", 4), (4, "sm_90a", 4), (5, "sm_90a", 4), (6, "sm_90a", 2)]


@functools.cache
def planned(index: int, arch: str, rows: int, split: int | str, strands: int = 1, in_turn: bool = False) -> tuple[Any, Any]:
    """Shares of 64 keys, so that small arrays have several."""
    spec = Spec(**({"outputs": ["o", "lse"]} | SPECS[index] | {"split": split}))
    chosen = plan(spec, arch, demand=Demand(shared=True, rows=rows, together=rows >= 64, strands=strands, in_turn=in_turn))
    if isinstance(split, str):
        chosen = with_small_shares(chosen)
    return chosen, render(chosen)


def with_small_shares(chosen: Any) -> Any:
    """The program with shares of few keys, wherever it counts them."""
    own = chosen.attention.dealing.shares
    small = dataclasses.replace(own, keys=-(-64 // chosen.attention.tile.block_n) * chosen.attention.tile.block_n)

    def swapped(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
        found = (dataclasses.replace(size, shares=small) if isinstance(size, Merging) else size for size in sizes)
        return tuple(small if size == own else size for size in found)

    kernels = []
    for kernel in chosen.kernels:
        changed = dataclasses.replace(kernel, grid=dataclasses.replace(kernel.grid, blocks=swapped(kernel.grid.blocks)))
        if kernel is chosen.attention:
            changed = dataclasses.replace(changed, dealing=dataclasses.replace(kernel.dealing, shares=small))
        kernels.append(changed)
    scratch = tuple(dataclasses.replace(s, shape=swapped(s.shape)) for s in chosen.scratch)
    return dataclasses.replace(chosen, kernels=tuple(kernels), scratch=scratch)


@st.composite
def calls(draw: st.DrawFn, spec: Spec, rows: int) -> tuple[list[Any], dict[str, Any]]:
    batch, kv_heads, group = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        draw(st.sampled_from([1, 2, 3, 4] if rows < 64 else [2, 4])),
    )
    q_len = draw(st.integers(1, max(1, 2 * rows // group))) if rows else draw(st.integers(1, 150))
    kv_len = draw(st.integers(0, 300) | st.sampled_from([0, 1, 64, 128, 192]))
    rng, d = np.random.default_rng(draw(st.integers(0, 99))), spec.head_dim
    sizes = Sizes(batch=batch, q_len=q_len, kv_len=kv_len, heads=kv_heads * group, kv_heads=kv_heads)
    shapes = ((q_len, kv_heads * group, d.qk), (kv_len, kv_heads, d.qk), (kv_len, kv_heads, d.v))
    arrays = [rng.standard_normal(spec.order.arranged(b=batch, s=s, h=h, d=c)).astype(spec.element.numpy) for s, h, c in shapes]
    values = {t.name: (rng.standard_normal(sizes.shape(t)) / 2).astype(np.float32) for t in spec.tensors}
    return arrays, values | ({"kv_lens": rng.integers(0, kv_len + 1, batch).astype(np.int32)} if spec.cache else {})


@given(st.sampled_from(CASES), st.data())
@settings(max_examples=settings().max_examples // 3)
def test_shares(case: tuple[int, str, int], data: Any) -> None:
    chosen, source = planned(*case, "invariant")
    rows = case[2]
    (q, k, v), values = data.draw(calls(chosen.spec, rows))
    found = emulate(chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 20)), blocks=data.draw(st.integers(1, 3)))
    check(chosen.spec, found, q, k, v, **values)
    same = interpret(chosen, q, k, v, values)
    check(chosen.spec, same, q, k, v, **values)
    for name in found.keys() & {"lse", "max", "max_logit"}:
        np.testing.assert_allclose(found[name], same[name], rtol=2e-3, atol=2e-3)


@given(st.sampled_from(STRANDS), st.data())
@settings(max_examples=settings().max_examples // 3)
def test_keys_of_a_block_in_strands(case: tuple[int, str, int], data: Any) -> None:
    index, arch, strands = case
    split = data.draw(st.sampled_from(["invariant", 1, 3]))
    found = {}
    for in_turn in (False, True):
        chosen, source = planned(index, arch, 16, split, strands, in_turn)
        if not in_turn:
            (q, k, v), values = data.draw(calls(chosen.spec, 16))
        found[in_turn] = emulate(chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 20)))
        check(chosen.spec, found[in_turn], q, k, v, **values)
    assert all(x.tobytes() == found[True][name].tobytes() for name, x in found[False].items())


@pytest.mark.parametrize("rows", [0, 16, 64])
def test_a_sequence_has_the_same_bits_alone_and_in_company(rows: int) -> None:
    chosen, source = planned(0, "sm_90a", rows, "invariant")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((3, n, 2, 16)).astype(chosen.dtype.numpy) for n in (5, 300, 300))
    together = emulate(chosen, source, q, k, v)
    alone = emulate(chosen, source, q[1:2], k[1:2], v[1:2], seed=7)
    assert all((together[name][1:2] == alone[name]).all() for name in ("o", "lse"))


@pytest.mark.parametrize("strands", [1, 2])
def test_bits_are_the_same_in_longer_arrays(strands: int) -> None:
    chosen, source = planned(7, "sm_90a", 16, "invariant", strands)  # shares of 64 keys: two warps merge ten of them, four warps twenty
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 2, 16)).astype(chosen.dtype.numpy) for n in (3, 1240, 1240))
    lens = np.array([600, 1240], np.int32)
    together = emulate(chosen, source, q, k, v, {"kv_lens": lens})
    alone = emulate(chosen, source, q[:1], k[:1, :610], v[:1, :610], {"kv_lens": lens[:1]}, seed=3)
    assert all(together[name][:1].tobytes() == alone[name].tobytes() for name in ("o", "lse"))


def test_keys_of_a_group_are_read_once() -> None:
    for index, grouped in ((0, True), (2, True), (4, False)):  # the last has a mask of its own for each head
        attention = planned(index, "sm_90a", 16, "invariant")[0].attention
        assert attention.dealing.grouped == grouped
        blocks = [extent(size, Sizes(batch=2, q_len=2, kv_len=64, heads=8, kv_heads=2)) for size in attention.grid.blocks]
        assert np.prod(blocks) == (4 if grouped else 16)


@pytest.mark.parametrize(
    ("old", "new", "kv_len"),
    [
        ("p.shares_sum[at] = sum;", "p.shares_sum[work.share ? at : 0] = sum;", 200),
        ("from + each + (share < more) : from", "from + each : from", 200),
        (" && p.shares_sum[i * all + at] != 0.0f;", ";", 9),
        ("o[j] += __uint_as_float(part[j]);", "o[j] = __uint_as_float(part[j]);", 900),
        ("slices * AHEAD < p.shares", "slices < p.shares", 900),
    ],
    ids=[
        "a state is not written",
        "the last tiles are left out",
        "what nobody wrote is read",
        "one slice counts",
        "more slices than blocks",
    ],
)
def test_mistakes_are_found(old: str, new: str, kv_len: int) -> None:
    chosen, source = planned(0, "sm_90a", 16, 12 if kv_len == 900 else 3)  # of the former two warps merge a row
    assert old in source.text
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, h, 16)).astype(chosen.dtype.numpy) for n, h in ((3, 4), (kv_len, 2), (kv_len, 2)))
    changed = dataclasses.replace(source, text=source.text.replace(old, new))
    with pytest.raises((EmulationFault, AssertionError)):
        check(chosen.spec, emulate(chosen, changed, q, k, v), q, k, v)


def test_what_cannot_be_shared_is_said() -> None:
    for pinned, reason in (
        ({"dtype": "float32"}, "dtype is float32: kernels of 16-bit operands take keys in shares"),
        ({"dtype": "float16", "softmax": "none"}, "softmax: none has no state"),
        ({"dtype": "float16", "schedule": "two_pass"}, "schedule: kernels of one pass"),
    ):
        with pytest.raises(PlanError, match=f"^split is 4: {reason}"):
            flashgen.compile({"head_dim": 64, "split": 4, **pinned}, "sm_90a", "emulate")


@given(st.integers(1, 8), st.sampled_from([1, 2]), st.integers(0, 300), st.sampled_from(["sm_90a", "host"]))
@settings(max_examples=10)
def test_calls(q_len: int, group: int, kv_len: int, arch: str) -> None:
    """The number of shares that a spec pins, and as many as the lengths ask for."""
    rng = np.random.default_rng(q_len)
    kv_len = 4 * q_len + kv_len  # many keys beside few queries
    for split in ("invariant", 2):
        spec = Spec(head_dim=16, dtype="float16", mask="causal", outputs=["o", "lse"], split=split)
        q, k, v = (rng.standard_normal((1, n, h, 16)).astype(np.float16) for n, h in ((q_len, 2 * group), (kv_len, 2), (kv_len, 2)))
        attn = flashgen.compile(spec, arch, "interpreter" if arch == "host" else "emulate")
        check(spec, dict(zip(("o", "lse"), attn(q, k, v), strict=True)), q, k, v)
        assert "split" in attn.explain() or split == "invariant"


def test_the_reference_knows_no_shares() -> None:
    spec = Spec(head_dim=16, dtype="float16", split=4)
    x = np.random.default_rng(0).standard_normal((1, 40, 2, 16)).astype(np.float16)
    whole = Spec(**{key: value for key, value in spec.to_json().items() if key != "split"})
    assert all((a == b).all() for a, b in zip(reference(spec, x, x, x), reference(whole, x, x, x), strict=True))
