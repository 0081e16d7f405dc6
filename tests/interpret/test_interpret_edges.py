"""The interpreter where attention kernels have gone wrong: rows without keys, windows, range of numbers, heads, lengths, strides."""

import numpy as np
import pytest

from flashgen.expr.meaning.reference import reference
from flashgen.plan.search import plan
from flashgen.spec import Spec
from flashgen.theory.schedule import State, finish, merge_states
from tests.plan.agreement import SCHEDULES, SLACK, arrays, check, error, run

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


@every_schedule
@pytest.mark.parametrize("dtype", sorted(SLACK))
def test_rows_without_keys(dtype, schedule):
    spec = Spec(
        head_dim=64,
        dtype=dtype,
        layout="bhsd",
        mask="seen[b, h, q_idx, kv_idx]",
        tensors={"seen": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": "bool"}},
        block={"m": 32, "n": 32},
        schedule=SCHEDULES[schedule],
    )
    empty = [0, 31, 32, 63, 64, 69]
    seen = np.random.default_rng(7).random((1, 2, 70, 70)) > 0.3
    seen[0, 1, empty] = False
    o, lse = check(spec, *arrays(spec, 1, 2, 2, 70, 70, seed=1), seen=seen)
    assert (o[0, 1, empty] == 0).all()
    assert (lse[0, 1, empty] == -np.inf).all()
    assert np.isfinite(lse[0, 0]).all()


@every_schedule
def test_more_queries_than_keys(schedule):
    spec = Spec(head_dim=64, dtype="float16", mask="causal", schedule=SCHEDULES[schedule])
    o, lse = check(spec, *arrays(spec, 2, 3, 3, 300, 130, seed=2))
    assert (o[:, :170] == 0).all()
    assert (lse[..., :170] == -np.inf).all()
    assert np.isfinite(lse[..., 170:]).all()


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 17), (4, 17), (130, 257)])
def test_the_last_queries_see_what_they_see_in_the_whole(q_len, kv_len):
    spec = Spec(head_dim=64, dtype="float32", mask="causal")
    q, k, v = arrays(spec, 2, 2, 2, kv_len, kv_len, seed=3)
    whole, part = run(spec, q, k, v), run(spec, q[:, -q_len:], k, v)
    assert error(part[0], whole[0][:, -q_len:]) < 1e-5
    assert error(part[1], whole[1][..., -q_len:]) < 1e-5
    top_left = Spec(head_dim=64, dtype="float32", mask="causal_top_left")
    np.testing.assert_array_equal(run(top_left, q[:, -1:], k, v)[0][:, 0], v[:, 0])


@pytest.mark.parametrize(
    ("mask", "counts"),
    [
        ("window(2, 1)", [2, 3, 4, 4, 4, 4, 4, 4, 4, 3]),
        ("window(3, 0)", [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]),
        ("window(0, 0)", [1] * 10),
        ("window(-1, 0)", range(1, 11)),
        ("window(9, 0)", range(1, 11)),
        ("window(8, 0)", [*range(1, 10), 9]),
        ("window(-1, -1)", [10] * 10),
        ("window(-1, 2)", [3, 4, 5, 6, 7, 8, 9, 10, 10, 10]),
        ("causal & window(3, 5)", [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]),
    ],
)
def test_edges_of_windows(mask, counts):
    """Equal scores and v = 2^j: o times the count is the set of keys seen."""
    spec = Spec(head_dim=16, dtype="float32", mask=mask, block={"m": 4, "n": 4})
    q, k, _ = arrays(spec, 1, 1, 1, 10, 10)
    v = np.broadcast_to(np.float32(2.0) ** np.arange(10)[:, None, None], (10, 1, 16))[None]
    o, _ = run(spec, 0 * q, k, v)
    seen = np.round(o[0, :, 0, 0] * np.array(counts)).astype(int)
    assert [s.bit_count() for s in seen.tolist()] == list(counts)


def test_windows_that_reach_the_first_key_are_causal():
    results = []
    for mask in ("causal", "window(-1, 0)", "window(299, 0)", "window(300, 0)"):
        spec = Spec(head_dim=64, dtype="float32", mask=mask)
        results.append(run(spec, *arrays(spec, 1, 1, 1, 300, 300, seed=4))[0])
    for o in results[1:]:
        assert error(o, results[0]) < 1e-5


# Range of numbers ------------------------------------------------------------------------------------------------------


@every_schedule
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scores_below_any_made_up_minus_infinity(dtype, schedule):
    spec = Spec(head_dim=128, dtype=dtype, block={"m": 16, "n": 16}, schedule=SCHEDULES[schedule])
    q, k, v = arrays(spec, 1, 1, 1, 3, 40, seed=5)
    q[:], k[:] = 0, 0
    q[..., 0], q[..., 1], k[..., 0], k[0, :, 0, 1] = 448, 8, -1504, np.arange(40) % 5
    o, lse = check(spec, q, k, v, lse_tolerance=0.02)
    assert error(lse, np.full((1, 1, 3), -59549.804)) < 0.02
    weights = np.array([0.0038578, 0.0078240, 0.0158679, 0.0321819, 0.0652686])[np.arange(40) % 5]
    assert error(o[0, :, 0], np.broadcast_to(weights @ v[0, :, 0].astype(float), (3, 128))) < 0.02
    np.testing.assert_array_equal(run(spec, q, k[:, :1], v[:, :1])[0], np.broadcast_to(v[:, :1], q.shape))


@every_schedule
@pytest.mark.parametrize("value", [133120, 150528])
def test_huge_equal_scores(value, schedule):
    spec = Spec(head_dim=64, dtype="bfloat16", block={"m": 16, "n": 2}, schedule=SCHEDULES[schedule])
    for keys in (1, 7):
        q, k, v = arrays(spec, 1, 1, 1, 1, keys)
        q[:], k[:], v[:] = value, value, np.arange(1, keys + 1)[:, None, None]
        o, lse = run(spec, q, k, v)
        np.testing.assert_array_equal(o.astype(float), (keys + 1) / 2)
        np.testing.assert_allclose(lse, 8 * float(value) ** 2 + np.log(keys), rtol=1e-6)


def test_products_beyond_float16():
    spec = Spec(head_dim=128, dtype="float16", layout="bhsd")
    random = np.random.default_rng(7)
    q, k = ((24 + 0.05 * random.standard_normal((1, 2, n, 128))).astype(np.float16) for n in (16, 64))
    check(spec, q, k, random.standard_normal((1, 2, 64, 128)).astype(np.float16), lse_tolerance=0.02)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_many_equal_keys(dtype):
    spec = Spec(head_dim=64, dtype=dtype)
    q, k, v = (np.full((1, n, 1, 64), x, spec.element.numpy) for n, x in ((8, 0), (131072, 0), (131072, 1)))
    o, lse = run(spec, q, k, v)
    assert (o == 1).all()
    assert error(lse, np.full((1, 1, 8), 11.783502)) < 1e-4


def test_the_error_does_not_grow_with_the_keys():
    spec = Spec(head_dim=64, dtype="bfloat16")
    for kv_len in (1024, 16384):
        q, k, v = arrays(spec, 1, 1, 1, 16, kv_len, seed=8)
        v = (v.astype(np.float32) + 0.5).astype(v.dtype)
        assert error(run(spec, q, k, v)[0], reference(spec, q, k, v)[0]) < 3e-3


@every_schedule
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_infinite_and_undefined_scores(mask, value, schedule):
    """They reach the rows that see them, and no other."""
    spec = Spec(head_dim=8, dtype="float32", mask=mask, block={"m": 8, "n": 8}, schedule=SCHEDULES[schedule])
    q, k, v = arrays(spec, 1, 2, 2, 30, 30)
    q[..., 0], k[0, 13, 1, 0] = np.abs(q[..., 0]) + 1, value
    check(spec, q, k, v)


# Scores, heads, shapes -------------------------------------------------------------------------------------------------


def test_softcap_by_hand():
    spec = Spec(head_dim=64, dtype="float32", score="softcap * tanh(s / softcap)", params={"softcap": 20.0})
    q, k, v = arrays(spec, 1, 1, 1, 1, 2)
    q[:], k[:], v[:] = 0, 0, 0
    q[..., 0], k[0, :, 0, 0], v[0, 0] = 240, (1, 0.9), 1
    assert run(spec, q, k, v)[0][0, 0, 0, 0] == pytest.approx(0.650650, abs=1e-6)
    results = [check(spec, q, k, v, softcap=c)[0][0, 0, 0, 0] for c in (15.0, 30.0, 1e6)]
    assert results[0] < results[1] < results[2] == pytest.approx(0.952574, abs=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(28, 4), (24, 4), (5, 1), (64, 4), (8, 8)])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 100), (65, 65)])
def test_which_head_reads_which(heads, kv_heads, q_len, kv_len):
    spec = Spec(head_dim=64, dtype="float16")
    q, k, v = arrays(spec, 2, heads, kv_heads, q_len, kv_len, seed=11)
    v[:] = np.arange(kv_heads)[:, None]
    o, _ = run(spec, q, k, v)
    np.testing.assert_array_equal(o, np.broadcast_to((np.arange(heads) // (heads // kv_heads))[:, None], o.shape))


@pytest.mark.parametrize("head_dim", [1, 40, 72, 100, {"qk": 192, "v": 128}, 512])
def test_head_dims(head_dim):
    spec = Spec(head_dim=head_dim, dtype="bfloat16", mask="causal")
    check(spec, *arrays(spec, 1, 2, 1, 130, 200, seed=13))


@every_schedule
@pytest.mark.parametrize(("q_len", "kv_len"), [(192, 192), (1, 1), (137, 192), (192, 137), (129, 255)])
def test_nothing_beyond_the_end_is_read(q_len, kv_len, schedule):
    """The arrays are views; what follows them in memory is NaN."""
    spec = Spec(head_dim=16, dtype="bfloat16", layout="bhsd", schedule=SCHEDULES[schedule])
    q, k, v = arrays(spec, 1, 2, 2, q_len, kv_len, seed=14)
    surrounded = []
    for x in (q, k, v):
        wide = np.full((1, 2, x.shape[2] + 64, 16), np.nan, x.dtype)
        wide[:, :, : x.shape[2]] = x
        surrounded.append(wide[:, :, : x.shape[2]])
    o, _ = check(spec, *surrounded)
    assert np.isfinite(o.astype(float)).all()


@pytest.mark.parametrize("length", [1, 2, 63, 65, 127, 129, 137, 192, 255, 1025])
def test_tiles_larger_than_what_is_left(length):
    spec = Spec(head_dim=16, dtype="bfloat16", block={"m": 128, "n": 128})
    check(spec, *arrays(spec, 1, 2, 2, length, length, seed=14))


@every_schedule
@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(0, 5, 5), (1, 0, 5), (1, 5, 0), (1, 0, 0)])
@pytest.mark.parametrize("mask", ["full", "causal", "(kv_idx < 1) | (h == 0)"])
def test_sizes_of_zero(batch, q_len, kv_len, mask, schedule):
    spec = Spec(head_dim=64, dtype="float16", mask=mask, schedule=SCHEDULES[schedule])
    o, lse = run(spec, *arrays(spec, batch, 2, 2, q_len, kv_len))
    assert o.shape == (batch, q_len, 2, 64)
    assert lse.shape == (batch, 2, q_len)
    if kv_len == 0:
        assert (o == 0).all()
        assert (lse == -np.inf).all()


def test_many_small_problems():
    spec = Spec(head_dim=16, dtype="float16", mask="causal")
    q, k, v = arrays(spec, 70000, 1, 1, 1, 1)
    np.testing.assert_array_equal(run(spec, q, k, v)[0], v)


def test_strides_do_not_matter():
    spec = Spec(head_dim=32, dtype="float16", layout="bhsd")
    q, k, v = arrays(spec, 2, 3, 3, 40, 40, seed=21)
    packed = np.stack([x.swapaxes(1, 2) for x in (q, k, v)], axis=2)  # [B, S, 3, H, D]
    spread = [np.repeat(x, 2, axis=-1)[..., ::2] for x in (q, k, v)]
    one_head = [x[:, :1] for x in (k, v)]
    for views in (
        [packed[:, :, i].swapaxes(1, 2) for i in range(3)],
        [x[..., ::-1, :] for x in (q, k, v)],
        [q, *(np.broadcast_to(x, q.shape) for x in one_head)],
        spread,
        [np.asfortranarray(x) for x in (q, k, v)],
        [q, k, spread[2]],
    ):
        copies = [x.copy() for x in views]
        for a, b in zip(run(spec, *views), run(spec, *copies), strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(views, copies, strict=True):
            np.testing.assert_array_equal(a, b)


def test_halves_merge_to_the_whole():
    spec = Spec(head_dim=32, dtype="float32", layout="bhsd")
    q, k, v = arrays(spec, 1, 2, 2, 33, 4160, seed=20)
    halves = [run(spec, q, k[:, :, part], v[:, :, part]) for part in (slice(0, 4096), slice(4096, None))]
    o, lse = finish(plan(spec, "host").softmax, merge_states(*(State(x / np.log(2), np.ones_like(x), o) for o, x in halves)))
    whole = run(spec, q, k, v)
    assert error(o, whole[0]) < 1e-6
    assert error(lse * np.log(2), whole[1]) < 1e-5


def test_tables_are_read_inside_only():
    """Tables of exactly the sequence's length, at the end of an allocation."""
    spec = Spec(
        head_dim=8,
        dtype="float32",
        score="s + of_q[q_idx] + of_k[kv_idx]",
        mask="same[q_idx] == same[kv_idx]",
        tensors={x: {"shape": ["kv_len"], "dtype": t} for x, t in (("of_q", "float32"), ("of_k", "float32"), ("same", "int32"))},
    )
    random = np.random.default_rng(33)
    values = {x: random.standard_normal(300).astype(np.float32) for x in ("of_q", "of_k")} | {"same": random.integers(0, 3, 300, np.int32)}
    check(spec, *arrays(spec, 1, 1, 1, 300, 300), **values)
