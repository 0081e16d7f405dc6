"""The emulated kernels meet what N(0, 1) hardly ever draws: many key tiles, rows that planes do not hold, scales that cancel."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate import test_split
from tests.emulate.test_forward import IDS, check

KEY_TILE = 16
HUGE = np.float32(2.0**60)
FEW = settings(max_examples=2)


@functools.cache
def documents(arch):
    spec = Spec(head_dim=16, dtype="float16", mask="document(ids)", tensors=IDS, block={"m": 64, "n": KEY_TILE}, outputs=["o", "lse"])
    chosen = plan(spec, arch)
    return chosen, render(chosen)


def documents_of(rng, keys, lengths):
    """The ids of documents one after another, of so many key tiles and a few keys each."""
    ends = np.cumsum([tiles * KEY_TILE + rng.integers(KEY_TILE) for tiles in lengths])
    return np.searchsorted(ends, np.arange(keys), side="right").astype(np.int32)[None]


def many_tiles(arch, lengths, seed, change=("", "")):
    """Checks the last queries of 45 key tiles."""
    chosen, source = documents(arch)
    assert change[0] in source.text
    rng, keys = np.random.default_rng(seed), 45 * KEY_TILE
    ids = documents_of(rng, keys, lengths)
    q, k, v = (rng.standard_normal((1, n, 1, 16)).astype(np.float16) for n in (64, keys, keys))
    found = emulate(chosen, replace(source, text=source.text.replace(*change)), q, k, v, {"ids": ids}, seed=seed)
    check(chosen.spec, found, q, k, v, ids=ids)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4), seed=st.integers(0, 20))
@FEW
def test_documents_of_more_than_32_key_tiles(arch, lengths, seed):
    many_tiles(arch, lengths, seed)


def test_key_tiles_beyond_32_left_out():
    with pytest.raises(AssertionError, match="o is off by"):
        many_tiles("sm_80", [10, 40], 1, ("first < tiles; first += 32", "first < min(tiles, 32); first += 32"))


def lossy(head, group, heads, rows, change=("", "")):
    """True if every row is right where 16 of one head are of numbers so far apart that planes do not hold them."""
    chosen, source = test_split.planned(0)
    assert change[0] in source.text
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((1, n, heads, 64)).astype(np.float32) for n in (rows, 40, 40))
    k[..., 0] = 0
    q[0, 16 * group : 16 * group + 16, head, 0] = HUGE
    found = emulate(chosen, replace(source, text=source.text.replace(*change)), q, k, v, blocks=1)["o"]
    want = reference(chosen.spec, q, k, v)[0]
    return bool((test_split.row_norms(found - want) <= test_split.ERROR["ieee"] * test_split.row_norms(want)).all())


@given(head=st.integers(0, 1), group=st.integers(0, 3))
@FEW
def test_one_group_of_rows_that_planes_do_not_hold(head, group):
    assert lossy(head, group, 2, 60)


def test_query_tiles_that_planes_do_not_hold_over_the_stride_of_the_grid():
    assert lossy(33, 0, 34, 3)


@pytest.mark.parametrize(
    ("call", "right", "wrong"),
    [
        ((0, 2, 1, 40), "warp < BLOCK_M / 16; ++warp) here", "warp < 2; ++warp) here"),
        ((33, 0, 34, 3), "first < count; first += gridDim.x * 32", "first < min(count, 32); first += gridDim.x * 32"),
    ],
)
def test_rows_that_planes_do_not_hold_left_as_they_are(call, right, wrong):
    assert lossy(*call)
    assert not lossy(*call, (right, wrong))


@pytest.mark.parametrize("in_place", [False, True])
@given(power=st.sampled_from([-60, -40, 40, 60]), tile=st.integers(-12, 12))
@FEW
def test_scales_that_cancel(in_place, power, tile):
    """Rows of q times 2^power, keys times 2^-power and, from one key tile to the next, a little more."""
    chosen, source = test_split.planned(0, in_place=in_place)
    rng = np.random.default_rng(abs(power))
    q, k, v = (rng.standard_normal((1, n, 1, 64)).astype(np.float32) for n in (70, 300, 300))
    steps = np.clip(np.arange(300) // 64 * tile, -20, 0)[None, :, None, None]
    found = emulate(chosen, source, np.ldexp(q, power), np.ldexp(k, steps - power), v)["o"]
    want = reference(chosen.spec, np.ldexp(q, power), np.ldexp(k, steps - power), v)[0]
    assert (test_split.row_norms(found - want) <= test_split.ERROR["ieee"] * test_split.row_norms(want)).all()
