"""The lower rungs of the ladder in NumPy, beside the kernels: standard attention, safe softmax in three passes, online softmax in two."""

import numpy as np

import flashgen

TILE = 64


def tiles(x):
    return [slice(i, i + TILE) for i in range(0, len(x), TILE)]


def scores(q, k):
    """In log2 units: exp(x) is 2^(x log2 e)."""
    return q @ k.T * np.float32(np.log2(np.e) / np.sqrt(q.shape[1]))


def standard(q, k, v):
    s = scores(q, k)
    p = np.exp2(s - s.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ v


def three_pass(q, k, v):
    m, l, o = np.full((len(q), 1), -np.inf, np.float32), 0, 0
    for keys in tiles(k):
        m = np.maximum(m, scores(q, k[keys]).max(1, keepdims=True))
    for keys in tiles(k):
        l = l + np.exp2(scores(q, k[keys]) - m).sum(1, keepdims=True)
    for keys in tiles(k):
        o = o + np.exp2(scores(q, k[keys]) - m) @ v[keys]
    return o / l


def two_pass(q, k, v):
    m, l, o = np.full((len(q), 1), -np.inf, np.float32), 0, 0
    for keys in tiles(k):
        s = scores(q, k[keys])
        before, m = m, np.maximum(m, s.max(1, keepdims=True))
        l = l * np.exp2(before - m) + np.exp2(s - m).sum(1, keepdims=True)
    for keys in tiles(k):
        o = o + np.exp2(scores(q, k[keys]) - m) @ v[keys]
    return o / l


def main() -> None:
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 1, 200, 1, 64), np.float32).astype(np.float16)
    for rung in (standard, three_pass, two_pass):
        attention = flashgen.compile({"dtype": "float16", "head_dim": 64, "schedule": rung.__name__})
        by_hand = rung(*(x[0, :, 0].astype(np.float32) for x in (q, k, v)))
        apart = abs(attention(q, k, v)[0, :, 0] - by_hand).max()
        print(f"{rung.__name__:10}  {attention.program.skeleton} agrees: {apart < 1e-3}")


if __name__ == "__main__":
    main()
