"""Lists of blocks beside dense attention of the same run and FlexAttention: share of the key tiles, and of the time. bfloat16.

    python benchmarks/lists.py                            # benchmarks/results/lists_<card>.json
    python benchmarks/lists.py --quick                    # fewer repetitions; --no-flex: without FlexAttention
    python benchmarks/lists.py --head-dims 128            # a part; cases that the file has of the same commit stay

`relative`: the time over that of dense attention, over the share of key blocks that are listed; 1 where a tile costs what it costs in
dense attention. `attention`: without the kernels before it, which make the lists. Decode: one token over 16 of 512 blocks of 64 keys,
beside a cache of these 16, with a list for each head, and with one for each group of 4. Needs a GPU.
"""

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attention_alone import alone

import flashgen
from flashgen.bench import DeviceClock
from flashgen.bench.cases import rounded
from flashgen.bench.peers import to_torch
from flashgen.bench.results import card_name, environment, kept_rows, save_json
from flashgen.bench.timing import measure
from flashgen.runtime import arrays
from flashgen.spec import Spec

HEADS, LENGTH, QUERIES = 16, 8192, 128
DECODE = {"batch": 16, "heads": 32, "keys": 64, "blocks": 512, "listed": 16}
RESULTS = Path(__file__).parent / "results"
Runs = dict[str, Callable[[], Any]]


def spec(head_dim: int, blocks: dict[str, Any] | None = None, mask: str = "full") -> Spec:
    """A spec without a mask, or with one; with lists of blocks, or without."""
    return Spec(head_dim=head_dim, dtype="bfloat16", mask=mask, blocks=blocks)


def draw(*shape: int) -> Any:
    """Normal numbers in bfloat16."""
    return rounded(arrays.cupy().random.standard_normal(shape), "bfloat16")


def drawn_lists(batch: int, heads: int, queries: int, count: int, listed: int) -> Any:
    """Random blocks, `listed` of `count`, for each block of queries."""
    cp = arrays.cupy()
    order = cp.argsort(cp.random.random((batch, heads, queries, count)), axis=-1)
    return cp.sort(order[..., :listed], axis=-1).astype(cp.int32)


def flex(q: Any, k: Any, v: Any, lists: Any, keys: int) -> Callable[[], Any]:
    """FlexAttention on the same lists, its block mask made before."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("torch.nn.attention.flex_attention")
    called = torch.compile(module.flex_attention)
    numbers = to_torch(lists)
    counts = torch.full(numbers.shape[:3], numbers.shape[3], dtype=torch.int32, device="cuda")
    every = torch.zeros((*numbers.shape[:3], k.shape[1] // keys), dtype=torch.int32, device="cuda")
    every[..., : numbers.shape[3]] = numbers
    none = torch.zeros_like(counts)
    mask = module.BlockMask.from_kv_blocks(none, torch.zeros_like(every), counts, every, BLOCK_SIZE=(QUERIES, keys))
    rows = [to_torch(x).transpose(1, 2) for x in (q, k, v)]
    return lambda: called(*rows, block_mask=mask)


def prefill(head_dim: int, keys: int, listed: int, beside: bool) -> tuple[str, Runs, float]:
    """Lists of so many blocks of so many keys, beside all; `beside`: FlexAttention too."""
    count = LENGTH // keys
    blocks = {"m": QUERIES, "n": keys, "lists": "idx"}
    q, k, v = (draw(1, LENGTH, HEADS, head_dim) for _ in range(3))
    idx = drawn_lists(1, HEADS, LENGTH // QUERIES, count, listed)
    dense, by_lists = flashgen.compile(spec(head_dim)), flashgen.compile(spec(head_dim, blocks))
    runs: Runs = {
        "dense": lambda: dense(q, k, v),
        "listed": lambda: by_lists(q, k, v, idx=idx),
    }
    if beside and importlib.util.find_spec("torch") and keys >= QUERIES:  # FlexAttention compiles for no narrower blocks
        runs["flex"] = flex(q, k, v, idx, keys)
    return f"{LENGTH} keys, head dim {head_dim}, {listed} of {count} blocks of {keys}", runs, listed / count


def decode(head_dim: int, kv_heads: int) -> tuple[str, Runs, float]:
    """One token over some blocks of a cache, beside a cache of these alone."""
    batch, heads, keys, count, listed = DECODE.values()
    own = "hq" if heads == kv_heads else "hk"
    blocks = {"m": 16, "n": keys, "lists": "idx", "heads": own}
    q = draw(batch, 1, heads, head_dim)
    (k, v), (few_k, few_v) = ([draw(batch, n * keys, kv_heads, head_dim) for _ in range(2)] for n in (count, listed))
    idx = drawn_lists(batch, kv_heads, 1, count, listed)
    dense, by_lists = flashgen.compile(spec(head_dim)), flashgen.compile(spec(head_dim, blocks))
    runs: Runs = {"dense": lambda: dense(q, few_k, few_v), "listed": lambda: by_lists(q, k, v, idx=idx)}
    where = f"{listed} of {count} blocks of {keys} beside a cache of {listed}"
    return f"one token, {heads}/{kv_heads} heads, head dim {head_dim}, {where}", runs, 1.0


def cases(head_dims: list[int], beside: bool) -> Iterator[tuple[str, Runs, float]]:
    """All cases: name, calls by name, and the share of tiles that lists name."""
    for head_dim in head_dims:
        yield prefill(head_dim, 128, 16, beside)
        yield prefill(head_dim, 64, 32, beside)
        yield decode(head_dim, 32)
        yield decode(head_dim, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-flex", action="store_true")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--out", type=Path, help="the file of results, by default benchmarks/results/lists_<card>.json")
    asked, on = parser.parse_args(), environment()
    path = asked.out or RESULTS / f"lists_{card_name(on)}.json"
    measured = kept_rows(path, on, lambda row: any(f"head dim {head_dim}," in row["case"] for head_dim in asked.head_dims))
    for name, runs, share in cases(asked.head_dims, not asked.no_flex):
        runs["attention"] = alone(runs["listed"])
        found = {part: timing.ms for part, timing in measure(runs, DeviceClock(), 3 if asked.quick else 11).items()}
        found["making"] = found["listed"] - found["attention"]
        times = ", ".join(f"{part} {ms:.4f}" for part, ms in found.items())
        measured.append({"case": name, **found, "relative": found["listed"] / found["dense"] / share})
        print(f"{name}: {times} ms; relative {measured[-1]['relative']:.3f}", flush=True)
        save_json(on | {"suite": "lists", "rows": measured}, path)


if __name__ == "__main__":
    main()
