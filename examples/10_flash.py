"""The upper rungs of the ladder in NumPy, beside the kernels: one pass, by FlashAttention 1, 2 and 3."""

from importlib import import_module

import numpy as np

import flashgen

scores, tiles = import_module("09_passes").scores, import_module("09_passes").tiles


def start(q, v):
    return np.full((len(q), 1), -np.inf, np.float32), *(np.zeros((len(q), n), np.float32) for n in (1, v.shape[1]))


def flash_1(q, k, v):
    m, l, o = start(q, v)  # in global memory
    for keys in tiles(k):
        for rows in tiles(q):
            s = scores(q[rows], k[keys])
            top = np.maximum(m[rows], s.max(1, keepdims=True))
            p, kept = np.exp2(s - top), l[rows] * np.exp2(m[rows] - top)
            m[rows], l[rows] = top, kept + p.sum(1, keepdims=True)
            o[rows] = (o[rows] * kept + p @ v[keys]) / l[rows]
    return o


def flash_2(q, k, v, threshold=0.0):  # 8.0: lazy
    m, l, o = start(q, v)
    for keys in tiles(k):
        s = scores(q, k[keys])
        top = np.maximum(m, s.max(1, keepdims=True))
        before, m = m, np.where(top > m + threshold, top, m)
        p = np.exp2(s - m)
        l, o = l * np.exp2(before - m) + p.sum(1, keepdims=True), o * np.exp2(before - m) + p @ v[keys]
    return o / l


def flash_3(q, k, v):
    m, l, o, p, last = *start(q, v), np.zeros((len(q), 0), np.float32), slice(0, 0)
    for keys in tiles(k):
        s = scores(q, k[keys])
        o = o + p @ v[last]  # on the tensor cores, beside the exponentials of this tile
        before, m = m, np.maximum(m, s.max(1, keepdims=True))
        p, last = np.exp2(s - m), keys
        l, o = l * np.exp2(before - m) + p.sum(1, keepdims=True), o * np.exp2(before - m)
    return (o + p @ v[last]) / l


def main() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 200, 1, 64), np.float32).astype(np.float16)
    one, first = {"passes": 1, "rescale": "always"}, {"normalize": "each_step", "outer": "kv"}
    for rung, schedule in {flash_1: one | first, flash_2: one, flash_3: one}.items():
        attention = flashgen.compile({"dtype": "float16", "head_dim": 64, "schedule": schedule})
        apart = abs(attention(q, k, v)[0, :, 0] - rung(*(x[0, :, 0].astype(np.float32) for x in (q, k, v)))).max()
        print(f"{rung.__name__}  {attention.program.skeleton} agrees: {apart < 1e-3}")


if __name__ == "__main__":
    main()
