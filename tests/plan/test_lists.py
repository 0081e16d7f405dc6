"""Equal masks written in other ways visit the same tiles, and few more than they have to: by ranges, or by lists where ranges lose."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flashgen.expr import evaluate, lower, show
from flashgen.expr.language.nodes import Node
from flashgen.expr.tiles.lists import looked_at
from flashgen.expr.tiles.ranges import EMPTY
from flashgen.plan import Program, plan
from flashgen.spec import Spec
from tests.plan.phrasing import rewritten

WORD = re.compile(r"[a-z_]\w*")

LENGTH, TILE = 2048, (128, 64)
# n and r stand for numbers that are drawn: literals in one way, params with bounds or without in others.
MASKS = (
    "causal & window(n, 0)",
    "(kv_idx < r) | window(n, 0)",
    "prefix(n) | causal",
    "causal & (kv_idx // n == q_idx // n)",
    "causal & ((kv_idx // n == q_idx // n) | (kv_idx % n >= n - r))",
    "kv_idx * n + r <= q_idx",
    "kv_idx % (2 * n) < n",
    "abs(kv_idx % n - q_idx % n) <= r",
    "abs(kv_idx // n - min(max(q_idx // n, r), 9)) <= r",
    "(abs(kv_idx // 32 % 32 - q_idx // 32 % 32) <= r) & (abs(kv_idx % 32 - q_idx % 32) <= r)",
    "where(kv_idx < n, kv_idx, kv_idx + r) <= where(q_idx < n, q_idx, q_idx + r)",
    "(q_idx // n == kv_idx // n) | ((q_idx >= 512) & (kv_idx < 512) & (kv_idx // n < (q_idx - 512) // n))",
    "causal & document(ids)",
    "document(ids) | window(n, 0)",
)
KINDS = "literals", "params", "params with bounds"
BOUNDS = {"min": 1, "max": 4096}
DOCUMENTS = np.searchsorted([300, 400, 1024, 1500], np.arange(LENGTH), "right")
INDICES = {"q_idx": np.arange(LENGTH)[:, None], "kv_idx": np.arange(LENGTH)}


def spec_of(mask: str, numbers: Mapping[str, int], kind: str) -> Spec:
    """A spec whose mask reads n, r and ids, if it does."""
    read = {name: value for name, value in numbers.items() if name in WORD.findall(mask)}
    if kind == "literals":
        mask = WORD.sub(lambda word: str(numbers.get(word[0], word[0])), mask)
    params = {name: {"default": value, **BOUNDS} if kind == "params with bounds" else value for name, value in read.items()}
    tensors = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}} if "ids" in mask else {}
    block = dict(zip("mn", TILE, strict=True))
    return Spec(head_dim=64, dtype="float16", mask=mask, params={} if kind == "literals" else params, tensors=tensors, block=block)


def pairs(mask: Node, values: Mapping[str, Any]) -> NDArray[np.bool_]:
    """True where a query attends to a key."""
    return np.broadcast_to(evaluate(mask, {**values, **INDICES}), (LENGTH, LENGTH))


def tiles_taken(program: Program, values: Mapping[str, Any]) -> NDArray[np.bool_]:
    """True for tiles that a kernel visits."""
    classes = program.attention.ranges.classes(LENGTH, LENGTH, values)
    taken = looked_at(program.expressions.mask, classes, TILE, values) if program.attention.dealing.listed else classes
    return taken != EMPTY


@given(st.sampled_from(MASKS), st.sampled_from([16, 48, 64, 100, 256, 300]), st.integers(1, 40), st.sampled_from(KINDS), st.data())
def test_how_it_is_written_does_not_matter(mask, n, r, kind, data):
    """A mask whose nodes are written in other ways is the same mask, and at most a tenth more tiles are visited than some row sees."""
    numbers = {"n": n, "r": r}
    plain = lower(spec_of(mask, numbers, "params")).mask
    written = show(rewritten(plain, lambda ways: data.draw(st.integers(0, ways - 1))))
    numbers_of = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=5, max_size=5, unique=True)
    ids = np.array(sorted(data.draw(numbers_of), reverse=data.draw(st.booleans())))[DOCUMENTS]
    values = {"b": 0, "h": 0, "hk": 0, "q_len": LENGTH, "kv_len": LENGTH, **numbers, "ids": ids[None]}
    program = plan(spec_of(written, numbers, kind), "sm_90a")
    seen, taken = pairs(plain, values), tiles_taken(program, values)
    some = seen.reshape(LENGTH // TILE[0], TILE[0], -1, TILE[1]).any((1, 3))
    assert np.array_equal(pairs(program.expressions.mask, values), seen), written
    assert not (some & ~taken).any(), written
    assert taken.sum() <= 1.1 * some.sum(), written


@pytest.mark.parametrize(
    "ways",
    [
        ("ids[b, kv_idx] == ids[b, q_idx]", "ids[b, q_idx] == ids[b, kv_idx]", "ids[b, q_idx] - ids[b, kv_idx] == 0"),
        ("ids[b, kv_idx] >= ids[b, q_idx] - 9", "ids[b, q_idx] - ids[b, kv_idx] <= 9", "ids[b, q_idx] <= ids[b, kv_idx] + 9"),
    ],
)
def test_nor_do_the_sides_of_a_comparison_matter(ways):
    """All that varies along the keys stands without a minus, so that 32 bits hold it."""
    keys = {"head_dim": 64, "dtype": "float16", "tensors": {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}}
    bodies = [plan(Spec(mask=mask, **keys), "sm_90a").holes.mask.body for mask in ways]
    assert all("(at.arg_ids)" not in line for body in bodies for line in body.lines)
    assert bodies[0].lines == bodies[1].lines == bodies[2].lines


@pytest.mark.parametrize("mask", ["pad[b, kv_idx]", "causal & pad[b, kv_idx]", "~pad[b, kv_idx]", "ids[b, kv_idx] >= 0"])
def test_flags_of_padded_keys_are_ranges(mask: str) -> None:
    """The keys that a flag shows are those of whole key tiles, as a kernel before finds at once: nobody looks at pairs."""
    tensors = {"pad": {"shape": ["b", "kv_len"], "dtype": "bool"}, "ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
    read = {name: how for name, how in tensors.items() if f"{name}[" in mask}
    assert not plan(Spec(head_dim=128, dtype="bfloat16", mask=mask, tensors=read), "sm_90a").attention.dealing.listed
