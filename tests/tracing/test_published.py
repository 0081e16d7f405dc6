"""Functions of the kinds that users of FlexAttention publish: traced, they hide and score what they hide and score number by number."""

import math

import numpy as np
import pytest

import flashgen
from flashgen.errors import SpecError
from flashgen.tracing import trace

N, H = 48, 4
RANDOM = np.random.default_rng(0)
OFFSETS = np.array([0, 10, 25, N])  # int64, as NumPy and PyTorch make them
DOCUMENT = np.repeat(np.arange(3), np.diff(OFFSETS))
PREFIX_OF = np.array([0, 0, 2])
SEEN = RANDOM.random((6, 6)) < 0.4
IMAGE = np.repeat(np.arange(3), 16)
SPANS = np.array([[0, 10], [10, 30], [20, N]])
GLOBAL = RANDOM.random(N) < 0.1
HALF, BLOCK, WIDE = 24, 4, 7.0


def packed(b, h, q, k):  # noqa: ARG001
    """Causal in each document, by indices of its own."""
    return (DOCUMENT[q] == DOCUMENT[k]) & (q - OFFSETS[DOCUMENT[q]] >= k - OFFSETS[DOCUMENT[k]])


def shared_prefix(b, h, q, k):  # noqa: ARG001
    """Documents that continue another see all of it."""
    of = PREFIX_OF[DOCUMENT[q]]
    return (k >= OFFSETS[DOCUMENT[q]]) & (q >= k) | (DOCUMENT[q] != of) & (k >= OFFSETS[of]) & (k < OFFSETS[of + 1])


def diffusion(b, h, q, k):  # noqa: ARG001
    """Noised blocks beside their clean ones."""
    noised, key_noised = q < HALF, k < HALF
    block, key_block = q % HALF // BLOCK, k % HALF // BLOCK
    same = (block == key_block) & (noised == key_noised)
    return same | (block > key_block) & (noised != False) & ~key_noised | (block >= key_block) & ~noised & ~key_noised  # noqa: E712


MASKS = {
    "documents": packed,
    "a prefix that documents share": shared_prefix,
    "block diffusion": diffusion,
    "images": lambda b, h, q, k: (q >= SPANS[IMAGE[k], 0]) & (q < SPANS[IMAGE[k], 1]),  # noqa: ARG005
    "blocks by a table": lambda b, h, q, k: SEEN[q // 8, k // 8],  # noqa: ARG005
    "global tokens": lambda b, h, q, k: (abs(q - k) <= 3) | GLOBAL[q] | GLOBAL[k],  # noqa: ARG005
    "neighbours of a canvas": lambda b, h, q, k: (abs(np.clip(q // 8, 1, 4) - k // 8) <= 1) & (abs(q % 8 - k % 8) <= 1),  # noqa: ARG005
    "a stripe of frames": lambda b, h, q, k: abs(q - k) < math.floor(WIDE * 2 / BLOCK) * BLOCK,  # noqa: ARG005
    "one of two": lambda b, h, q, k: (q % 2 == 0) ^ (k % 3 == 0),  # noqa: ARG005
    "bits of an index": lambda b, h, q, k: (q >> 3) >= (k >> 3) << 1,  # noqa: ARG005
    "sums of ids": lambda b, h, q, k: DOCUMENT[q] + DOCUMENT[k] < 3,  # noqa: ARG005
}
TABLE, NOISE = (RANDOM.standard_normal((H, n)).astype(np.float32) for n in (6, 2 * N))
DISTANCES = RANDOM.integers(0, 5, (N, N))
SCORES = {
    "spatial bias": lambda s, b, h, q, k: s + TABLE[h, DISTANCES[q, k]],  # noqa: ARG005
    "relative bias": lambda s, b, h, q, k: s + NOISE[h, q - k + N],  # noqa: ARG005
    "buckets": lambda s, b, h, q, k: s + NOISE[h, np.clip(np.floor(np.log2(abs(q - k) + 1.5) * 3).astype(np.int64), 0, 31)],  # noqa: ARG005
    "some heads hide": lambda s, b, h, q, k: np.where(h % 2 == 0, np.where(q - k < 8, s, -np.inf), np.where(k == 0, -s, s)),  # noqa: ARG005
    "alibi": lambda s, b, h, q, k: s - abs(q - k).astype(s.dtype) * np.exp2(-((h + 1) * 8.0 / H)),  # noqa: ARG005
    "ceilings": lambda s, b, h, q, k: s + np.ceil((q - k) / 5),  # noqa: ARG005
}


def qkv():
    q, k = RANDOM.standard_normal((2, 2, N, H, 16)).astype(np.float32)
    return q, k, np.broadcast_to(np.eye(N, dtype=np.float32)[:, None], (2, N, H, N))


GRID = np.ix_(*map(np.arange, (2, H, N, N)))


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    q, k, v = qkv()
    found = flashgen.attention(0 * q, k, v, MASKS[name]).swapaxes(1, 2) > 0
    np.testing.assert_array_equal(found, np.broadcast_to(MASKS[name](*GRID), found.shape))


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    q, k, v = qkv()
    s = SCORES[name](np.einsum("bqhd,bkhd->bhqk", q, k) / 4, *GRID)
    weights = np.exp(s - s.max(-1, keepdims=True))
    found = flashgen.attention(q, k, v, "full", score=SCORES[name]).swapaxes(1, 2)
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True), atol=2e-5)


def scored(f):
    return lambda s, _b, _h, _q, _k: f(s)


def test_functions_of_pytorch():
    functional = pytest.importorskip("torch.nn.functional")
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.tensor, qkv())
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4
    for f in (
        *(functional.relu, functional.silu, functional.elu, functional.leaky_relu, functional.hardtanh, functional.gelu),
        *(functional.softplus, functional.logsigmoid, lambda x: functional.gelu(x, approximate="tanh"), lambda x: x.clamp(max=0.5)),
        *(lambda x: torch.clamp(x, min=-0.5), lambda x: x.to(torch.float32).to(x.dtype)),
    ):
        found = flashgen.attention(q, k, v, "full", score=scored(f))
        assert torch.allclose(found.transpose(1, 2), f(s).softmax(-1), atol=2e-5), f


def shifted(b, h, q, k):  # noqa: ARG001
    return 1 << q > k


def product(s, b, h, q, k):  # noqa: ARG001
    return s @ TABLE


def rounded(s, b, h, q, k):  # noqa: ARG001
    return np.clip(s, [0.0, 1.0], None)


def masked_by_bits(b, h, q, k):  # noqa: ARG001
    return (q & 3 == 0) | (k < q)


def joined(b, h, q, k):  # noqa: ARG001
    return SEEN[q // 8, 0] + (k < 3) > 1


def of_other_axes(s, b, h, q, k):  # noqa: ARG001
    return s + TABLE[h, 7]


MISTAKES = {
    shifted: "rlshift",
    product: "matmul",
    rounded: "a list is no value",
    masked_by_bits: "joins conditions, this is an integer",
    joined: "expected a number, this is a condition",
    of_other_axes: "has 6 entries along this axis, and none at 7",
}


@pytest.mark.parametrize(("function", "message"), MISTAKES.items(), ids=[function.__name__ for function in MISTAKES])
def test_what_no_expression_has_is_refused_at_its_line(function, message):
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(SpecError, match=rf"test_published.py:{line}:\d+: (.|\n)*{message}"):
        trace(**{"score" if "s" in function.__code__.co_varnames else "mask": function})
