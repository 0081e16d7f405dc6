"""Key tiles that plans visit for masks of data and formulas, beside the fewest that could do: those of which some query sees some key.

    python benchmarks/tiles.py                            # a table to the terminal; needs no GPU
    python benchmarks/tiles.py --arch sm_80 --head-dim 64

8,192 queries and keys. `ideal` counts tiles of the plan's own size; `ranges` are those without a look at pairs. Where masks differ from
head to head, the first two are counted.
"""

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.bench.masks import ROWS
from flashgen.cli.work import classes
from flashgen.expr import analyse, evaluate
from flashgen.plan import Program, plan
from flashgen.plan.lists import HEADS

LENGTH, HEADS_COUNTED, BANDS = 8192, 2, 16


def seen(program: Program, values: dict[str, Any]) -> NDArray[np.bool_]:
    """True for the tiles of which some query sees some key, [query tiles, key tiles]."""
    m, n = program.attention.tile.block_m, program.attention.tile.block_n
    rows, columns = np.arange(0, LENGTH, m), np.arange(0, LENGTH, n)
    found = []
    for band in np.array_split(np.arange(LENGTH), BANDS):
        known = {**values, "q_idx": band[:, None], "kv_idx": np.arange(LENGTH)}
        pairs = np.broadcast_to(evaluate(program.expressions.mask, known), (len(band), LENGTH))
        found.append(np.logical_or.reduceat(pairs, columns, axis=1))
    return np.logical_or.reduceat(np.concatenate(found), rows, axis=0)


def counted(name: str, head_dim: int, arch: str) -> tuple[Program, float, float, float]:
    """The plan of a row, and shares of its tiles: in ranges, visited, ideal."""
    spec = ROWS[name].spec(head_dim)
    program = plan(spec, arch)
    tile, heads = program.attention.tile, HEADS_COUNTED if set(HEADS) & set(spec.mask.replace("[", " ").replace(",", " ").split()) else 1
    shares = np.zeros(3)
    for h in range(heads):
        values = {**{p.name: p.default for p in spec.params}, **ROWS[name].arrays(LENGTH, 16), "b": 0, "h": h, "hk": h}
        known = {**values, "q_len": LENGTH, "kv_len": LENGTH}
        ranges = analyse(program.expressions.mask, tile.block_m, tile.block_n, spec.tensors, spec.geometry, spec.params)
        taken, ideal = classes(program, LENGTH, LENGTH, values) > 0, seen(program, known)
        assert not (ideal & ~taken).any(), name
        shares += [(ranges.classes(LENGTH, LENGTH, values) > 0).mean(), taken.mean(), ideal.mean()]
    ranges_share, visited, least = shares / heads
    return program, ranges_share, visited, least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="MASK")
    asked = parser.parse_args()
    print(f"{'':28}{'tile':>9}{'by':>8}{'ranges':>9}{'visited':>9}{'ideal':>8}{'times':>7}")
    for name in asked.rows:
        program, in_ranges, visited, ideal = counted(name, asked.head_dim, asked.arch)
        by = program.dealing.listed or "ranges"
        shares = f"{in_ranges:9.1%}{visited:9.1%}{ideal:8.1%}{visited / ideal:7.2f}"
        print(f"{name:28}{program.attention.tile.text:>9}{by:>8}{shares}", flush=True)


if __name__ == "__main__":
    main()
