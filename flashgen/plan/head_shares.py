"""The blocks that share the query heads of a key tile in a backward: more than one where key tiles are few, or unlike each other."""

import heapq
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from flashgen.expr.language.nodes import Load, walk
from flashgen.plan.backward_kernel import Backward
from flashgen.plan.costs.model import of_arch
from flashgen.plan.engines.limits import FLOAT_BYTES
from flashgen.plan.geometry import Sizes
from flashgen.plan.program import Program
from flashgen.plan.sections import sections

_SHARES = (1, 2, 4, 8)  # that are tried: each is a kernel of its own
_MANY = 16  # key tiles a multiprocessor, with which the end of a call no longer counts
_COSTS = "backward_wgmma"  # the table of its numbers


def head_shares(program: Program, sizes: Sizes, params: Mapping[str, int | float]) -> int:
    """The number of blocks of a key tile with which a call of these sizes ends first, by the cost model. `program`: the plan with one."""
    main, workers = program.main, program.arch.multiprocessors // program.main.grid.cluster
    tiles = -(-sizes.kv_len // main.tile.block_n) * sizes.kv_heads * (1 if program.spec.geometry.packed else sizes.batch)
    if not isinstance(main, Backward) or not main.warpgroups or sizes.group == 1 or tiles > _MANY * workers:
        return 1
    known = of_arch(program.arch, _COSTS)
    clocks = {n: _clocks(_dealt(program, sizes, params, n), workers) for n in _SHARES if n <= sizes.group}
    best = min(clocks, key=lambda n: clocks[n])
    return best if clocks[best] < known["head_shares"] * clocks[1] else 1


def _clocks(dealt: Iterable[float], workers: int) -> float:
    """The clocks until the last is done, where whoever is free takes the next."""
    free = [0.0] * workers
    for clocks in dealt:
        heapq.heapreplace(free, free[0] + clocks)
    return max(free)


def _dealt(program: Program, sizes: Sizes, params: Mapping[str, int | float], shares: int) -> Iterator[float]:
    """The clocks of each piece of work, in the order in which they are dealt."""
    tile, step, batch = program.main.tile, dict(program.decision.cost)["step"], max(1, sizes.batch)
    heads, width = sizes.kv_heads * batch, sections(program).heads(sizes)
    known = of_arch(program.arch, _COSTS)
    around = known["key_tile"] + (
        2 * FLOAT_BYTES * tile.block_n * (tile.qk_columns + tile.v_columns) / known["sum_bytes"] if shares > 1 else 0
    )
    steps = _steps(program, sizes, params)
    for first in range(0, heads, width):
        for count in steps:
            for _ in range(min(width, heads - first) * shares):
                yield around + count * sizes.group / shares * step


def _steps(program: Program, sizes: Sizes, params: Mapping[str, int | float]) -> list[int]:
    """The query tiles of a head that each of its key tiles meets; of packed sequences those of one of average length."""
    parts = max(1, sizes.batch) if program.spec.geometry.packed else 1
    q_len, kv_len, tile = -(-sizes.q_len // parts), -(-sizes.kv_len // parts), program.main.tile
    if any(isinstance(node, Load) for node in walk(program.expressions.mask)):  # what it hides is known on the device alone
        return [-(-q_len // tile.block_m)] * -(-kv_len // tile.block_n)
    begin, end = program.main.ranges.evaluate(q_len, kv_len, {**params, "b": 0, "h": 0, "hk": 0})
    return [int(count) for count in np.maximum(end - begin, 0).sum(axis=0)]
