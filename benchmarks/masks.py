"""Masks that skip key tiles by data or by formulas: times beside dense attention of the same run, the share of tiles, and FlexAttention.

    python benchmarks/masks.py                            # benchmarks/results/masks_<card>.json
    python benchmarks/masks.py --quick --alone            # fewer repetitions; neither the mask by ranges nor the peer, which compile long
    python benchmarks/masks.py --rows compressed fixed    # a part; rows that the file has of the same commit stay

8,192 queries and keys, 16 heads, bfloat16, one sequence. `ideal`: the share of tiles of 128x128 in which some query sees some key.
`ms`: a call; `attention`: without the kernels that find those tiles; `making`: the difference. `times`: the attention over the ideal
share of the time of dense attention. `unlisted`: the same mask by ranges alone. FlexAttention beside it, its block mask built before
(`flex mask`). Processes compile the rows beside each other, and measure one after the other. Needs a GPU and PyTorch.
"""

import argparse
import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attention_alone import alone

import flashgen
from flashgen.bench import DeviceClock
from flashgen.bench.cases import rounded
from flashgen.bench.masks import ROWS
from flashgen.bench.peers import to_torch
from flashgen.bench.results import card_name, environment, kept_rows, save_json
from flashgen.bench.timing import measure
from flashgen.plan import plan, search
from flashgen.runtime import arrays

LENGTH, HEADS, TILE = 8192, 16, 128
RESULTS = Path(__file__).parent / "results"
HEADS_LOOKED_AT = 2  # by whom the shares of tiles are counted where heads differ

SECONDS = 240  # that the rows of a process may take to be made
Tensors = Mapping[str, Any]
Run = Callable[[], Any]
Words = Callable[[Any, Any, Any, Any, Tensors], Any]


def _near(q: Any, k: Any, size: int, last: int) -> Any:
    return (k - q.clamp(size, last - size)).abs() <= size


def _video(q: Any, k: Any) -> Any:
    return ((k // 32 % 32 - q // 32 % 32).abs() <= 4) & ((k % 32 - q % 32).abs() <= 4)


def _diffusion(q: Any, k: Any, n: int = LENGTH // 2) -> Any:
    own = (q < n) & (k < n) & (k // 16 == q // 16)
    return own | ((k >= n) & ((k - n) // 16 < (q < n) * (q // 16) + (q >= n) * ((q - n) // 16 + 1)))


# The same masks in the words of FlexAttention.
FLEX: dict[str, Words] = {
    "document, prefix": lambda b, _, q, k, t: (t["ids"][b, q] == t["ids"][b, k]) & ((k <= q) | t["prompt"][b, k]),
    "transfusion": lambda b, _, q, k, t: (k <= q) | ((t["image"][b, k] == t["image"][b, q]) & (t["image"][b, q] > 0)),
    "local, image spans": lambda b, _, q, k, t: (
        ((k <= q) & (k >= q - 1023)) | ((t["image"][b, k] == t["image"][b, q]) & (t["image"][b, q] > 0))
    ),
    "neighbourhood": lambda _, __, q, k, ___: _near(q // 128, k // 128, 8, 63) & _near(q % 128, k % 128, 8, 127),
    "neighbourhood by params": lambda _, __, q, k, ___: _near(q // 128, k // 128, 8, 63) & _near(q % 128, k % 128, 8, 127),
    "windows of video": lambda _, __, q, k, ___: ((k // 1024 - q // 1024).abs() <= 1) & _video(q, k),
    "windows in all frames": lambda _, __, q, k, ___: _video(q, k),
    "tiled windows": lambda _, __, q, k, ___: k // 512 % 4 == q // 512 % 4,
    "fixed": lambda _, __, q, k, ___: (k <= q) & ((k // 1024 == q // 1024) | (k % 1024 >= 768)),
    "temporal heads": lambda _, __, q, k, ___: (k % 1560 - q % 1560).abs() <= 128,
    "striped": lambda _, __, q, k, ___: k * 4 + 1 <= q * 4 + 2,
    "zigzag": lambda _, __, q, k, ___: k + (k >= 4096) * 8192 <= q + (q >= 4096) * 8192,
    "compressed": lambda _, __, q, k, ___: 16 * k + 31 <= q,
    "block diffusion": lambda _, __, q, k, ___: _diffusion(q, k),
    "bigbird": lambda b, _, q, k, t: (
        ((q // 64 - k // 64).abs() <= 1) | (k // 64 == 0) | (k // 64 == LENGTH // 64 - 1) | t["rest"][b, q // 128, k // 128]
    ),
    "longformer": lambda b, _, q, k, t: ((q - k).abs() <= 256) | t["marked"][b, k] | t["marked"][b, q],
    "vertical, slash": lambda b, h, q, k, t: (k <= q) & (t["kept"][b, h, k] | t["slash"][b, h, (q - k).clamp(0)]),
    "heavy hitters": lambda b, h, q, k, t: (k <= q) & (t["kept"][b, h, k] | (k >= q - 255)),
    "same user, window of time": lambda b, _, q, k, t: (
        (t["ids"][b, q] == t["ids"][b, k]) & (t["at"][b, k] <= t["at"][b, q]) & (t["at"][b, q] - t["at"][b, k] <= 900)
    ),
    "rolling cache": lambda b, _, q, k, t: (t["at"][b, k] <= q) & (t["at"][b, k] > q - 2048),
    "float timestamps": lambda b, _, q, k, t: t["at"][b, k] <= t["at"][b, q],
    "block-sparse": lambda b, _, q, k, t: t["seen"][b, q // 128, k // 128],
    "block-sparse by elements": lambda b, _, q, k, t: t["seen"][b, q, k],
    "top-k blocks": lambda b, h, q, k, t: (k <= q) & ((k // 512 == q // 512) | t["chosen"][b, h, q, k // 512]),
}


@contextmanager
def without_lists() -> Iterator[None]:
    """Plans that are made here list no tiles because a mask shows them."""
    with patch.object(search, "listed", lambda *_: ""):
        plan.cache_clear()
        yield
    plan.cache_clear()


@functools.cache
def ideal(name: str) -> float:
    """The share of tiles that some query sees, by the first heads."""
    torch = importlib.import_module("torch")
    tensors = {name: torch.from_numpy(x).cuda() for name, x in ROWS[name].arrays(LENGTH, HEADS).items()}
    q, k = (torch.arange(LENGTH, device="cuda")[at] for at in ((slice(None), None), (None, slice(None))))
    found = []
    for h in range(HEADS_LOOKED_AT):
        seen = FLEX[name](0, h, q, k, tensors).expand(LENGTH, LENGTH)
        found.append(seen.view(LENGTH // TILE, TILE, LENGTH // TILE, TILE).any(3).any(1).float().mean().item())
    return sum(found) / len(found)


def flex(name: str, qkv: Any, given: Tensors) -> tuple[Run, Run]:
    """FlexAttention on the same mask, and what builds its block mask; both have run."""
    torch = importlib.import_module("torch")
    module = importlib.import_module("torch.nn.attention.flex_attention")
    tensors = {name: to_torch(x) for name, x in given.items()}
    words, by_heads = FLEX[name], any(x.ndim > 2 and x.shape[1] == HEADS for x in given.values())

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return words(b, h, q_idx, kv_idx, tensors)

    build = functools.partial(module.create_block_mask, mask, 1, HEADS if by_heads else None, LENGTH, LENGTH, device="cuda")
    rows = [to_torch(x).transpose(1, 2) for x in qkv]
    run = functools.partial(torch.compile(module.flex_attention, dynamic=False), *rows, block_mask=build())
    run()
    return run, build


def called(name: str, head_dim: int, qkv: Any) -> Any:
    """A call of a row, made once."""
    attention = flashgen.compile(ROWS[name].spec(head_dim))
    given = {name: arrays.cupy().asarray(x) for name, x in ROWS[name].arrays(LENGTH, HEADS).items()}
    run = functools.partial(attention, *qkv, **given)
    run()
    return run


def made(name: str, head_dim: int, beside: bool) -> tuple[dict[str, Any], dict[str, Run]]:
    """The facts of a row that are known before it is measured, and its runs."""
    cp = arrays.cupy()
    qkv = [rounded(cp.random.standard_normal((1, LENGTH, HEADS, head_dim)), "bfloat16") for _ in range(3)]
    run = called(name, head_dim, qkv)
    runs: dict[str, Run] = {
        "dense": functools.partial(flashgen.compile({"head_dim": head_dim, "dtype": "bfloat16"}), *qkv),
        "ms": run,
        "attention": alone(run),
    }
    chosen = run.func.program
    found = {"head_dim": head_dim, "mask": name, "tile": chosen.attention.tile.text, "by": chosen.dealing.listed or "ranges"}
    if beside and chosen.dealing.listed:
        with without_lists():  # plans are made at the first call
            runs["unlisted"] = called(name, head_dim, qkv)
    if beside:
        try:
            runs["flex"], runs["flex mask"] = flex(name, qkv, run.keywords)
        except Exception as error:  # a peer may refuse with anything
            found["flex refused"] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return found, runs


def measured(found: dict[str, Any], runs: dict[str, Run], repetitions: int) -> dict[str, Any]:
    """A row with its times."""
    found |= {"ideal": ideal(found["mask"])} | {part: timing.ms for part, timing in measure(runs, DeviceClock(), repetitions).items()}
    assert (runs["attention"]() == runs["ms"]()).all(), "the attention alone takes the tiles that a call finds"
    return found | {"making": found["ms"] - found["attention"], "times": found["attention"] / (found["ideal"] * found["dense"])}


def take(names: list[str], asked: argparse.Namespace, head_dim: int, ready: Any, turn: Any, found: Any) -> None:
    """A process of its own: makes its rows beside others, and measures them when all are made and nobody else measures."""
    rows = [made(name, head_dim, not asked.alone) for name in names]
    ready.wait()
    with turn:
        for row in rows:
            found.put(measured(*row, 3 if asked.quick else 11))


def rows_of(head_dim: int, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measured rows of a head dim."""
    start = multiprocessing.get_context("spawn")
    count = max(1, min(len(asked.rows), os.cpu_count() or 1))
    ready, turn, found = start.Barrier(count, timeout=SECONDS), start.Lock(), start.Queue()
    processes = [start.Process(target=take, args=(asked.rows[i::count], asked, head_dim, ready, turn, found)) for i in range(count)]
    for process in processes:
        process.start()
    for _ in asked.rows:
        yield found.get(timeout=2 * SECONDS)
    for process in processes:
        process.join()


COLUMNS = ("ideal", "dense", "ms", "making", "attention", "times", "unlisted", "flex", "flex mask")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--out", type=Path, help="the file of results, by default benchmarks/results/masks_<card>.json")
    asked = parser.parse_args()
    on = environment()
    path = asked.out or RESULTS / f"masks_{card_name(on)}.json"
    rows = kept_rows(path, on, lambda row: row["head_dim"] in asked.head_dims and row["mask"] in asked.rows)
    print(f"{'':28}{'':16}" + "".join(f"{column:>10}" for column in COLUMNS))
    for head_dim in asked.head_dims:
        for found in rows_of(head_dim, asked):
            rows.append(found)
            numbers = "".join(f"{found[column]:10.3f}" if column in found else f"{'':10}" for column in COLUMNS)
            print(f"{head_dim:4} {found['mask']:26}{found['tile']:>8} {found['by']:6}{numbers} {found.get('flex refused', '')}", flush=True)
            rows.sort(key=lambda row: (-row["head_dim"], list(ROWS).index(row["mask"])))
            save_json(on | {"suite": "masks", "rows": rows}, path)


if __name__ == "__main__":
    main()
