"""The outputs of an attention, a row each: nothing else lists them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Exact(NamedTuple):
    """The reference of some query rows, float64: what an output is computed from by its definition."""

    score: Array  # [rows, keys], -inf where the mask hides the key
    p: Array  # the weights, [rows, keys]: with a sink they sum up to less than 1
    lse: Array  # [rows]
    o: Array  # [rows, Dv]


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A sum over the keys of a row that its state has besides maximum, sum and o.

    Its cells are written once, over a namespace `xp` with maximum, divide and log2, as schedules are (flashgen.theory.schedule): of NumPy
    in the interpreter, of CUDA in a kernel. An exponent x of a key is its score less the reference of the row, in log2 units. Its weight
    is 2^x, which is 0 where x is -inf.
    """

    name: str  # a word: of a member in emitted text
    text: str  # what is summed up, for people
    term: Callable[[Any, Any, Any], Any]  # xp, weight, exponent: what a key adds
    moved: Callable[[Any, Any, Any, Any, Any], Any]  # xp, itself, l, 2^x, x: what it becomes where every exponent grows by x
    multiplies: int  # multiplies and adds of a key
    registers: int  # of a thread, which has two rows


@dataclass(frozen=True, kw_only=True)
class Output:
    """An output of a call. Cells are plain functions of whatever somebody asks about."""

    name: str
    axes: tuple[str, ...] | None  # words, outermost first; None: those of o
    text: str  # what it is, for people
    comment: str  # of its member in the emitted Params, behind its axes
    empty: float  # of a row that sees no key, and of a head without rows
    reference: Callable[[Exact], Array]  # by its definition, for each row
    dtype: str | None = "float32"  # None: out_dtype
    greatest_of: str = ""  # the output of each row whose greatest it is; "": it is of a row itself
    exact_maximum: bool = False  # whether it takes the maximum itself, and no reference near it
    statistic: Statistic | None = None  # that it is made of; None: of maximum and sum, as every softmax leaves them
    finish: Callable[[Any, Any, Any, Any], Any] | None = None  # xp, l, the statistic, the sink's share of l or None; where l is not 0
    logarithmic: bool = False  # whether it is finished in units of exponents, and leaves in natural ones
    between: Callable[[Array, Array], tuple[Array, Array]] | None = None  # its bounds by those of p; None: it grows with every score
    tolerance: float | None = None  # of `flashgen check`; None: what standard attention errs, twice, and a floor

    def __post_init__(self) -> None:
        if (self.statistic is None) != (self.finish is None):
            raise ValueError(f"the output {self.name!r} has a statistic and no finish, or the other way round")

    @property
    def like_o(self) -> bool:
        """True if it has the axes and the dtype of o."""
        return self.axes is None

    @property
    def by_row(self) -> bool:
        """True if it is one number a query row, which the attention writes."""
        return self.axes == ROW

    def shape(self, words: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape where the words b, hq and q_len have these values, without an axis whose word is missing; not for o, whose layout the
        spec says."""
        assert self.axes is not None, self.name
        return tuple(words[axis] for axis in self.axes if axis in words)

    def said(self, packed: bool) -> str:
        """The comment of its member, with its axes. `packed`: sequences lie one behind the other.

        >>> OUTPUTS["lse"].said(packed=True)
        '[Hq, total_q], natural log'
        """
        assert self.axes is not None, self.name
        words = {"hq": "Hq", "q_len": "total_q"} if packed else {"b": "B", "hq": "Hq", "q_len": "Sq"}
        return f"[{', '.join(words[axis] for axis in self.axes if axis in words)}], {self.comment}"


ROW = ("b", "hq", "q_len")
LEAST_EXPONENT = -1000.0  # in place of -inf, which is no number times a weight of 0; 2 to it is 0 in float32
LEAST_SHARE = 2.0**-100  # in place of 0, whose logarithm is no number times 0


def _moved_exponents(xp: Any, weighted: Any, total: Any, weight: Any, exponent: Any) -> Any:
    return weight * (weighted + xp.maximum(exponent, LEAST_EXPONENT) * total)


WEIGHTED = Statistic(
    name="weighted",
    text="the exponents of the keys, each times its weight",
    term=lambda xp, weight, exponent: weight * xp.maximum(exponent, LEAST_EXPONENT),
    moved=_moved_exponents,
    multiplies=2,
    registers=4,
)


def _entropy(xp: Any, total: Any, weighted: Any, sink: Any) -> Any:
    """log l - t / l is -sum p log p over keys and sink; of the sink's part nothing stays. Not below 0, where only rounding takes it."""
    of_all = xp.log2(total) - xp.divide(weighted, total)
    return xp.maximum(of_all if sink is None else of_all + sink * xp.log2(xp.maximum(sink, LEAST_SHARE)), 0.0)


@np.errstate(all="ignore")
def _surprise(p: Array) -> Array:
    """-p log p; 0 where nothing is seen."""
    return np.where(p == 0, 0.0, -p * np.log(p))


def _entropies_between(least: Array, most: Array) -> tuple[Array, Array]:
    """-p log p rises up to 1 / e, and falls from there on."""
    ends, top = (_surprise(least), _surprise(most)), 1 / np.e
    highest = np.where((least < top) & (top < most), top, np.maximum(*ends))
    return np.minimum(*ends).sum(-1), highest.sum(-1)


_ROWS = (
    Output(
        name="o",
        axes=None,
        dtype=None,
        text="of out_dtype",
        comment="",
        empty=0.0,
        reference=lambda exact: exact.o,
    ),
    Output(
        name="lse",
        axes=ROW,
        text="[b, hq, q_len], the log of the sum of exponentials of each row",
        comment="natural log",
        empty=-np.inf,
        reference=lambda exact: exact.lse,
        tolerance=1e-3,
    ),
    Output(
        name="max",
        axes=ROW,
        text="[b, hq, q_len], the greatest score of each row",
        comment="the greatest score of a row",
        empty=-np.inf,
        reference=lambda exact: np.fmax.reduce(exact.score, axis=-1, initial=-np.inf),  # NaN counts as none
        exact_maximum=True,
        tolerance=1e-3,
    ),
    Output(
        name="max_logit",
        axes=("hq",),
        text="[hq], the greatest score of each head",
        comment="the greatest score of a head",
        empty=-np.inf,
        reference=lambda exact: np.fmax.reduce(exact.score, axis=-1, initial=-np.inf),
        greatest_of="max",
        tolerance=1e-3,
    ),
    Output(
        name="entropy",
        axes=ROW,
        text="[b, hq, q_len], the entropy of the weights of each row, -sum p log p over its keys, in natural units",
        comment="-sum p log p of the weights of a row, natural units",
        empty=0.0,
        reference=lambda exact: _surprise(exact.p).sum(-1),
        statistic=WEIGHTED,
        finish=_entropy,
        logarithmic=True,
        between=_entropies_between,
        tolerance=1e-3,
    ),
    Output(
        name="o_raw",
        axes=None,
        dtype=None,
        text="of out_dtype, what o was before `output`",
        comment="",
        empty=0.0,
        reference=lambda exact: exact.o,
    ),
)
OUTPUTS: dict[str, Output] = {each.name: each for each in _ROWS}  # in the order of a call's results


def of_rows(outputs: Sequence[str]) -> tuple[str, ...]:
    """The outputs of one number a query row, and those that an output of a head is made of, in the order of the table.

    >>> of_rows(("o", "lse", "max_logit"))
    ('lse', 'max')
    """
    needed = {*outputs, *(OUTPUTS[name].greatest_of for name in outputs)}
    return tuple(name for name, row in OUTPUTS.items() if row.by_row and name in needed)


def finished(outputs: Sequence[str]) -> tuple[Output, ...]:
    """The outputs that are made of a statistic."""
    return tuple(row for name, row in OUTPUTS.items() if name in outputs and row.statistic)


def statistics(outputs: Sequence[str]) -> tuple[Statistic, ...]:
    """The statistics that outputs are made of, each once.

    >>> [statistic.name for statistic in statistics(("o", "entropy"))]
    ['weighted']
    """
    return tuple(dict.fromkeys(row.statistic for row in finished(outputs) if row.statistic))


def fill_empty(outputs: Mapping[str, Any]) -> None:
    """Writes the outputs of a call without queries or without sequences, which launches nothing: those of rows without keys."""
    for name, x in outputs.items():
        if 0 not in x.shape:
            x[...] = OUTPUTS[name].empty
