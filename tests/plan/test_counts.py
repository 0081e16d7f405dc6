"""The counts of a plan: tiles as the interpreter visits them, and numbers done by hand."""

import numpy as np
import pytest

from flashgen.dtypes import by_name
from flashgen.interpret import interpret
from flashgen.interpret.run import _Run
from flashgen.plan import plan
from flashgen.plan.counts import WORDS, B, D, D_v, H, S_kv, S_q, W, counts, m, n
from flashgen.plan.geometry import Sizes, shape
from flashgen.spec import Spec
from flashgen.theory.schedule import schedules
from tests.plan.algorithms.test_ladder import pinned

M, N, COLUMNS = 64, 32, 16
IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}


def count(name, q_len, kv_len, heads=1, mask="full", arch="sm_80"):
    spec = Spec(head_dim=COLUMNS, dtype="float16", mask=mask, schedule=pinned(name), block={"m": M, "n": N}, warps=4)
    chosen = plan(spec, arch)
    return counts(chosen).at(chosen, Sizes(2, q_len, kv_len, heads, heads))


@pytest.mark.parametrize("mask", ["full", "causal", "window(70, 10)"])
@pytest.mark.parametrize("name", schedules())
def test_tiles_are_visited_as_counted(name, mask, monkeypatch):
    chosen = plan(Spec(head_dim=COLUMNS, dtype="float16", mask=mask, schedule=pinned(name), block={"m": M, "n": N}), "host")
    visited, scores = [], _Run._scores

    def counting(self, heads, rows, keys, masked):
        visited.append(len(heads.b) * -(-(rows.stop - rows.start) // M) * -(-(keys.stop - keys.start) // N))
        return scores(self, heads, rows, keys, masked)

    monkeypatch.setattr(_Run, "_scores", counting)
    interpret(chosen, *(np.zeros((2, n, 3, COLUMNS), np.float16) for n in (200, 300, 300)))
    once = sum(visited) // chosen.softmax.passes
    assert count(name, 200, 300, 3, mask, "host")["flops"] == 2 * M * N * COLUMNS * (sum(visited) + once)


def test_by_hand():
    """Two sequences of one head: 2 query tiles, 3 key tiles."""
    e, q, kv, pairs = 2, 2 * 128 * COLUMNS, 2 * 96 * COLUMNS, 2 * 6 * M * N
    assert count("standard", 128, 96) == {
        "passes": 1,
        "read": e * (q + 2 * 6 * 2 * N * COLUMNS) + pairs * (4 + 4 + e),
        "written": pairs * (4 + e) + e * q,
        "dram": e * (q + 2 * kv + q) + pairs * (4 + 4 + 4 + e + e),
        "flops": 4 * pairs * COLUMNS,
        "exponentials": pairs * 5 // 2,
        "rescales": pairs // 2,
        "memory": pairs * (4 + e),
    }
    assert count("standard", 128, 288)["read"] == e * (2 * q + 2 * 18 * 2 * N * COLUMNS) + 2 * 18 * M * N * (4 + 4 + e)  # q for 256 keys
    three = count("three_pass", 128, 96)
    assert three == {
        "passes": 3, "read": e * (q + 4 * 2 * 6 * N * COLUMNS), "written": e * q, "dram": e * (2 * q + 2 * kv),
        "flops": 2 * pairs * 4 * COLUMNS, "exponentials": 2 * pairs, "rescales": 0, "memory": 0,
    }  # fmt: skip
    assert count("one_pass", 128, 96)["rescales"] == 2 * 6 * M * (COLUMNS + 1)
    outer = count("each_step_kv_outer", 512, 96)
    state = 4 * (COLUMNS + 2)
    assert outer["memory"] == 2 * 512 * state
    assert outer["written"] == 2 * 512 * (state + 3 * state + e * COLUMNS)
    assert outer["read"] == 2 * (2 * 3 * N * e * 2 * COLUMNS + 24 * M * (e * COLUMNS + state) + 512 * state)


def test_blocks_that_share_the_columns_of_v_compute_scores_each():
    narrow, wide = (counts(plan(Spec(head_dim={"qk": 64, "v": v}, dtype="float16"), "sm_80")) for v in (256, 512))
    known = {W: 6, B: 1, H: 1, S_q: 128, S_kv: 96, D: 64, m: 64, n: 32}
    assert wide.flops.subs(known | {D_v: 512}) == 2 * narrow.flops.subs(known | {D_v: 256})
    assert wide.exponentials == 2 * narrow.exponentials


@pytest.mark.parametrize(("arch", "precision"), [("sm_90a", "ieee"), ("sm_90a", "tf32"), ("sm_80", "ieee")])
def test_planes_of_float32(arch, precision):
    """Memory is what a call takes; everything of it is written once, and a key tile is read as planes."""
    spec = Spec(head_dim=64, dtype="float32", precision=precision, mask="causal & document(ids)", tensors=IDS)
    chosen, sizes = plan(spec, arch, 16), Sizes(2, 300, 500, 4, 2)  # no tensor maps, so not in place
    found = counts(chosen).at(chosen, sizes, {"ids": np.zeros((2, 500), np.int32)})
    own = [s for s in chosen.scratch if s.name.partition("_")[0] in ("k", "v", "lost")]
    assert found["memory"] == sum(int(np.prod(shape(s, sizes))) * by_name(s.dtype).bytes for s in own)
    assert found["written"] == found["memory"] + 4 * 2 * 4 * 300 * 64
    visited = found["exponentials"] // (chosen.attention.tile.block_m * chosen.attention.tile.block_n)
    assert found["flops"] == visited * chosen.attention.tile.block_m * chosen.attention.tile.block_n * 4 * 64 * len(chosen.planes.products)
    tile = 2 * chosen.planes.count * chosen.attention.tile.block_n * 2 * 64 + 8
    flags = 2 * 4 * -(-300 // chosen.attention.tile.block_m) * chosen.attention.tile.block_m // 16
    arrays = 4 * 64 * 2 * (4 * 300 + 2 * 2 * 500)
    assert found["read"] - arrays - visited * tile == 4 * flags


def test_split_in_place_no_plane_is_in_memory():
    """Memory holds the flags; of float32, q is read once, keys and values for each query tile that sees them."""
    spec, sizes = Spec(head_dim={"qk": 40, "v": 64}, dtype="float32", mask="causal"), Sizes(2, 300, 500, 4, 2)
    chosen = plan(spec, "sm_90a", length=1024)
    assert chosen.attention.pipeline.in_place
    found = counts(chosen).at(chosen, sizes)
    visited = found["exponentials"] // (chosen.attention.tile.block_m * chosen.attention.tile.block_n)
    assert found["memory"] == 4 * 2 * 4 * -(-300 // chosen.attention.tile.block_m) * chosen.attention.tile.block_m // 16
    assert found["written"] == found["memory"] + 4 * 2 * 4 * 300 * 64
    assert found["read"] == 4 * 2 * 4 * 300 * 40 + found["memory"] + visited * 4 * chosen.attention.tile.block_n * (40 + 64)


def test_float32_in_numpy_is_counted_like_the_rest():
    assert counts(plan(Spec(head_dim=64, dtype="float32"), "host")).passes == 1


def test_every_symbol_is_explained():
    for name in schedules():
        found = counts(plan(Spec(head_dim=COLUMNS, dtype="float16", schedule=pinned(name)), "sm_80"))
        for formula in (found.read, found.written, found.dram, found.flops, found.exponentials, found.rescales, found.memory):
            assert formula.free_symbols <= set(WORDS)
