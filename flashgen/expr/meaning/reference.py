"""Attention as its definition says, in float64: of a kernel it shares the parser, and nothing that computes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.language.nodes import V_IDX
from flashgen.expr.language.read import Expressions, read
from flashgen.expr.meaning.definition import in_range, meaning
from flashgen.expr.meaning.embedding import embedded
from flashgen.expr.meaning.lists import list_of, listed
from flashgen.expr.meaning.sequences import Place, heads_first, sequences
from flashgen.spec.outputs import OUTPUTS, Exact

if TYPE_CHECKING:
    from flashgen.spec import Spec

Array = NDArray[Any]
ELEMENTS = 1 << 21  # of a chunk of scores


def reference(spec: "Spec", q: Array, k: Array, v: Array, **values: Any) -> tuple[Array, Array]:
    """Outputs o, of the layout of q, and lse [B, Hq, Sq], natural logarithm; both float64.

    >>> from flashgen.spec import Spec
    >>> q = k = v = np.ones((1, 3, 1, 8), np.float32)
    >>> o, lse = reference(Spec(head_dim=8, dtype="float32", mask="causal"), q, k, v)
    >>> o.shape, (np.exp(lse - 8**0.5)).round(9).tolist()
    ((1, 3, 1, 8), [[[1.0, 2.0, 3.0]]])

    q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv]; with layout bhsd, axes 1 and 2 swapped. `values`: the params that
    differ from their defaults, every tensor, and lengths, as kv_lens of a cache. A row that sees no key, or only scores of -inf, has o = 0
    and lse = -inf (or the sink). What a row does not see never matters; an infinite or undefined score that it sees
    does, as in the formula.
    """
    q, k, v = heads_first(spec, q, k, v, values)
    o = np.zeros((*q.shape[:-1], v.shape[-1]))
    lse = np.full(q.shape[:-1], OUTPUTS["lse"].empty if spec.softmax.normalized else 0.0)  # of rows that no sequence has
    for rows in rows_of(spec, q, k, v, values):
        found, lse[rows.at] = attended(spec, rows)
        o[rows.at] = leaving(spec, rows, found)
    return spec.order.given(o.transpose(spec.order.from_heads_first)), spec.order.given(lse)


def before_output(spec: "Spec", q: Array, k: Array, v: Array, **values: Any) -> Array:
    """The o before `output`, float64, of the layout of q, which a backward takes. Arguments as of `reference`.

    >>> from flashgen.spec import Spec
    >>> x = np.ones((1, 1, 1, 2), np.float32)
    >>> before_output(Spec(head_dim=2, dtype="float32", output="3.0 * o"), x, x, x)[0, 0, 0].tolist()
    [1.0, 1.0]
    """
    q, k, v = heads_first(spec, q, k, v, values)
    o = np.zeros((*q.shape[:-1], v.shape[-1]))
    for rows in rows_of(spec, q, k, v, values):
        o[rows.at] = attended(spec, rows)[0]
    return spec.order.given(o.transpose(spec.order.from_heads_first))


def attended(spec: "Spec", rows: "Rows") -> tuple[Array, Array]:
    """The o of some rows before `output`, [rows, Dv], and their lse [rows], 0 where the scores are the weights."""
    seen = rows.score, rows.seen, rows.v
    return attend(*seen, rows.sink, rows.weight) if spec.softmax.normalized else weigh(*seen, rows.weight)


def reference_outputs(spec: "Spec", q: Array, k: Array, v: Array, **values: Any) -> dict[str, Array]:
    """The outputs of a spec with a softmax by name, float64. Arguments as of `reference`.

    >>> from flashgen.spec import Spec
    >>> q = k = v = np.ones((1, 3, 1, 8), np.float32)
    >>> reference_outputs(Spec(head_dim=8, dtype="float32", scale=1, outputs=["o", "max_logit"]), q, k, v)["max_logit"]
    array([8.])
    """
    q, k, v = heads_first(spec, q, k, v, values)
    shapes = {name: (*q.shape[:-1], v.shape[-1]) if OUTPUTS[name].like_o else q.shape[:-1] for name in spec.outputs}
    found = {name: np.full(shape, OUTPUTS[name].empty) for name, shape in shapes.items()}
    for rows in rows_of(spec, q, k, v, values):
        exact = exactly(rows.score, rows.seen, rows.v, rows.sink, rows.weight)
        for name, x in found.items():
            x[rows.at] = leaving(spec, rows, exact.o) if name == "o" else OUTPUTS[name].reference(exact)
    return {name: whole(name, x, spec) for name, x in found.items()}


def whole(name: str, x: Array, spec: "Spec") -> Array:
    """An output of all rows as a call has it: o [B, Hq, Sq, Dv] in the layout of the spec, the greatest of the rows of a head."""
    output = OUTPUTS[name]
    if output.like_o:
        return spec.order.given(x.transpose(spec.order.from_heads_first))
    return np.fmax.reduce(x, axis=(0, 2), initial=output.empty) if output.greatest_of else spec.order.given(x)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Some query rows of a head: what they read, and what each makes of each key, [rows, keys]."""

    place: Place
    q: Array
    k: Array
    v: Array  # float64, the last of all keys of the head
    scale: float
    known: Mapping[str, Any]  # what expressions read
    score: Array
    seen: Array
    sink: float
    weight: Array | None  # of each key, a factor of what its value counts for, [rows, keys]

    @property
    def at(self) -> tuple[int, int, slice]:
        """Their place in arrays of queries."""
        return self.place.rows


def rows_of(spec: "Spec", q: Array, k: Array, v: Array, values: Mapping[str, Any]) -> Iterator[Rows]:
    """All query rows, some at a time. q: [B, Hq, Sq, Dqk], k: [B, Hk, Sk, Dqk], v: [B, Hk, Sk, Dv]."""
    parsed = read(spec)
    heads, kv_heads = q.shape[1], k.shape[1]
    given = {p.name: p.default for p in spec.params} | dict(values)
    scale = float(meaning(parsed.scale, given))
    for each in sequences(spec, (len(q), q.shape[2], k.shape[2]), values):
        together = max(1, ELEMENTS // max(1, each.kv_len))
        of_sequence = (
            given
            | each.read(spec, given)
            | {"b": each.b, "q_len": each.q_len, "kv_len": each.kv_len, "kv_idx": np.arange(each.kv_len)[None, :]}
        )
        for h, first in product(range(heads), range(0, each.q_len, together)):
            hk, last = h // (heads // kv_heads), min(first + together, each.q_len)
            known = of_sequence | {"h": h, "hk": hk, "q_idx": np.arange(first, last)[:, None]}
            place = Place(sequence=each, head=h, kv_head=hk, part=slice(first, last))
            one = [x.astype(np.float64) for x in (q[place.rows], k[place.keys], v[place.keys])]
            one[0] = embedded(spec, "q", one[0], np.arange(first, last), known)
            one[1] = embedded(spec, "k", one[1], np.arange(each.kv_len), known)
            known["s"] = products(one[0], one[1], scale)
            score, seen = scores(parsed, known)
            if spec.blocks:
                lists = list_of(spec.blocks, np.asarray(values[spec.blocks.lists]), known)
                seen = seen & listed(spec.blocks, lists, np.arange(first, last), np.arange(each.kv_len))
            sink = -np.inf if parsed.sink is None else float(meaning(parsed.sink, known))
            weight = _weight(parsed, known, seen.shape)
            yield Rows(
                place=place, q=one[0], k=one[1], v=one[2], scale=scale, known=known, score=score, seen=seen, sink=sink, weight=weight
            )


def _weight(parsed: Expressions, known: Mapping[str, Any], shape: tuple[int, ...]) -> Array | None:
    if parsed.weight is None:
        return None
    return np.broadcast_to(meaning(parsed.weight, known), shape) if shape[1] else np.zeros(shape)


def leaving(spec: "Spec", rows: Rows, o: Array) -> Array:
    """The o of some rows, [rows, Dv], as it becomes before it is written."""
    output = read(spec).output
    if output is None:
        return o
    return np.broadcast_to(meaning(output, {**rows.known, "o": o, V_IDX: np.arange(o.shape[1])[None, :]}), o.shape)


def products(q: Array, k: Array, scale: float) -> Array:
    """s: of each row of q and each of k, [rows, keys]."""
    with np.errstate(all="ignore"):
        return in_range(in_range(q @ k.T) * scale)


def scores(parsed: Expressions, known: Mapping[str, Any]) -> tuple[Array, Array]:
    """The score of each row and key, [rows, keys], and true where the mask lets it be seen. `known` has s."""
    shape = known["s"].shape
    if not shape[1]:  # no key, and tensors may have none either
        return np.zeros(shape), np.zeros(shape, np.bool_)
    score, seen = (np.broadcast_to(meaning(part, known), shape) for part in (parsed.score, parsed.mask))
    return score, seen


def attend(score: Array, seen: Array, v: Array, sink: float, weight: Array | None = None) -> tuple[Array, Array]:
    """Softmax over the keys seen and the sink, times v: o [rows, Dv], lse [rows]."""
    exact = exactly(score, seen, v, sink, weight)
    return exact.o, exact.lse


@np.errstate(all="ignore")
def exactly(score: Array, seen: Array, v: Array, sink: float, weight: Array | None = None) -> Exact:
    """Everything that outputs are computed from, of rows that see these keys and this sink."""
    x = np.where(seen, score, -np.inf)
    top = x.max(-1, keepdims=True, initial=sink)
    empty = top == -np.inf
    base = np.where(empty, 0.0, top)
    p = np.where(seen & ~empty, np.exp(x - base), 0.0)
    total = p.sum(-1, keepdims=True) + np.exp(sink - base)
    lse = np.where(empty, -np.inf, top + np.log(total))[:, 0]
    p = p / np.where(empty, 1.0, total)
    return Exact(x, p, lse, weighted(_counted(p, weight), seen & ~empty, v))


@np.errstate(all="ignore")
def weigh(score: Array, seen: Array, v: Array, weight: Array | None = None) -> tuple[Array, Array]:
    """The scores of the keys seen, times v: o [rows, Dv]; the log of what it is divided by, 0 [rows]."""
    return weighted(_counted(np.where(seen, score, 0.0), weight), seen, v), np.zeros(len(score))


def _counted(p: Array, weight: Array | None) -> Array:
    """The factor that the value of each key counts by; nothing where p is 0."""
    return p if weight is None else np.where(p == 0, 0.0, p * weight)


def weighted(p: Array, seen: Array, v: Array) -> Array:
    """p v, [rows, Dv], where a vector that a row does not see never matters to it, whatever it holds."""
    finite = np.isfinite(v)
    o = p @ np.where(finite, v, 0.0)
    for key in np.flatnonzero(~finite.all(-1)):
        o += np.where(seen[:, [key]] & ~finite[key], p[:, [key]] * v[key], 0.0)
    return o


def output_heads_first(x: Array, spec: "Spec") -> Array:
    """An array of the layout of o as [B, H, S, D]."""
    return spec.order.expanded(np.asarray(x)).transpose(spec.order.to_heads_first)
