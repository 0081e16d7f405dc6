"""Checks what is timed: some rows of its output against float64."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.bench.cases import Case
from flashgen.expr.language.nodes import V_IDX
from flashgen.expr.language.read import read
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.embedding import embedded
from flashgen.expr.meaning.reference import attend, scores, weigh
from flashgen.plan.operands.planes import planes

_ROWS, _HEADS = 12, 3  # of a sample
_SHARE_ROWS = 128  # by which the visible share is known
Array = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """Some query rows of some heads, with the o that float64 gives there."""

    case: Case
    rows: Array
    heads: tuple[tuple[int, int], ...]  # batch, head
    exact: Array  # [heads, rows, Dv], float64
    allowed: float  # twice the error of plain attention, products in float32, weights and o rounded to the dtype; or of fewer planes

    def error(self, o: Any) -> float:
        """The relative error of an output, in the 2-norm; it is laid out like q, in any library."""
        found = [head_of(self.case, o, b, h, self.case.of(b).q_len)[self.rows].astype(np.float64) for b, h in self.heads]
        return relative(np.stack(found), self.exact)


def sample(case: Case, arrays: Mapping[str, Any]) -> Sample:
    """Draws rows, the first and the last among them. `arrays`: q, k, v and what the spec reads, by name."""
    rows, heads = rows_of_heads(case)
    rounded = case.spec.element.numpy, case.spec.out_element.numpy
    exact: list[Array] = []
    plain: list[Array] = []
    kinds: tuple[tuple[list[Array], Any, Any, Any], ...] = ((exact, np.float64, np.float64, np.float64), (plain, np.float32, *rounded))
    for b, h in heads:
        hk, own = h * case.sizes.kv_heads // case.heads, case.of(b)
        values = values_of(own, arrays)
        of = (("q", h, own.q_len), ("k", hk, own.seqlen), ("v", hk, own.seqlen))
        taken = [head_of(case, arrays[name], b, i, n) for name, i, n in of]
        for kept, sums, of_weights, results in kinds:
            q, k, v = (x.astype(sums) for x in taken)
            q, k = (_embedded(own, role, x, b, values) for role, x in (("q", q), ("k", k)))
            p, factor, seen = weights(own, q[rows] @ k.T, {"b": b, "h": h, "hk": hk}, rows, values)
            counted = (p * factor).astype(of_weights).astype(sums)
            o = _leaving(own, weigh(counted, seen, v)[0], {"b": b, "h": h, "hk": hk}, rows, values)
            kept.append(o.astype(results).astype(np.float64))
    split = planes(case.spec)
    expected = max(relative(np.stack(plain), np.stack(exact)), split.error if split else 0.0)
    return Sample(case=case, rows=rows, heads=heads, exact=np.stack(exact), allowed=2 * expected)


def visible(case: Case, arrays: Mapping[str, Any]) -> float:
    """The share of pairs of a query and a key that the mask lets see each other, in the first sequence and head; 1/2 where it is causal."""
    if case.spec.mask == "causal" and not case.queries:
        return 0.5  # as the literature counts
    rows = (np.arange(_SHARE_ROWS) + 0.5) * case.q_len // _SHARE_ROWS
    known = values_of(case, arrays) | {
        "b": 0,
        "h": 0,
        "hk": 0,
        "q_idx": rows.astype(int)[:, None],
        "kv_idx": np.arange(case.seqlen)[None, :],
    }
    return float(np.mean(np.broadcast_to(meaning(read(case.spec).mask, known), (_SHARE_ROWS, case.seqlen))))


def weights(case: Case, product: Array, head: Mapping[str, int], rows: Array, values: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """The weights of rows in float64, what their keys count for besides, and which they see."""
    parsed = read(case.spec)
    known = {**values, **head, "q_idx": rows[:, None], "kv_idx": np.arange(case.seqlen)[None, :]}
    x, seen = scores(parsed, known | {"s": product * float(meaning(parsed.scale, known))})
    with np.errstate(all="ignore"):
        if case.spec.softmax.normalized:
            sink = -np.inf if parsed.sink is None else float(meaning(parsed.sink, known))
            _, lse = attend(x, seen, np.zeros((case.seqlen, 0)), sink)
            x = np.exp(x - np.where(lse == -np.inf, 0.0, lse)[:, None])
        factor = np.ones(()) if parsed.weight is None else np.asarray(meaning(parsed.weight, known))
        return np.where(seen, x, 0.0), np.where(seen, factor, 0.0), seen


def _embedded(case: Case, role: str, x: Array, b: int, values: Mapping[str, Any]) -> Array:
    """Rows of q or of k [S, D] after the spec's norm and rotary embedding."""
    return embedded(case.spec, role, x, np.arange(len(x)), {**values, "b": b, "q_len": case.q_len, "kv_len": case.seqlen})


def _leaving(case: Case, o: Array, head: Mapping[str, int], rows: Array, values: Mapping[str, Any]) -> Array:
    """Applies `output` to o [rows, Dv]."""
    output = read(case.spec).output
    known = {**values, **head, "q_idx": rows[:, None], "o": o, V_IDX: np.arange(o.shape[1])[None, :]}
    return o if output is None else np.broadcast_to(meaning(output, known), o.shape)


def values_of(case: Case, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The values that expressions read alike for every row and key, by name."""
    params = {p.name: p.default for p in case.spec.params}
    return {**params, **{t.name: numpy(arrays[t.name]) for t in case.spec.tensors}, "q_len": case.q_len, "kv_len": case.seqlen}


def rows_of_heads(case: Case) -> tuple[Array, tuple[tuple[int, int], ...]]:
    """The rows of a sample, the first and the last among them, and their heads: batch, head. Of unequal sequences the longest one."""
    rng, last = np.random.default_rng(case.seqlen), case.batch - 1
    q_len = case.of(last).q_len
    rows = np.unique([0, q_len - 1, *rng.integers(0, q_len, _ROWS)])
    return rows, tuple((last if case.unequal else int(rng.integers(case.batch)), int(rng.integers(case.heads))) for _ in range(_HEADS))


def head_of(case: Case, x: Any, b: int, h: int, length: int) -> Array:
    """The rows of a head in a sequence of so many, in host memory."""
    own = slice(case.ends[b], case.ends[b] + length) if case.spec.order.packed else slice(None)
    return numpy(x[case.spec.order.arranged(b=b, s=own, h=h, d=slice(None))])


def relative(found: Array, exact: Array) -> float:
    """The distance of two arrays in the 2-norm, relative to the exact one."""
    size = float(np.linalg.norm(exact))
    return float(np.linalg.norm(found - exact)) / (size or 1.0)


def numpy(x: Any) -> Array:
    """An array of NumPy, CuPy or PyTorch in host memory; floats of PyTorch as float32."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):
        found: Array = (x.detach().float() if x.is_floating_point() else x).cpu().numpy()
        return found
    bits = x.view("uint16") if x.dtype.name == "bfloat16" else x  # CuPy has no copy of bfloat16
    return np.asarray(bits.get().view(x.dtype))
