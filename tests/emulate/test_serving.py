"""Faults that public reports describe of serving: decoding, pages, packed batches, log-sum-exps; what is right is known by hand."""

import ml_dtypes
import numpy as np
import pytest

import flashgen
from flashgen.bench.paged import in_pages, table
from flashgen.errors import CallError
from flashgen.expr.meaning.reference import reference
from flashgen.spec import Spec
from tests.plan import gradients
from tests.plan.agreement import judge

PACKED = {"layout": "thd", "cache": {"page": 16}}
KINDS = {"dense": {}, "cached": {"cache": "contiguous"}, "paged": {"cache": {"page": 16}}, "packed": PACKED}


def ends(*lengths):
    return np.cumsum([0, *lengths], dtype=np.int32)


def decoded(kind, q, k, v, lens=None, backend="interpreter", arch="sm_80", **said):
    """o and lse [B, n, Hq, D] and [B, Hq, n] of the last queries of sequences, by each way to call attention for them."""
    (batch, n, heads, width), room = q.shape, k.shape[1]
    spec = Spec(**({"head_dim": width, "dtype": str(q.dtype), "mask": "causal", "outputs": ["o", "lse"]} | KINDS[kind] | said))
    lens = np.full(batch, room, np.int32) if lens is None else lens
    values = {"kv_lens": lens} if kind != "dense" else {}
    if spec.page:
        values["block_table"] = table(batch, room // spec.page, np.random.RandomState(0))
        k, v = (in_pages(spec, x.transpose(0, 2, 1, 3), values["block_table"]) for x in (k, v))
        for b, length in enumerate(lens):
            values["block_table"][b, -(-length // spec.page) :] = -1
    if kind == "packed":
        q, values["cu_seqlens_q"] = q.reshape(-1, heads, width), ends(*[n] * batch)
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v, **values)
    if kind == "packed":
        o, lse = o.reshape(batch, n, heads, width), lse.reshape(heads, batch, n).transpose(1, 0, 2)
    return o, lse


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_queries_see_what_they_see_in_the_whole(kind):
    rng = np.random.default_rng(3)
    for n, keys, backend in ((1, 17, "emulate"), (4, 17, "emulate"), (130, 257, "interpreter")):
        q, k, v = (rng.standard_normal((2, keys, 2, 16)).astype(np.float16) for _ in range(3))
        o, lse = decoded("dense", q, k, v)
        if kind != "dense":
            k, v = (np.pad(x, ((0, 0), (0, -keys % 16), (0, 0), (0, 0)), constant_values=np.nan) for x in (k, v))
        found, lse_found = decoded(kind, q[:, -n:], k, v, np.int32([keys, keys]), backend)
        np.testing.assert_allclose(found.astype(float), o[:, -n:].astype(float), atol=2e-3)
        np.testing.assert_allclose(lse_found, lse[..., -n:], atol=1e-3)


@pytest.mark.parametrize(("backend", "dtype"), [("interpreter", "bfloat16"), ("interpreter", "float16"), ("emulate", "float16")])
@pytest.mark.parametrize("kind", ["paged", "packed"])
def test_scores_below_any_made_up_minus_infinity(kind, backend, dtype):
    dtype = Spec(head_dim=8, dtype=dtype).element.numpy
    q, k = np.zeros((1, 3, 1, 128), dtype), np.zeros((1, 48, 1, 128), dtype)
    q[..., 0], q[..., 1], k[..., 0], k[0, :, 0, 1] = 448, 8, -1504, np.arange(48) % 5
    v = np.random.default_rng(5).standard_normal(k.shape).astype(dtype)
    weights = np.array([0.0038578, 0.0078240, 0.0158679, 0.0321819, 0.0652686])[np.arange(40) % 5]
    step = 4 * float(ml_dtypes.finfo(dtype).eps)
    for n in (3, 1):
        o, lse = decoded(kind, q[:, :n], k, v, np.int32([40]), backend, mask="full")
        np.testing.assert_allclose(lse, -59549.804, atol=0.02)
        wanted = np.broadcast_to(weights @ v[0, :40, 0].astype(float), (n, 128))
        np.testing.assert_allclose(o[0, :, 0].astype(float), wanted, rtol=2 * step, atol=step)
    o, _ = decoded(kind, q, k, v, np.int32([1]), backend, mask="full")
    assert (o[0] == v[0, 0]).all()


@pytest.mark.parametrize("kind", ["paged", "packed"])
def test_products_beyond_float16(kind):
    rng = np.random.default_rng(7)
    q, k = ((24 + 0.05 * rng.standard_normal((1, n, 1, 128))).astype(np.float16) for n in (3, 64))
    v = rng.standard_normal(k.shape).astype(np.float16)
    right = decoded("dense", *(x.astype(np.float32) for x in (q, k, v)), mask="full")
    for n in (3, 1):
        for x, y, most in zip(decoded(kind, q[:, :n], k, v, backend="emulate", mask="full"), right, (2e-3, 0.02), strict=True):
            np.testing.assert_allclose(x.astype(float), y[:, :n] if x.ndim == 4 else y[..., :n], atol=most)


@pytest.mark.parametrize("kind", ["dense", "paged", "packed"])
@pytest.mark.parametrize("backend", ["interpreter", "emulate"])
def test_which_head_reads_which(kind, backend):
    for heads, kv_heads in ((28, 4), (24, 4), (5, 1), (64, 4), (8, 8)):
        rng = np.random.default_rng(11)
        q, k = (rng.standard_normal((1, n, h, 16)).astype(np.float16) for n, h in ((1, heads), (112, kv_heads)))
        v = np.broadcast_to(np.arange(kv_heads, dtype=np.float16)[:, None], k.shape)
        o, _ = decoded(kind, q, k, v, np.int32([100]), backend)
        assert (o == (np.arange(heads) // (heads // kv_heads))[:, None]).all()
    q = np.ones((1, 1, 28, 16), np.float16)
    with pytest.raises(CallError, match=r"28.*3|3.*28"):
        decoded(kind, q, np.ones((1, 112, 3, 16), np.float16), np.ones((1, 112, 3, 16), np.float16))


@pytest.mark.parametrize("kind", ["cached", "paged", "packed"])
def test_no_sequence_at_all(kind):
    q, k = np.ones((0, 1, 4, 16), np.float16), np.ones((0, 32, 2, 16), np.float16)
    for backend in ("interpreter", "emulate"):
        o, lse = decoded(kind, q, k, k, backend=backend)
        assert (o.shape, lse.shape, o.dtype) == ((0, 1, 4, 16), (0, 4, 1), np.float16)


@pytest.mark.parametrize(("backend", "arch"), [("interpreter", "sm_90a"), ("emulate", "sm_90a"), ("emulate", "sm_80")])
def test_empty_sequences_beside_single_tokens(backend, arch):
    spec = Spec(head_dim=64, dtype="bfloat16", mask="causal", layout="thd", outputs=["o", "lse"])
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, h, 64)).astype(spec.element.numpy) for n, h in ((2, 9), (8, 3), (8, 3)))
    lengths = {"cu_seqlens_q": ends(1, 0, 1), "cu_seqlens_k": ends(3, 0, 5)}
    attention = flashgen.compile(spec, arch, backend)
    judge(spec, dict(zip(("o", "lse"), attention(q, k, v, **lengths), strict=True)), q, k, v, **lengths)
    nothing = dict.fromkeys(lengths, ends(0, 0))
    o, lse = attention(q[:0], k[:0], v[:0], check=True, **nothing)
    assert (o.shape, lse.shape) == ((0, 9, 64), (9, 0))


LONG = {"cu_seqlens_q": np.int32([0, 0, 1208, 2048, 2048]), "cu_seqlens_k": np.int32([0, 2538, 4280, 5120, 8192])}


@pytest.mark.parametrize(
    ("backend", "arch", "dtype", "head_dim"),
    [
        ("interpreter", "sm_90a", "float32", 128),
        ("emulate", "sm_90a", "float16", 128),
        ("emulate", "sm_80", "bfloat16", 16),
    ],
)
def test_long_sequences_without_queries_or_keys(backend, arch, dtype, head_dim):
    spec = Spec(head_dim=head_dim, dtype=dtype, mask="causal", layout="thd", outputs=["o", "lse"])
    rng, lengths = np.random.default_rng(0), LONG
    q, k, v = (rng.standard_normal((n, h, head_dim)).astype(spec.element.numpy) for n, h in ((2048, 2), (8192, 1), (8192, 1)))
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v, **lengths)
    judge(spec, {"o": o, "lse": lse}, q, k, v, **lengths)


@pytest.mark.parametrize(("backend", "arch"), [("interpreter", "sm_90a"), ("emulate", "sm_90a")])
def test_gradients_of_keys_without_queries_are_zeros(backend, arch):
    spec = Spec(head_dim=16, dtype="bfloat16", mask="causal", layout="thd", backward=True)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, h, 16)).astype(spec.element.numpy) for n, h in ((2048, 2), (8192, 1), (8192, 1)))
    call = gradients.completed(spec, q, k, v, **LONG)
    found = flashgen.compile(spec, arch, backend).backward(**vars(call), **LONG)
    gradients.judge(spec, dict(zip(("dq", "dk", "dv"), found, strict=True)), call, **LONG)
    for x in found[1:]:
        assert not x[:2538].any()
        assert not x[5120:].any()


@pytest.mark.parametrize(("backend", "arch"), [("interpreter", "sm_90a"), ("emulate", "sm_90a"), ("emulate", "sm_80")])
def test_buffers_that_are_longer_than_their_sequences(backend, arch):
    spec = Spec(head_dim=64, dtype="float16", mask="causal", layout="thd", outputs=["o", "lse"])
    q, k, v = (np.random.default_rng(0).standard_normal((3, 160, 2, 64))).astype(np.float16)
    q[128:], k[128:], v[128:] = 7, 7, 7
    lengths = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ends(60, 68))
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v, **lengths)
    judge(spec, {"o": o[:128], "lse": lse[:, :128]}, q[:128], k[:128], v[:128], **lengths)
    assert not o[128:].any()
    assert (lse[:, 128:] == -np.inf).all()


def test_rows_of_no_sequence_are_refused_where_somebody_looks():
    """Buffers that are longer than the sequences in them."""
    spec = Spec(head_dim=16, dtype="float16", mask="causal", layout="thd")
    q = np.ones((160, 2, 16), np.float16)
    lengths = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ends(60, 68))
    for backend in ("interpreter", "emulate"):
        with pytest.raises(CallError, match="cu_seqlens_q begins with 0 and ends with 128: expected 0 and 160"):
            flashgen.compile(spec, "sm_80", backend)(q, q, q, check=True, **lengths)


@pytest.mark.parametrize(("kind", "arch", "page"), [("paged", "sm_80", 4), ("packed", "sm_90a", 16), ("cached", "sm_80", 0)])
def test_places_behind_the_last_key_hold_anything(kind, arch, page):
    """The same bits as with zeros there, in pages that no sequence has and in unused places of the last."""
    lens, rng = np.int32([32, 64, 96, 48, 1, 13]), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((6, n, h, 64)).astype(np.float16) for n, h in ((1, 8), (128, 2), (128, 2)))
    found = []
    for held in (0, np.nan, np.inf):
        for b, n in enumerate(lens):
            k[b, n:], v[b, n:] = held, held
        found.append(decoded(kind, q, k, v, lens, "emulate", arch, **({"cache": {"page": page}} if page else {})))
    for o, lse in found:
        assert np.isfinite(o.astype(float)).all()
        assert (o.tobytes(), lse.tobytes()) == tuple(x.tobytes() for x in found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_log_sum_exp_has_one_base_and_halves_merge(kind):
    """q is 0, so that a log-sum-exp is that of the number of keys; the values of a tenth of them are -1."""
    q, ones = np.zeros((1, 1, 2, 64), np.float16), np.ones((1, 1024, 1, 64), np.float16)
    parts = []
    for value, n in ((1, 900), (-1, 100)):
        keys = ones[:, :n] if kind == "dense" else ones
        parts.append(decoded(kind, q, keys, value * keys, np.int32([n]), "emulate"))
    assert [float(lse[0, 0, 0]) for _, lse in parts] == pytest.approx([np.log(900), np.log(100)], abs=1e-4)
    o, lse = flashgen.merge_states(*parts[0], *parts[1])
    np.testing.assert_allclose(o.astype(float), 0.8, rtol=1e-3)
    np.testing.assert_allclose(lse, np.log(1000), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [1, 5, "invariant"])
def test_parts_merge_to_the_whole(kind, split):
    """The log-sum-exp of each kind of call says how much a part weighs, whole or in shares."""
    rng, at = np.random.default_rng(20), 4096
    q, k, v = (rng.standard_normal((1, n, h, 32)).astype(np.float16) for n, h in ((33, 2), (4160, 1), (4160, 1)))
    said = {"mask": "full", "split": split}
    parts = [decoded(kind, q, k[:, part], v[:, part], **said) for part in (slice(at), slice(at, None))]
    for x, y, most in zip(flashgen.merge_states(*parts[0], *parts[1]), decoded("dense", q, k, v, mask="full"), (1e-3, 1e-5), strict=True):
        np.testing.assert_allclose(x.astype(float), y.astype(float), atol=most)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_many_keys_in_shares(kind):
    """Equal keys give 1 exactly; the error of others does not grow with them."""
    spec = Spec(head_dim=64, dtype="bfloat16")
    q, ones = np.zeros((1, 8, 1, 64), spec.element.numpy), np.ones((1, 131072, 1, 64), spec.element.numpy)
    o, lse = decoded(kind, q, 0 * ones, ones, mask="full", split=32)
    assert (o == 1).all()
    np.testing.assert_allclose(lse, 11.783502, atol=1e-4)
    rng, off = np.random.default_rng(8), []
    for keys in (1024, 65536):
        q, k, v = (rng.standard_normal((1, n, 1, 64)).astype(spec.element.numpy) for n in (16, keys, keys))
        v = (v.astype(np.float32) + 0.5).astype(v.dtype)
        o, _ = decoded(kind, q, k, v, mask="full", split=32, out_dtype="float32")
        off.append(np.abs(o - reference(spec, q, k, v)[0]).max())
    assert off[1] <= off[0] <= 3e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_has_the_same_bits_alone_and_in_company(kind):
    rng = np.random.default_rng(25)
    q, k, v = (rng.standard_normal((9, n, h, 16)).astype(np.float16) for n, h in ((1, 4), (4112, 2), (4112, 2)))
    lens = np.int32([4097, *rng.integers(0, 4112, 8)])
    for split in ("invariant", 7):
        together = decoded(kind, q, k, v, lens, split=split)
        alone = decoded(kind, q[:1], k[:1], v[:1], lens[:1], split=split)
        assert [x.tobytes() for x in alone] == [x[:1].tobytes() for x in together]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "keys"), [(0, 48), (5, 0), (0, 0)])
def test_without_queries_or_without_keys(kind, n, keys):
    q, k = np.ones((2, n, 4, 16), np.float16), np.ones((2, keys, 2, 16), np.float16)
    for backend in ("interpreter", "emulate"):
        o, lse = decoded(kind, q, k, k, backend=backend)
        assert (o.shape, lse.shape) == ((2, n, 4, 16), (2, 4, n))
        assert not o.any()
        assert (lse == -np.inf).all()
