"""Masks and scores of the library, beside what their papers say, written out place by place."""

import math

import numpy as np
import pytest

from flashgen.expr import evaluate, lower
from flashgen.spec.shipped import find


def seen(name, q_len, kv_len, queries=None, h=0, **tensors):
    """The mask of a spec at some queries and all keys."""
    queries = np.arange(q_len) if queries is None else np.asarray(queries)
    known = {"b": 0, "h": h, "hk": h, "q_idx": queries[:, None], "kv_idx": np.arange(kv_len)[None], "q_len": q_len, "kv_len": kv_len}
    spec = find(name)
    known |= {p.name: p.default for p in spec.params} | tensors
    return np.broadcast_to(evaluate(lower(spec).mask, known), (len(queries), kv_len))


def entries(name, q_len, kv_len, tensor, size):
    """The entry of a table that the score of a spec adds for each query and key, its axes (entries, heads)."""
    spec = find(name)
    known = {"b": 0, "h": 0, "hk": 0, "q_idx": np.arange(q_len)[:, None], "kv_idx": np.arange(kv_len)[None], "s": np.float32(0)}
    known |= {"q_len": q_len, "kv_len": kv_len, tensor: np.arange(size, dtype=np.float32)[:, None]}
    return evaluate(lower(spec).score, known)


def around(place, size, reach):
    """The neighbourhood of a place on an axis: as near to it as the axis has room for."""
    first = min(max(place - reach, 0), size - 2 * reach - 1)
    return range(first, first + 2 * reach + 1)


def test_neighborhoods_stay_inside():
    some = [0, 55, 3 * 56 + 2, 28 * 56 + 30, 3135]
    for row, found in zip(some, seen("neighborhood_2d", 3136, 3136, some), strict=True):
        expected = {56 * y + x for y in around(row // 56, 56, 3) for x in around(row % 56, 56, 3)}
        assert set(np.flatnonzero(found)) == expected
    for row, found in zip(some, seen("neighborhood_dilated", 3136, 3136, some), strict=True):
        y, x = divmod(row, 56)
        ys, xs = ([4 * i + at % 4 for i in around(at // 4, 14, 3)] for at in (y, x))
        assert set(np.flatnonzero(found)) == {56 * a + b for a in ys for b in xs}
    some = [0, 12543, 784 * 7 + 28 * 14 + 14]
    for row, found in zip(some, seen("neighborhood_3d", 12544, 12544, some), strict=True):
        t, y, x = row // 784, row // 28 % 28, row % 28
        boxes = [784 * a + 28 * b + c for a in around(t, 16, 1) for b in around(y, 28, 3) for c in around(x, 28, 3)]
        assert set(np.flatnonzero(found)) == set(boxes)
    assert [set(np.flatnonzero(row)) for row in seen("neighborhood_1d", 20, 20)] == [set(around(i, 20, 3)) for i in range(20)]


def test_sliding_tiles_are_27_tiles():
    some = [0, 384 * 37, 384 * 150 + 383, 115199]
    for row, found in zip(some, seen("sliding_tile", 115200, 115200, some), strict=True):
        t, y, x = row // 384 // 60, row // 384 // 10 % 6, row // 384 % 10
        tiles = {60 * a + 10 * b + c for a in around(t, 5, 1) for b in around(y, 6, 1) for c in around(x, 10, 1)}
        assert set(np.flatnonzero(found) // 384) == tiles
        assert found.sum() == 27 * 384


def test_halos_are_14_wide_inside():
    (found,) = seen("halonet", 4096, 4096, [64 * 18 + 21])  # in the block of rows 16 to 23 and columns 16 to 23
    assert set(np.flatnonzero(found)) == {64 * y + x for y in range(13, 27) for x in range(13, 27)}


def test_windows_of_swin_read_a_table_of_all_offsets():
    found = entries("swin", 49, 49, "table", 169)
    assert len(np.unique(found)) == 169
    assert {(i // 7 - j // 7, i % 7 - j % 7): found[i, j] for i in range(49) for j in range(49)}[0, 0] == 84
    assert len(np.unique(entries("video_swin", 392, 392, "table", 2535))) == 2535


def test_beit_has_three_entries_for_the_class_token():
    found = entries("beit", 197, 197, "table", 732)
    assert (found[0, 0], set(found[0, 1:]), set(found[1:, 0])) == (731, {729}, {730})
    assert len(np.unique(found[1:, 1:])) == 729


def bucket(distance, exact, most):
    """T5's: exact up to a distance, then logarithmic up to 128."""
    if distance < exact:
        return distance
    return min(most, exact + math.floor(math.log(distance / exact) / math.log(128 / exact) * exact + 1e-9))


def test_buckets_of_t5():
    found = entries("t5_decoder", 300, 300, "bias", 32)
    assert [found[299, j] for j in range(300)] == [bucket(299 - j, 16, 31) for j in range(300)]
    found = entries("t5_encoder", 300, 300, "bias", 32)
    assert [found[150, j] for j in range(300)] == [bucket(abs(150 - j), 8, 15) + 16 * (j > 150) for j in range(300)]


def test_block_diffusion_is_three_parts():
    n, block = 64, 16
    found = seen("block_diffusion", 2 * n, 2 * n)
    for i in range(2 * n):
        own = i % n // block
        noised = range(own * block, (own + 1) * block) if i < n else ()
        clean = range(n, n + block * (own if i < n else own + 1))
        assert set(np.flatnonzero(found[i])) == {*noised, *clean}


def test_bigbird_has_global_blocks_at_both_ends():
    found = seen("bigbird", 640, 640, [300])[0]
    assert set(np.flatnonzero(found) // 64) == {0, 3, 4, 5, 9}
    assert seen("bigbird", 640, 640, [0, 639]).all()


@pytest.mark.parametrize(("name", "keys"), [
    ("strided", {*range(1000 - 128, 1001), *range(1000 % 128, 1001, 128)}),
    ("fixed", {*range(896, 1001), *(128 * n + i for n in range(7) for i in range(120, 128))}),
    ("logsparse", {1000, *(1000 - 2**i for i in range(10))}),
    ("streaming_llm", set(range(1001))),
    ("dilated", set(range(1000 - 508, 1001, 4))),
])  # fmt: skip
def test_keys_of_query_1000(name, keys):
    assert set(np.flatnonzero(seen(name, 1024, 1024, [1000])[0])) == keys


def test_chunks_of_retro_see_what_the_chunk_before_them_found():
    found = seen("retro", 200, 1024, [0, 62, 63, 126, 127])
    assert [set(np.flatnonzero(row) // 256) for row in found] == [set(), set(), {0}, {0}, {1}]


def test_atoms_see_the_128_around_the_32_that_they_are_among():
    centre = 15.5 + 32 * 5
    found = seen("alphafold3_atoms", 512, 512, [160, 191])
    assert all(set(np.flatnonzero(row)) == {j for j in range(512) if abs(j - centre) < 64} for row in found)


def test_compressed_keys_are_seen_from_their_last_token_on():
    found = seen("nsa_compressed", 128, 7, [30, 31, 46, 47, 127])
    assert found.sum(1).tolist() == [0, 1, 1, 2, 7]
