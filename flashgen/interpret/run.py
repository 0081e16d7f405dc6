"""Runs a Program in NumPy, tile by tile: what its kernel computes, with the same tiles, key ranges, rescale schedule and roundings.

So a plan is proved without a GPU; and NumPy arrays run this way where there is none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashgen.expr import evaluate
from flashgen.expr.language.nodes import V_IDX, Name, names
from flashgen.expr.meaning.lists import list_of
from flashgen.expr.meaning.sequences import heads_first
from flashgen.expr.tiles.lists import listed_tiles, looked_at, ranges_of
from flashgen.expr.tiles.ranges import EMPTY, PARTIAL
from flashgen.interpret.batch import alike, by_sequence, embedded_parts
from flashgen.interpret.lists import in_lists
from flashgen.interpret.shares import share_of
from flashgen.plan.geometry import Sizes, extent, most_listed
from flashgen.plan.params import softmax_scale
from flashgen.plan.program import Program
from flashgen.spec.outputs import OUTPUTS, finished
from flashgen.theory.schedule import Product, State, finish, finish_output, merge_states, natural, passes, start_of_sums

TOGETHER = 1 << 20  # elements of a tile's q, k, v and s, over the heads that run at once: they stay in the cache of a CPU

Array = NDArray[Any]
Tile = tuple[slice, slice, bool]  # query rows, keys, masked


class Heads(NamedTuple):
    """Query heads that run at once: batch, query head and key/value head of each, [n]."""

    b: Array
    h: Array
    hk: Array


class Ranges(NamedTuple):
    """The ranges of key tiles of query tiles."""

    begin: Array  # [ranges, query tiles]
    end: Array
    masked: Sequence[bool]  # of each range


def interpret(program: Program, q: Array, k: Array, v: Array, values: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Array]:
    """Attention as the plan has it: o [B, Sq, Hq, Dv]; lse, max, max_logit and the spec's other outputs, float32, natural log.

    >>> interpret(plan(Spec(head_dim=64, dtype="float16"), "host"), q, k, v)["o"]

    q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv] for layout bshd, S and H swapped for bhsd; any strides. `values` holds
    tensors by name, and params that differ from their defaults. Only a schedule that materializes allocates anything of size Sq x Sk.
    """
    order = program.spec.order
    out = {name: np.zeros((*q.shape[:-1], v.shape[-1]), program.out_dtype.numpy) for name in program.spec.outputs if OUTPUTS[name].like_o}
    q, k, v = heads_first(program.spec, q, k, v, values)
    o = {name: order.expanded(x).transpose(order.to_heads_first) for name, x in out.items()}
    by_row = ["lse", "max", *(row.name for row in finished(program.spec.outputs))]
    found = o | {name: np.full(q.shape[:-1], OUTPUTS[name].empty, np.float32) for name in by_row}  # of rows that no sequence has
    known = _values(program, values)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # of scores that are infinite or NaN, and so is the result
        for indices, one in alike(program, q, k, values):
            rows, keys, own = one.rows, one.keys, {**one.read(program.spec, known), "q_len": one.q_len, "kv_len": one.kv_len}
            parts = {name: by_sequence(x, indices) for name, x in (("q", q[:, :, rows]), ("k", k[:, :, keys]), ("v", v[:, :, keys]))}
            parts |= embedded_parts(program.spec, parts, indices, known | own)
            run = _Run(program=program, **parts, values=known | own, scale=softmax_scale(program, known), sequences=indices)
            for heads, ranges in run.heads():
                for name, x in run.finished(heads, run.attend(heads, ranges)).items():
                    found[name][np.minimum(heads.b, len(q) - 1), heads.h, rows] = x
    of_rows = {name: order.given(found[name]) for name in by_row}
    return of_rows | out | {"max_logit": np.fmax.reduce(found["max"], axis=(0, 2), initial=-np.inf)}


def _values(program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that expressions read alike everywhere, by name. Float params are float32, as in a kernel."""
    params = {p.name: (int if p.type == "int" else np.float32)(values.get(p.name, p.default)) for p in program.spec.params}
    blocks = program.spec.blocks
    arrays = (*(t.name for t in program.spec.tensors), *([blocks.lists] if blocks else []))
    return params | {name: np.asarray(values[name]) for name in arrays}


@dataclass(frozen=True)
class _Run:
    """Sequences that are as long as each other. q: [B, Hq, Sq, Dqk], k: [B, Hk, Sk, Dqk], v: [B, Hk, Sk, Dv]."""

    program: Program
    q: Array
    k: Array
    v: Array
    values: dict[str, Any]
    scale: float
    sequences: Array  # their indices

    @property
    def q_len(self) -> int:
        return int(self.q.shape[2])

    @property
    def kv_len(self) -> int:
        return int(self.k.shape[2])

    @property
    def block_m(self) -> int:
        """Queries of a tile, which may have the rows of all heads of a group."""
        attention, group = self.program.attention, self.q.shape[1] // self.k.shape[1]
        return max(1, attention.tile.block_m // group) if attention.dealing.grouped else attention.tile.block_m

    def heads(self) -> Iterator[tuple[Heads, Ranges]]:
        """All query heads, as many together as have the same key tiles and fit a cache; with their ranges of them."""
        query_heads = self.q.shape[1]
        b, h = (x.ravel() for x in np.meshgrid(self.sequences, np.arange(query_heads), indexing="ij"))
        every = Heads(b, h, h * self.k.shape[1] // max(1, query_heads))
        together = self._together()
        for members, ranges in self._by_ranges(every):
            for first in range(0, len(members), together):
                yield Heads(*(x[members[first : first + together]] for x in every)), ranges

    def _by_ranges(self, every: Heads) -> Iterator[tuple[Array, Ranges]]:
        own = cache(self._ranges)
        read = names(self.program.expressions.mask) | ({"b", "h", "hk"} if self.program.spec.blocks else set())
        seen = [x.tolist() if name in read else [0] * len(x) for name, x in every._asdict().items()]
        groups: dict[tuple[Any, ...], tuple[list[int], Ranges]] = {}
        for i, head in enumerate(zip(*seen, strict=True)):
            ranges = own(*head)
            groups.setdefault((ranges.begin.tobytes(), ranges.end.tobytes(), tuple(ranges.masked)), ([], ranges))[0].append(i)
        for members, ranges in groups.values():
            yield np.array(members), ranges

    def _ranges(self, *head: int) -> Ranges:
        """The key tiles that a head takes: those in the ranges of the mask, and of these the listed ones, where there are lists."""
        attention, blocks = self.program.attention, self.program.spec.blocks
        of_mask, known = replace(attention.ranges, block_m=self.block_m), self.values | dict(zip(Heads._fields, head, strict=True))
        if not attention.dealing.listed:
            return Ranges(*of_mask.evaluate(self.q_len, self.kv_len, known), [loop.masked for loop in of_mask.loops])
        tile, classes = (self.block_m, of_mask.block_n), of_mask.classes(self.q_len, self.kv_len, known)
        if not blocks:
            return Ranges(*ranges_of(looked_at(self.program.expressions.mask, classes, tile, known)))
        taken = listed_tiles(blocks, list_of(blocks, self.values[blocks.lists], known), tile, (self.q_len, self.kv_len))
        kinds = np.minimum(classes, np.int8(PARTIAL)) if blocks.by_key else classes  # there each key is asked for
        return Ranges(*ranges_of(np.where(taken, kinds, np.int8(EMPTY))))

    def _together(self) -> int:
        rows, keys = self.q_len, self.kv_len
        if not self.program.softmax.materialize:
            rows, keys = min(self.block_m, rows), min(self.program.attention.tile.block_n, keys)
        columns = int(self.q.shape[-1] + self.v.shape[-1])
        return max(1, TOGETHER // max(1, rows * keys + (rows + keys) * columns))

    def attend(self, heads: Heads, ranges: Ranges) -> dict[str, Array]:
        """The outputs by name: o [n, Sq, Dv], those of a row [n, Sq]."""
        xp, softmax, outputs = natural(), self.program.softmax, self.program.spec.outputs
        shape, reached = (len(heads.b), self.q_len), self._reached(heads)
        top = np.full(shape, -np.inf, np.float32)
        m, l = self._start(heads, shape)  # noqa: E741
        state = State(m, l, np.zeros((*shape, self.v.shape[-1]), np.float32), start_of_sums(outputs, l, xp, sink=softmax.sink))
        if not softmax.normalized:
            for rows, keys, masked in self._tiles(ranges):
                state.o[:, rows] += self._product(heads, rows, keys, reached)(self._scores(heads, rows, keys, masked))
            return {"o": state.o, "lse": l, "max": top}
        sink = m.copy() if softmax.sink else None
        if self.program.attention.dealing.shares:
            state = self._merged(heads, ranges, state, top)
        else:
            self._attend(heads, ranges, state, top, reached)
        o, lse = finish(softmax, state, xp)
        others = {output.name: finish_output(output, state, sink, xp) for output in finished(outputs)}
        return {"o": o, "lse": lse, "max": top} | others

    def finished(self, heads: Heads, found: dict[str, Array]) -> dict[str, Array]:
        """The outputs of some heads, with `output` applied to o [n, Sq, Dv]: to what is written, where that is an output too."""
        output, spec = self.program.expressions.output, self.program.spec
        if output is None:
            return found
        o = found["o"] if spec.kept == "o" else found["o"].astype(spec.out_element.numpy)
        known = self._known(heads, slice(0, o.shape[1]), slice(0, 0)) | {"o": o.astype(np.float32), V_IDX: np.arange(o.shape[2])}
        return found | {spec.kept: o, "o": np.broadcast_to(evaluate(output, known), o.shape)}

    def _merged(self, heads: Heads, ranges: Ranges, state: State, top: Array) -> State:
        """The states of all shares of the keys, and what the state was before them."""
        reached, attention, sizes = self._reached(heads), self.program.attention, self._sizes
        assert attention.dealing.shares
        for share in range(most := extent(attention.dealing.shares, sizes)):
            own_ranges = Ranges(*share_of(ranges.begin, ranges.end, share, most=most, least=attention.share_tiles), ranges.masked)
            sums = {each: np.zeros(top.shape, np.float32) for each in state.sums}
            own = State(np.full(top.shape, -np.inf, np.float32), np.zeros(top.shape, np.float32), np.zeros_like(state.o), sums)
            self._attend(heads, own_ranges, own, top, reached)
            state = merge_states(state, own, natural())
        return state

    def _attend(self, heads: Heads, ranges: Ranges, state: State, top: Array, reached: Array | None) -> None:
        """Takes the keys of some tiles into a state, and into the greatest scores."""
        softmax = self.program.softmax
        for step in passes(replace(softmax, threshold=softmax.threshold * math.log(2)), natural()):
            for rows, keys, masked in self._tiles(ranges):
                scores = self._scores(heads, rows, keys, masked)
                top[:, rows] = np.fmax(top[:, rows], np.fmax.reduce(scores, axis=-1))
                after = step(_rows_of(state, rows), scores, self._product(heads, rows, keys, reached))
                for whole, part in zip(_arrays(state), _arrays(after), strict=True):
                    whole[:, rows] = part

    @property
    def _sizes(self) -> Sizes:
        (batch, heads), kv_heads = self.q.shape[:2], self.k.shape[1]
        most = most_listed(self.program.spec, {name: np.shape(x) for name, x in self.values.items()})
        return Sizes(batch=batch, q_len=self.q_len, kv_len=self.kv_len, heads=heads, kv_heads=kv_heads, listed=most)

    def _start(self, heads: Heads, shape: tuple[int, int]) -> tuple[Array, Array]:
        """Maximum and sum before the first key: [n, Sq]."""
        sink = self.program.expressions.sink
        if sink is None:
            return np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32)
        head = {name: x[:, None] for name, x in heads._asdict().items()}
        logit = np.asarray(evaluate(sink, self.values | head), np.float32)
        return np.array(np.broadcast_to(logit, shape)), np.ones(shape, np.float32)

    def _tiles(self, ranges: Ranges) -> Iterator[Tile]:
        """The tiles of a pass, in the order of the schedule."""
        begin, end, masked = ranges
        softmax = self.program.softmax
        if softmax.materialize:
            if self.q_len and self.kv_len:
                yield slice(0, self.q_len), slice(0, self.kv_len), True
        elif softmax.outer == "q":
            for i in range(begin.shape[1]):
                for tested, first, last in zip(masked, begin[:, i], end[:, i], strict=True):
                    for j in range(first, last):
                        yield self._tile(i, j, tested)
        else:
            for j in range(end.max(initial=0)):
                for i in range(begin.shape[1]):
                    for tested, first, last in zip(masked, begin[:, i], end[:, i], strict=True):
                        if first <= j < last:
                            yield self._tile(i, j, tested)

    def _tile(self, i: int, j: int, masked: bool) -> Tile:
        m, n = self.block_m, self.program.attention.tile.block_n
        assert 0 <= j * n < self.kv_len, f"key tile {j} lies outside {self.kv_len} keys"
        assert masked or (j + 1) * n <= self.kv_len, f"key tile {j} is not masked and passes {self.kv_len} keys"
        return slice(i * m, min((i + 1) * m, self.q_len)), slice(j * n, min((j + 1) * n, self.kv_len)), masked

    def _scores(self, heads: Heads, rows: slice, keys: slice, masked: bool) -> Array:
        """Scores, where the mask hides the key -inf, or 0 where they are weights themselves: [n, rows, keys]."""
        expressions, known = self.program.expressions, self._known(heads, rows, keys)
        raw = _load(self.q, heads.b, heads.h, rows) @ _load(self.k, heads.b, heads.hk, keys).swapaxes(1, 2)
        s = raw * np.float32(self.scale)
        whole = expressions.score == Name("s", "float")
        scores = s if whole else np.broadcast_to(evaluate(expressions.score, known | {"s": s}), raw.shape)
        seen, hidden = masked and evaluate(expressions.mask, known), np.float32(-np.inf if self.program.softmax.normalized else 0)
        if (blocks := self.program.spec.blocks) and (blocks.by_key or self.program.softmax.materialize):  # one tile of all keys
            seen = seen & in_lists(blocks, self.values, heads._asdict(), (rows, keys))
        return np.where(seen, scores, hidden) if masked else scores

    def _known(self, heads: Heads, rows: slice, keys: slice) -> dict[str, Any]:
        """The values that expressions read in a tile, by name; all broadcast to [n, rows, keys]."""
        head = {name: x[:, None, None] for name, x in heads._asdict().items()}
        return {**self.values, **head, "q_idx": np.arange(rows.start, rows.stop)[:, None], "kv_idx": np.arange(keys.start, keys.stop)}

    def _product(self, heads: Heads, rows: slice, keys: slice, reached: Array | None) -> Product:
        """p to p v, with p, times the weight of a key, in the type of v as tensor cores take it; nothing of keys that are not reached."""
        dtype, weight = self.program.dtype.numpy, self.program.expressions.weight

        def product(p: Array) -> Array:
            v = _load(self.v, heads.b, heads.hk, keys)
            v = v if reached is None else np.where(reached[:, keys, None], v, np.float32(0))
            if weight is not None:
                p = np.where(p == 0, np.float32(0), p * np.float32(evaluate(weight, self._known(heads, rows, keys))))
            return p.astype(dtype, copy=False).astype(np.float32, copy=False) @ v

        return product

    def _reached(self, heads: Heads) -> Array | None:
        """For each key, true if a query may see it by its position: [n, Sk]; None: all."""
        reach = self.program.holes.reach
        if reach is None:
            return None
        each = zip(*(x.tolist() for x in heads), strict=True)
        known = ({**self.values, **dict(zip(Heads._fields, head, strict=True))} for head in each)
        return np.stack([reach.evaluate(self.q_len, self.kv_len, values) for values in known])


def _rows_of(state: State, rows: slice) -> State:
    return State(state.m[:, rows], state.l[:, rows], state.o[:, rows], {each: x[:, rows] for each, x in state.sums.items()})


def _arrays(state: State) -> tuple[Array, ...]:
    return state.m, state.l, state.o, *state.sums.values()


def _load(x: Array, b: Array, h: Array, rows: slice) -> Array:
    """Rows of some heads: [n, rows, D], float32, contiguous."""
    return x[b, h, rows].astype(np.float32, order="C")
