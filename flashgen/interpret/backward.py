"""Runs a backward's Program in NumPy, tile by tile: a key tile stays, and meets the query tiles of all heads that share it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr import evaluate
from flashgen.expr.language.functions import LOG2_E
from flashgen.expr.language.nodes import V_IDX, Load, Name, Node
from flashgen.expr.meaning.embedding import embedded
from flashgen.expr.meaning.embedding_backward import before_embedding
from flashgen.expr.meaning.gradient import ONE, Derivatives, Variable, derivatives
from flashgen.expr.meaning.lists import list_of
from flashgen.expr.meaning.reference_backward import UNKNOWN
from flashgen.expr.meaning.sequences import Sequence, sequences
from flashgen.expr.tiles.lists import listed_tiles, looked_at
from flashgen.expr.tiles.ranges import EMPTY, PARTIAL
from flashgen.plan.backward_kernel import Backward
from flashgen.plan.kernels.arguments import OF_KEYS
from flashgen.plan.params import softmax_scale
from flashgen.plan.program import Program
from flashgen.spec import Spec
from flashgen.theory.backward import row_term, score_gradient, sink_gradient, weights

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Given:
    """A backward takes these: the arrays of the forward, what it gave, and the gradients of that.

    q, k, v, o, do: of the layout of the spec, and of its dtype, o and do of its out_dtype; o as it was before `output`; lse, dlse: [B, Hq,
    Sq] float32, natural log. lse is None where the softmax has none, dlse where nothing depends on lse.
    """

    q: Array
    k: Array
    v: Array
    o: Array
    do: Array
    lse: Array | None = None
    dlse: Array | None = None


def interpret_backward(program: Program, given: Given, values: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Array]:
    """The gradients as the plan has them: dq, dk and dv, each like the array that it is the gradient of, and by its name that of each
    tensor and param that asks for one, float32.

    >>> interpret_backward(plan_backward(spec, "host"), Given(q=q, k=k, v=v, o=o, do=do, lse=lse))["dq"]

    `values` holds tensors by name, and params that differ from their defaults. Nothing of size Sq x Sk is allocated.
    """
    spec, order = program.spec, program.spec.order
    arrays = {name: order.expanded(getattr(given, name)).transpose(order.to_heads_first) for name in ("q", "k", "v", "o", "do")}
    numbers = {name: order.expanded(x) for name in ("lse", "dlse") if (x := getattr(given, name)) is not None}
    params: dict[str, Any] = {p.name: (int if p.type == "int" else np.float32)(values.get(p.name, p.default)) for p in spec.params}
    totals = {f"d{name}": np.zeros(arrays[name].shape, np.float32) for name in ("q", "k", "v")}
    sums = {one.name: np.zeros(np.shape(values.get(one.name, 0)), np.float32) for one in spec.with_grad}
    scale, slopes = softmax_scale(program, params), derivatives(spec)
    params |= {spec.blocks.lists: np.asarray(values[spec.blocks.lists])} if spec.blocks else {}
    with np.errstate(all="ignore"):  # of scores that are infinite or NaN, and so is the result
        for one in sequences(spec, (len(arrays["q"]), arrays["q"].shape[2], arrays["k"].shape[2]), values):
            known = params | one.read(spec, values) | {"b": one.b, "q_len": one.q_len, "kv_len": one.kv_len}
            own = {name: x[_place(one, name)] for name, x in (arrays | numbers | totals).items()}
            own |= {role: _embedded(spec, role, own[role], known) for role in spec.embedded}
            of_tensors = {t.name: one.own(spec, t, sums[t.name]) for t in spec.tensors if t.grad}
            run = _Run(program=program, arrays=own, values=known, sums=_Sums(sums | of_tensors), slopes=slopes, scale=scale)
            for h in range(arrays["q"].shape[1]):
                run.head(h)
    rounded = {name: (x if name == "dv" else x * np.float32(scale)).astype(program.dtype.numpy) for name, x in totals.items()}
    if spec.embedded:
        rounded = {name: x.astype(np.float32) for name, x in rounded.items()}
        before_embedding(spec, arrays, rounded, values, _Sums(sums).learn)
        rounded = {name: x.astype(program.dtype.numpy) for name, x in rounded.items()}
    return {name: order.given(x.transpose(order.from_heads_first)) for name, x in rounded.items()} | sums


def query_tiles(program: Program, known: Mapping[str, Any]) -> NDArray[np.int8]:
    """The classes of the query tiles of each key tile of a head, [key tiles, query tiles]: by the mask, and by lists, where there are.

    `known`: b, h, hk, q_len, kv_len, and params, tensors and lists by name.
    """
    main, blocks, lengths = program.main, program.spec.blocks, (known["q_len"], known["kv_len"])
    assert isinstance(main, Backward)
    classes, tile = main.ranges.classes(*lengths, known), (main.tile.block_m, main.tile.block_n)
    if blocks:
        taken = listed_tiles(blocks, list_of(blocks, known[blocks.lists], known), tile, lengths)
        return np.where(taken.T, classes, np.int8(EMPTY))
    return looked_at(program.expressions.mask, classes.T, tile, known).T if main.dealing.listed else classes


def _place(one: Sequence, name: str) -> tuple[Any, ...]:
    """The place of a sequence's part of an array [B, H, S, D] or [B, H, S]."""
    return (one.keys_at, slice(None), one.keys) if name in OF_KEYS else (one.at, slice(None), one.rows)


def _embedded(spec: Spec, role: str, x: Array, known: Mapping[str, Any]) -> Array:
    """q or k of a sequence [H, S, D] after the norm and the rotary embedding."""
    return embedded(spec, role, x.astype(np.float32), np.arange(x.shape[1]), known).astype(spec.element.numpy)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One sequence."""

    program: Program
    arrays: dict[str, Array]  # q, k, v, o, do [H, S, D], lse and dlse [H, S] where there are; dq, dk and dv, float32, are added to
    values: dict[str, Any]
    sums: "_Sums"
    slopes: Derivatives
    scale: float

    def head(self, h: int) -> None:
        """The part of a query head in all gradients."""
        known = {**self.values, "h": h, "hk": h * len(self.arrays["k"]) // len(self.arrays["q"])}
        rows = self._rows(known)
        k, v = (self._reached(name, known) for name in ("k", "v"))
        for keys, part, masked in self._tiles(known):
            self._step(known, rows, (k, v), (part, keys), masked)

    def _rows(self, known: Mapping[str, Any]) -> dict[str, Array]:
        """The rows of a head: q, do; lse in log2 units; delta. The gradient of a sink is added."""
        h = known["h"]
        q, do, o = (self.arrays[name][h].astype(np.float32) for name in ("q", "do", "o"))
        do = self._through_output(do, o, known)
        if "lse" not in self.arrays:
            return {"q": q, "do": do}
        delta = row_term(do, o, self.arrays["dlse"][h] if "dlse" in self.arrays else np.float32(0))
        lse = self.arrays["lse"][h]
        lse = np.where(np.abs(lse) >= UNKNOWN, np.float32(np.inf), lse * np.float32(LOG2_E))
        if (sink := self.program.expressions.sink) is not None:
            logit = np.broadcast_to(evaluate(sink, known), lse.shape) * np.float32(LOG2_E)
            self.sums.add(self.slopes.sink, np.where(lse == np.inf, 0, sink_gradient(logit, lse, delta)).sum(), known)
        return {"q": q, "do": do, "lse": lse, "delta": delta}

    def _through_output(self, do: Array, o: Array, known: Mapping[str, Any]) -> Array:
        """do of a head as it is before `output`, rounded; the gradients of what that reads are added."""
        if self.slopes.o == ONE and not self.slopes.output:
            return self._rounded(do)
        known = {**known, "o": o, "q_idx": np.arange(len(o))[:, None], V_IDX: np.arange(o.shape[1])}
        self.sums.add(self.slopes.output, do, known)
        return self._rounded(_times(do, evaluate(self.slopes.o, known)))

    def _rounded(self, x: Array) -> Array:
        """Numbers as products take them."""
        return x.astype(self.program.dtype.numpy).astype(np.float32)

    def _reached(self, name: str, known: Mapping[str, Any]) -> Array:
        """Keys or values of a head, float32, with zeros where no query may see them by their position."""
        x: Array = self.arrays[name][known["hk"]].astype(np.float32)
        reach = self.program.holes.reach
        if reach is None or not len(x):
            return x
        return np.where(reach.evaluate(known["q_len"], known["kv_len"], known)[:, None], x, np.float32(0))

    def _tiles(self, known: Mapping[str, Any]) -> Iterator[tuple[slice, slice, bool]]:
        """The keys, the rows that meet them, and whether the mask is tested, in the order of the schedule."""
        tile, (q_len, kv_len) = self.program.main.tile, (known["q_len"], known["kv_len"])
        for j, kinds in enumerate(query_tiles(self.program, known)):
            keys = slice(j * tile.block_n, min((j + 1) * tile.block_n, kv_len))
            for i in np.flatnonzero(kinds).tolist():
                yield keys, slice(i * tile.block_m, min((i + 1) * tile.block_m, q_len)), bool(kinds[i] == PARTIAL)

    def _step(
        self, known: dict[str, Any], rows: Mapping[str, Array], kv: tuple[Array, Array], tile: tuple[slice, slice], masked: bool
    ) -> None:
        """One query tile and one key tile."""
        (part, keys), dtype = tile, self.program.dtype.numpy
        q, do, k, v = rows["q"][part], rows["do"][part], kv[0][keys], kv[1][keys]
        raw = q @ k.T
        known = {**known, "q_idx": np.arange(part.start, part.stop)[:, None], "kv_idx": np.arange(keys.start, keys.stop)}
        known["s"] = raw * np.float32(self.scale)
        score = np.broadcast_to(evaluate(self.program.expressions.score, known), raw.shape)
        seen = np.broadcast_to(evaluate(self.program.expressions.mask, known), raw.shape) if masked else np.True_
        of_values, weight = do @ v.T, self.program.expressions.weight
        w = np.float32(1) if weight is None else np.broadcast_to(evaluate(weight, known), raw.shape)
        p, d = np.where(seen, score, 0), w * of_values
        if "lse" in rows:
            lse = rows["lse"][part]
            p = weights(np.where(seen & (lse != np.inf)[:, None], score * np.float32(LOG2_E), np.float32(-np.inf)), lse)
            d = np.where(p == 0, 0, score_gradient(p, d, rows["delta"][part]))
        d = np.where(seen, d, 0).astype(np.float32)
        ds = d if self.slopes.s == ONE else _times(d, evaluate(self.slopes.s, known))
        self.sums.add(self.slopes.score, d, known)
        self.sums.add(self.slopes.scale, ds * raw, known)
        self.sums.add(self.slopes.weight, _times(p, of_values), known)
        p, ds = (x.astype(dtype).astype(np.float32) for x in (_times(p, w), ds))
        of_keys = known["hk"], keys
        self.arrays["dv"][of_keys] += p.T @ do
        self.arrays["dk"][of_keys] += ds.T @ q
        self.arrays["dq"][known["h"], part] += ds @ k


@dataclass(frozen=True)
class _Sums:
    """The gradients of tensors and params that ask for one, float32, summed over all that reads them."""

    found: Mapping[str, Array]

    def learn(self, name: str, terms: Array) -> None:
        """Adds what each row makes of the gradient of a norm's learned columns, [..., D]."""
        if name in self.found:
            self.found[name][...] += terms.sum(tuple(range(terms.ndim - 1)))

    def add(self, slopes: Mapping[Variable, Node], gradient: Array, known: Mapping[str, Any]) -> None:
        """Adds a gradient, of scores or of a sink, times the slope by each variable."""
        for by, slope in slopes.items():
            name = by.name if isinstance(by, Name) else by.tensor
            if name in self.found:
                part = _times(gradient, evaluate(slope, known))
                at = _indices(by, known) if isinstance(by, Load) else ()
                np.add.at(self.found[name], tuple(np.broadcast_to(i, part.shape) for i in at), part if at else part.sum())


def _indices(load: Load, known: Mapping[str, Any]) -> tuple[Array, ...]:
    """The indices of what is read; an axis of 1 that is read as if it were repeated has the sum."""
    shape = np.shape(known[load.tensor])
    return tuple(np.clip(evaluate(index, known), 0, size - 1) for index, size in zip(load.indices, shape, strict=True))


def _times(gradient: Array, slope: Any) -> Array:
    """The chain rule; no gradient stays none, however steep it goes on."""
    return np.where(gradient == 0, 0, gradient * slope).astype(np.float32)
