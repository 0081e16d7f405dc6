"""Whether what is timed is right: some rows of its output against float64."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.bench.cases import Case
from flashgen.expr.reference import attend, compiled, weigh
from flashgen.plan.split import split

_ROWS, _HEADS = 12, 3  # of a sample
_SHARE_ROWS = 128  # by which the visible share is known
Array = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """Some query rows of some heads, and what o is there."""

    case: Case
    rows: Array
    heads: tuple[tuple[int, int], ...]  # batch, head
    exact: Array  # [heads, rows, Dv], float64
    allowed: float  # twice the error of plain attention, products in float32, weights and o rounded to the dtype; or of fewer planes

    def error(self, o: Any) -> float:
        """Of an output, laid out like q, in any library: relative, in the 2-norm."""
        found = [numpy(_head(self.case, o, b, h)[self.rows]).astype(np.float64) for b, h in self.heads]
        return _relative(np.stack(found), self.exact)


def sample(case: Case, arrays: Mapping[str, Any]) -> Sample:
    """Draws rows, the first and the last among them. `arrays`: q, k, v and what the spec reads, by name."""
    rng = np.random.default_rng(case.seqlen)
    rows = np.unique([0, case.seqlen - 1, *rng.integers(0, case.seqlen, _ROWS)])
    heads = tuple((int(rng.integers(case.batch)), int(rng.integers(case.heads))) for _ in range(_HEADS))
    values = [*(p.default for p in case.spec.params), *(numpy(arrays[t.name]) for t in case.spec.tensors)]
    rounded = case.spec.element.numpy, case.spec.out_element.numpy
    exact: list[Array] = []
    plain: list[Array] = []
    for b, h in heads:
        hk = h * case.sizes.kv_heads // case.heads
        taken = [numpy(_head(case, arrays[name], b, i)) for name, i in (("q", h), ("k", hk), ("v", hk))]
        for kept, sums, weights, results in ((exact, np.float64, np.float64, np.float64), (plain, np.float32, *rounded)):
            q, k, v = (x.astype(sums) for x in taken)
            p, seen = _weights(case, q[rows] @ k.T, (b, h, hk), rows, values)
            kept.append(weigh(p.astype(weights).astype(sums), seen, v)[0].astype(results).astype(np.float64))
    planes = split(case.spec)
    expected = max(_relative(np.stack(plain), np.stack(exact)), planes.error if planes else 0.0)
    return Sample(case, rows, heads, np.stack(exact), 2 * expected)


def visible(case: Case, arrays: Mapping[str, Any]) -> float:
    """The share of pairs of a query and a key that the mask lets see each other, in the first sequence and head; 1/2 where it is causal."""
    if case.spec.mask == "causal":
        return 0.5  # as the literature counts
    rows = (np.arange(_SHARE_ROWS) + 0.5) * case.seqlen // _SHARE_ROWS
    _, mask, _, _ = compiled(case.spec)
    values = [*(p.default for p in case.spec.params), *(numpy(arrays[t.name]) for t in case.spec.tensors)]
    place = (0, 0, 0, rows.astype(int)[:, None], np.arange(case.seqlen)[None, :], case.seqlen, case.seqlen)
    seen = np.broadcast_to(mask(0.0, *place, *values), (_SHARE_ROWS, case.seqlen))
    return float(np.mean(seen.astype(bool)))


def _weights(case: Case, product: Array, head: tuple[int, int, int], rows: Array, values: list[Any]) -> tuple[Array, Array]:
    """The weights of rows in float64, and which keys they see."""
    score, mask, scale, sink = compiled(case.spec)
    lengths = (case.seqlen, case.seqlen)
    with np.errstate(all="ignore"):
        s = product * float(scale(*[0] * 8, *values))
        place = (*head, rows[:, None], np.arange(case.seqlen)[None, :], *lengths, *values)
        x, seen = (np.broadcast_to(f(s, *place), s.shape) for f in (score, mask))
        seen = seen.astype(bool)
        if case.spec.softmax.normalized:
            _, lse = attend(x, seen, np.zeros((case.seqlen, 0)), float(sink(0.0, *head, 0, 0, *lengths, *values)))
            x = np.exp(x - np.where(lse == -np.inf, 0.0, lse)[:, None])
        return np.where(seen, x, 0.0), seen


def _head(case: Case, x: Any, b: int, h: int) -> Any:
    return x[b, :, h] if case.spec.layout == "bshd" else x[b, h]


def _relative(found: Array, exact: Array) -> float:
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
