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
class Output:
    """An output of a call. Cells are plain functions of whatever somebody asks about."""

    name: str
    axes: tuple[str, ...] | None  # words, outermost first; None: those of o
    text: str  # what it is, for people
    comment: str  # of its member in the emitted Params
    empty: float  # of a row that sees no key, and of a head without rows
    reference: Callable[[Exact], Array]  # by its definition, for each row
    dtype: str | None = "float32"  # None: out_dtype
    greatest_of: str = ""  # the output of each row whose greatest it is; "": it is of a row itself
    exact_maximum: bool = False  # whether it takes the maximum itself, and no reference near it
    tolerance: float | None = None  # of `flashgen check`; None: what standard attention errs, twice, and a floor

    @property
    def by_row(self) -> bool:
        """True if it is one number a query row, which the attention writes."""
        return self.axes == ROW

    def shape(self, words: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape where the words b, hq and q_len have these values; not for o, whose layout the spec says."""
        assert self.axes is not None, self.name
        return tuple(words[axis] for axis in self.axes)


ROW = ("b", "hq", "q_len")

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
        comment="[B, Hq, Sq], natural log",
        empty=-np.inf,
        reference=lambda exact: exact.lse,
        tolerance=1e-3,
    ),
    Output(
        name="max",
        axes=ROW,
        text="[b, hq, q_len], the greatest score of each row",
        comment="[B, Hq, Sq], the greatest score of a row",
        empty=-np.inf,
        reference=lambda exact: np.fmax.reduce(exact.score, axis=-1, initial=-np.inf),  # NaN counts as none
        exact_maximum=True,
        tolerance=1e-3,
    ),
    Output(
        name="max_logit",
        axes=("hq",),
        text="[hq], the greatest score of each head",
        comment="[Hq], the greatest score of a head",
        empty=-np.inf,
        reference=lambda exact: np.fmax.reduce(exact.score, axis=-1, initial=-np.inf),
        greatest_of="max",
        tolerance=1e-3,
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


def fill_empty(outputs: Mapping[str, Any]) -> None:
    """Writes the outputs of a call without queries, which launches nothing: only heads have elements then."""
    for name, x in outputs.items():
        if OUTPUTS[name].greatest_of:
            x[...] = OUTPUTS[name].empty
