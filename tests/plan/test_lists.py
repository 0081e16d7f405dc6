"""Equal masks written in other ways visit the same tiles, and few more than they have to: by ranges, or by lists where ranges lose."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.expr import evaluate
from flashgen.expr.tiles.lists import looked_at
from flashgen.expr.tiles.ranges import EMPTY
from flashgen.plan import plan
from flashgen.spec import Spec

LENGTH, TILE = 1024, (128, 64)
# n and r stand for numbers that are drawn: literals in one way, params in another.
WAYS = {
    "window": ("window(n, 0)", "(kv_idx <= q_idx) & (kv_idx >= q_idx - n)", "(q_idx - kv_idx >= 0) & (q_idx - kv_idx < n + 1)"),
    "chunks": ("causal & (kv_idx // n == q_idx // n)", "causal & (kv_idx - kv_idx % n == q_idx - q_idx % n)"),
    "compressed": ("kv_idx * n + r <= q_idx", "kv_idx <= (q_idx - r) // n"),
    "tiled": ("kv_idx % (2 * n) < n", "kv_idx - kv_idx // (2 * n) * (2 * n) < n", "kv_idx // n % 2 == 0"),
    "clamped": ("abs(kv_idx // n - min(max(q_idx // n, r), 9)) <= r", "(kv_idx // n - min(max(q_idx // n, r), 9)) ** 2 <= r * r"),
    "block diffusion": (
        "(q_idx // n == kv_idx // n) | ((q_idx >= 512) & (kv_idx < 512) & (kv_idx // n < (q_idx - 512) // n))",
        "where(q_idx // n == kv_idx // n, q_idx >= 0, (q_idx >= 512) & (kv_idx < 512) & (kv_idx // n < (q_idx - 512) // n))",
    ),
}


@functools.cache
def visited(mask: str, n: int, r: int, bound: bool) -> tuple[int, int]:
    """Tiles that a plan takes, and those that some row sees. `bound`: n and r are params."""
    params = {"n": {"default": n, "min": 1, "max": 4096}, "r": {"default": r, "min": 0, "max": 64}}
    read = {name: params[name] for name in params if bound and name in _words(mask)}
    text = mask if bound else "".join({"n": str(n), "r": str(r)}.get(word, word) for word in _words(mask))
    spec = Spec(head_dim=64, dtype="float16", mask=text, params=read, block=dict(zip("mn", TILE, strict=True)))
    chosen = plan(spec, "sm_90a")
    values = {"b": 0, "h": 0, "hk": 0, "q_len": LENGTH, "kv_len": LENGTH, "n": n, "r": r}
    classes = chosen.attention.ranges.classes(LENGTH, LENGTH, values)
    taken = looked_at(chosen.expressions.mask, classes, TILE, values) if chosen.attention.dealing.listed else classes
    indices = {"q_idx": np.arange(LENGTH)[:, None], "kv_idx": np.arange(LENGTH)}
    seen = np.broadcast_to(evaluate(chosen.expressions.mask, {**values, **indices}), (LENGTH, LENGTH))
    some = seen.reshape(LENGTH // TILE[0], TILE[0], -1, TILE[1]).any((1, 3))
    assert not (some & (taken == EMPTY)).any()
    return int(np.count_nonzero(taken)), int(some.sum())


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else f"\0{c}\0" for c in text).split("\0")


@pytest.mark.parametrize("name", WAYS)
@given(st.sampled_from([64, 100, 256]), st.sampled_from([3, 31]))
@settings(max_examples=2)
def test_how_it_is_written_does_not_matter(name, n, r):
    found = {(way, bound): visited(way, n, r, bound) for way in WAYS[name] for bound in (False, True)}
    least = min(ideal for _, ideal in found.values())
    assert {ideal for _, ideal in found.values()} == {least}
    assert all(taken <= 1.1 * least for taken, _ in found.values()), found


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
