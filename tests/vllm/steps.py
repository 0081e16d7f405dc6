"""Steps of an engine, drawn, and what a loop over their sequences computes in float64."""

import numpy as np

from flashgen.bench.paged import table
from flashgen.vllm.layer import Batch

HEADS, KV_HEADS, D, PAGE, COLUMNS = 4, 2, 16, 16, 3
ALL = {"window": 20, "softcap": 5.0, "sinks": "float32", "slopes": "float32"}
KINDS = {"plain": {}, "window": {"window": 9}, "softcap": {"softcap": 3.0}, "sinks": {"sinks": "float32"}, "all": ALL}


class Step:
    """A step: arrays of a batch, and beside them each sequence's own keys and values. `fill`: tokens that only fill it up."""

    def __init__(self, lengths, fill, kind, tokens_inside):
        self.rng, new = np.random.RandomState(len(lengths)), [n for n, _ in lengths]
        self.total, rest = sum(new), [0] * fill
        self.q, self.k, self.v = (self.rng.standard_normal((self.total + fill, h, D)).astype("f2") for h in (HEADS, KV_HEADS, KV_HEADS))
        self.out = np.full(self.q.shape, np.nan, "f2")
        shape = (len(lengths) * COLUMNS + 2, KV_HEADS, PAGE, 2 * D)
        self.cache = np.full(shape, np.nan, "f2") if tokens_inside else np.full(np.take(shape, (0, 2, 1, 3)), np.nan, "f2").swapaxes(1, 2)
        lens = [n + m if n else 0 for n, m in lengths] + rest
        self.batch = Batch(
            cu_seqlens_q=np.cumsum([0, *new, *rest], dtype=np.int32),
            kv_lens=np.array(lens, np.int32),
            block_table=np.concatenate((table(len(lengths), COLUMNS, self.rng), np.zeros((fill, COLUMNS), np.int32))),
            tokens=self.total + fill,
            longest=max(1, *new),
        )
        self.ends = self.batch.cu_seqlens_q[: len(lengths) + 1]
        self.before = [self.rng.standard_normal((m if n else 0, KV_HEADS, 2 * D)).astype("f2") for n, m in lengths]
        for b, rows in enumerate(self.before):
            for i, row in enumerate(rows):
                self.cache[self.batch.block_table[b, i // PAGE], :, i % PAGE] = row
        values = {"sinks": self.rng.standard_normal(HEADS), "slopes": 0.5 ** np.arange(1, HEADS + 1)}
        self.values = {name: x.astype(np.float32) for name, x in values.items() if name in kind}

    def expected(self, layer):
        """The rows of tokens, sequence by sequence in float64."""
        parts = []
        for begin, end, before in zip(self.ends, self.ends[1:], self.before, strict=False):
            rows = np.concatenate((before, np.concatenate((self.k, self.v), -1)[begin:end])).astype(float).repeat(HEADS // KV_HEADS, 1)
            k, v = rows[..., :D], rows[..., D:]
            behind = np.arange(len(before), len(rows))[:, None] - np.arange(len(rows))
            s = layer.scale * np.einsum("qhd,khd->hqk", self.q[begin:end], k)
            s = s if layer.softcap is None else layer.softcap * np.tanh(s / layer.softcap)
            s -= self.values["slopes"][:, None, None] * behind if layer.slopes else 0
            weights = np.exp(np.where((behind >= 0) & (behind < (layer.window or len(rows))), s, -np.inf))
            sums = weights.sum(-1, keepdims=True) + (np.exp(self.values["sinks"])[:, None, None] if layer.sinks else 0)
            parts.append(np.einsum("hqk,khd->qhd", weights / sums, v))
        return np.concatenate(parts)
