"""An engine's batches in one launch: single tokens with long caches beside prompts and chunks, queries packed, keys in pages or packed too.

    python benchmarks/mixed.py            # a table to the terminal
    python benchmarks/mixed.py --quick    # fewer repetitions

bfloat16, causal, 32 query and 8 key/value heads, head dim 128. `one piece`: the same with `split: 1`, where no keys are shared and each
query head has tiles of its own. `apart`: two calls, the single tokens by a spec of arrays [b, 1] and the others packed. `alike`: a sequence
has the same bits alone. Needs a GPU.
"""

import argparse
from typing import Any

import numpy as np
from decode import Shape, drawn
from paged import in_pages

from flashgen.api import Attention
from flashgen.bench.peers import to_torch
from flashgen.bench.timing import measure
from flashgen.runtime import arrays
from flashgen.runtime.clock import DeviceClock
from flashgen.spec import Spec

HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
TOKENS, ROOM = 64, 8192  # sequences of one query, and keys that a sequence may have
BATCHES: dict[str, list[tuple[int, int]]] = {  # queries and keys of each sequence
    "64 tokens": [(1, ROOM)] * TOKENS,
    "64 tokens, a prompt of 2048": [(1, ROOM)] * TOKENS + [(2048, 2048)],
    "64 tokens, a chunk of 512": [(1, ROOM)] * TOKENS + [(512, ROOM)],
    "a chunk of 512": [(512, ROOM)],
    "8 prompts of 2048": [(2048, 2048)] * 8,
}


def spec_of(layout: str, cache: Any, split: str | int = "invariant") -> Spec:
    """The spec of a layout and a cache."""
    return Spec(head_dim=HEAD_DIM, dtype="bfloat16", mask="causal", layout=layout, cache=cache, split=split, name="mixed")


def ends(lengths: Any) -> Any:
    """The ends of sequences one behind the other, from 0 on."""
    return arrays.cupy().asarray(np.cumsum([0, *lengths], dtype=np.int32))


class Batch:
    """The arrays of a batch, keys in pages."""

    def __init__(self, lengths: list[tuple[int, int]]):
        cp = arrays.cupy()
        self.lengths, batch = lengths, len(lengths)
        q, k, v = drawn(Shape(batch, max(n for n, _ in lengths), ROOM, HEADS, KV_HEADS, HEAD_DIM))
        self.q = q.reshape(-1, HEADS, HEAD_DIM)[: sum(n for n, _ in lengths)]
        self.table = cp.random.permutation(batch * ROOM // PAGE).astype("int32").reshape(batch, -1)
        self.kv = [in_pages(x, self.table, PAGE) for x in (k, v)]
        self.lens = cp.asarray([n for _, n in lengths], "int32")

    def call(self, attention: Attention, first: int = 0, last: int | None = None) -> Any:
        """A call on some of the sequences."""
        n = ends(n for n, _ in self.lengths)[first : None if last is None else last + 1]
        begin, end = int(n[0]), int(n[-1])
        q, n, out = self.q[begin:end], n - n[0], arrays.cupy().empty_like(self.q[begin:end])
        known = {"kv_lens": self.lens[first:last], "block_table": self.table[first:last]}
        return lambda: attention(q, *self.kv, cu_seqlens_q=n, out=out, **known)

    def tokens(self, attention: Attention) -> Any:
        """A call on the single tokens, by a spec of arrays [b, 1]."""
        q, known = self.q[:TOKENS, None], {"kv_lens": self.lens[:TOKENS], "block_table": self.table[:TOKENS]}
        out = arrays.cupy().empty_like(q)
        return lambda: attention(q, *self.kv, out=out, **known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    repetitions = 3 if parser.parse_args().quick else 9
    pages, clock, cp = {"page": PAGE}, DeviceClock(), arrays.cupy()
    shared, whole = (Attention(spec_of("thd", pages, split)) for split in ("invariant", 1))
    of_tokens = Attention(spec_of("bshd", pages))
    for name, lengths in BATCHES.items():
        batch = Batch(lengths)
        runs = {"one launch": batch.call(shared), "one piece": batch.call(whole)}
        parts = []
        if lengths[0][0] == 1:
            parts = [batch.tokens(of_tokens)] + ([batch.call(shared, TOKENS)] if len(lengths) > TOKENS else [])
            runs["apart"] = lambda parts=parts: [part() for part in parts]
        alone, together = batch.call(shared, len(lengths) - 1)(), runs["one launch"]()
        alike = bool((alone.view("uint16") == together[-len(alone) :].view("uint16")).all())
        off = float((to_torch(together).float() - to_torch(runs["one piece"]()).float()).abs().max())
        found = {part: 1e3 * timing.ms for part, timing in measure(runs, clock, repetitions).items()}
        moved = sum(4 * keys * KV_HEADS * HEAD_DIM for _, keys in lengths)
        flops = sum(4 * HEADS * HEAD_DIM * n * (keys - (n - 1) / 2) for n, keys in lengths)
        speed = f"{moved / found['one launch'] / 1e3:6.0f} GB/s, {flops / found['one launch'] / 1e6:4.0f} TFLOP/s"
        times = ", ".join(f"{part} {us:8.1f} us" for part, us in found.items())
        print(f"{name:28} {times}; {speed}; off {off:.1e}, alike {alike}", flush=True)
        del batch, runs, parts, together, alone
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
