"""A cache of keys and values in pages, and attention of whatever tokens an engine has at a time: prompts, single tokens, or both."""

import numpy as np
from llama import COS, HEAD_DIM, KV_HEADS, LAYERS, POSITIONS, SIN, turned, xp

import flashgen

DTYPE = "float32"  # so that tokens are those of standard attention; "float16" is what tensor cores want
PAGE = 16  # keys of a page
SPEC = {"dtype": DTYPE, "head_dim": HEAD_DIM, "mask": "causal", "layout": "thd", "cache": {"page": PAGE}}


class Cache:
    """Keys and values of all layers and sequences in pages, dealt in any order."""

    def __init__(self, batch):
        columns = POSITIONS // PAGE
        self.table = xp.asarray(np.random.default_rng(0).permutation(batch * columns).reshape(batch, -1).astype(np.int32))
        shape = (LAYERS, 2, batch * columns, PAGE, KV_HEADS, HEAD_DIM)
        self.pages, self.lens = xp.zeros(shape, DTYPE), np.zeros(batch, np.int32)
        self.attention = flashgen.compile(SPEC)

    def attend(self, news):
        """The attention of a model, of so many new tokens of each sequence."""
        positions = xp.asarray(np.concatenate([np.arange(n - new, n) for n, new in zip(self.lens, news, strict=True)]))
        ends, lens = xp.asarray(np.cumsum([0, *news], dtype=np.int32)), xp.asarray(self.lens)

        def attend(layer, q, k, v):
            k_pages, v_pages = self.pages[layer]
            new = (x.astype(DTYPE) for x in (k, v))
            flashgen.append(*(k_pages, v_pages, *new, lens), block_table=self.table, cu_seqlens=ends, rotary=(COS, SIN), layout="thd")
            q = turned(q, positions).astype(DTYPE)
            return self.attention(q, k_pages, v_pages, cu_seqlens_q=ends, kv_lens=lens, block_table=self.table).astype("float32")

        return attend
