"""Pictures of tiles and of shared memory: nothing is left out, nothing is drawn twice."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flashgen.pages.tiles import boxes, grid, pieces
from flashgen.plan import plan
from flashgen.spec import Spec


@given(arrays(np.int8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 2)), st.integers(0, 2))
def test_boxes_cover_the_cells_of_a_class(classes, kind):
    covered = np.zeros_like(classes)
    for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", boxes(classes, kind)):
        covered[int(y), int(x) : int(x) + int(width)] += 1
    assert (covered == (classes == kind)).all()


def test_lines_are_between_cells():
    assert grid(3, 2) == "M0 1h2M0 2h2M1 0v3"
    assert grid(1, 1) == ""


@pytest.mark.parametrize(("dtype", "arch"), [("float16", "sm_90a"), ("float32", "sm_90a"), ("float16", "sm_80")])
def test_pieces_are_the_regions(dtype, arch):
    smem = plan(Spec(head_dim=128, dtype=dtype, mask="causal"), arch).main.smem
    found = pieces(smem)
    below = [piece for piece in found if not piece.above]
    assert all(one.end <= two.begin + 1e-3 for one, two in itertools.pairwise(below))
    assert max(piece.end for piece in found) == pytest.approx(100 * max(region.end for region in smem.regions) / smem.capacity, abs=1e-3)
    told = " ".join(f"{piece.name} {piece.text}" for piece in found)
    assert all(region.name in told for region in smem.regions)
