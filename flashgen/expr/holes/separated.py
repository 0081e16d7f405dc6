"""A score separated by what its parts vary over, so that each is added where that costs least.

What all of a row has of it in a key tile goes to the row's maximum and reference. What a column has of it, as ALiBi's
slope * float(column), is the same in every row and every key tile: the sums of the product q.k begin there, and no element adds anything.
"""

from dataclasses import dataclass

from flashgen.expr.holes.bind import S, level
from flashgen.expr.language.fold import call
from flashgen.expr.language.nodes import ROW, UNIFORM, Call, Node
from flashgen.expr.prove.linear import COLUMN, Sum, assemble, collect, zero
from flashgen.expr.prove.signs import Signs

_COLUMN = Call("float", (COLUMN,), "float")


@dataclass(frozen=True)
class Separated:
    """A score separated: `rest` and what all of a row has besides, in its unit; its growth from column to column, in the unit of s."""

    rest: Sum
    row_bias: Node  # 0 where nothing is taken from the rest
    column_slope: Node | None  # None: it stays in the rest

    def row_bias_over(self, factor: Node) -> Node:
        """The row's part in units of a uniform factor."""
        return assemble(collect(self.row_bias, lambda node: level(node) >= ROW).over(factor))


def separate(total: Sum, signs: Signs) -> Separated:
    """A score as what a row, a column and an element have of it, where it is linear in s, and in the column what else varies.

    So what the row's part leaves behind grows with the columns of one key tile, not with positions in the sequence: large numbers that
    cancel, as of slope * (kv_idx - q_idx) far from the first key, do so once a row, and take no bits of an element.

    >>> from flashgen.expr.holes.cuda import cuda
    >>> from flashgen.expr.language.nodes import Name
    >>> slope, scale, row = Name("slope", "float"), Name("scale", "float"), Name("row", "float")
    >>> found = separate(Sum(row, ((S, scale), (_COLUMN, slope))), Signs({"scale": frozenset()}))
    >>> cuda(found.row_bias), cuda(found.column_slope), cuda(assemble(found.rest))
    ('row', 'slope / scale', 'scale * s')
    """
    terms, nothing = dict(total.terms), zero("float")
    if not terms.keys() <= {S, _COLUMN}:
        return Separated(total, nothing, None)
    factor, slope = terms.get(S), terms.get(_COLUMN)
    if factor and slope and len(terms) == 2 and _uniform(factor, slope) and signs.positive(factor) is not None:
        return Separated(Sum(nothing, ((S, factor),)), total.const, call("/", slope, factor))
    return Separated(Sum(nothing, total.terms), total.const, None)


def _uniform(*nodes: Node) -> bool:
    return all(level(node) <= UNIFORM for node in nodes)
