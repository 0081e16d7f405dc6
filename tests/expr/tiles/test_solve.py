"""Masks solved for keys and for rows: what strips say of a tile is so, whichever index runs over it."""

import numpy as np
import pytest
from hypothesis import example, given

from flashgen.errors import SpecError
from flashgen.expr.language.nodes import INDEX_NAMES
from flashgen.expr.prove.affine import param
from flashgen.expr.prove.integers import intervals
from flashgen.expr.prove.intervals import KEYS, ROWS, Facts
from flashgen.expr.tiles.cuda import number
from flashgen.expr.tiles.solve import Solver
from flashgen.expr.tiles.spans import MAX_STRIPS, Combiner
from tests.expr.masks import EXACT, LENGTHS, MASKS, TILES, mask_of, values, visible

SIDES = {"keys": KEYS, "rows": ROWS}


def solved(text, block_m, block_n, side):
    """The strips of a mask, and the steps that name what they read; None where kernels find extents first."""
    mask = mask_of(text)
    facts = Facts(block_m, block_n, intervals((), mask), side)
    solver = Solver(Combiner(facts))
    strips = solver.combiner.condense(solver.strips(mask), MAX_STRIPS)
    return None if solver.pairings else (strips, tuple(facts.meanings.items()))


def inside(spans, known, length):
    places = np.arange(length)
    return np.logical_or.reduce([(number(s.begin, known) <= places) & (places < number(s.end, known)) for s in spans], initial=False)


@pytest.mark.parametrize("name", SIDES)
@given(MASKS, LENGTHS, LENGTHS, TILES, TILES, values())
@example("causal", 40, 60, 16, 8, {})
@example("window(left, right)", 40, 60, 16, 8, {"left": 9, "right": 3})
def test_strips_are_sound(name, text, q_len, kv_len, block_m, block_n, given_values):
    side = SIDES[name]
    try:
        found = solved(text, block_m, block_n, side)
    except SpecError:  # a divisor folded to 0, a text too long
        return
    if found is None:
        return
    strips, steps = found
    pairs = visible(text, q_len, kv_len, given_values)
    pairs, block = (pairs, block_m) if side is KEYS else (pairs.T, block_n)
    known = {n if n in INDEX_NAMES else param(n): x for n, x in given_values.items()}
    known |= {"q_len": q_len, "kv_len": kv_len, "BLOCK_M": block_m, "BLOCK_N": block_n}
    for first in range(0, len(pairs), block):
        tile = pairs[first : first + block]
        at = known | {str(side.first): first, str(side.last): first + len(tile) - 1}
        for step, value in steps:
            at[step] = number(value, at)
        may, must = (inside([getattr(strip, which) for strip in strips], at, tile.shape[1]) for which in ("may", "must"))
        assert (may | ~tile.any(0)).all()
        assert (tile.all(0) | ~must).all()


@pytest.mark.parametrize("text", EXACT)
def test_rows_of_usual_masks_are_ranges(text):
    """Nothing is lost on the way."""
    facts = Facts(64, 64, intervals((), mask_of(text)), ROWS)
    solver = Solver(Combiner(facts))
    solver.strips(mask_of(text))
    assert not solver.combiner.reasons


def test_the_rows_that_a_key_tile_meets_under_causal():
    (strip,), _ = solved("causal", 64, 64, ROWS)
    assert [str(end) for end in (strip.may.begin, strip.may.end)] == ["max(0, k_begin - kv_len + q_len)", "q_len"]
    assert [str(end) for end in (strip.must.begin, strip.must.end)] == ["max(0, k_last - kv_len + q_len)", "q_len"]
