"""A score separated by what its parts vary over, so that each is added where that costs least.

What all of a row has of it in a key tile goes to the row's maximum and reference. What a column has of it, as ALiBi's
slope * float(column), is the same in every row and every key tile: the sums of the product q.k begin there, and no element adds anything.
"""

from dataclasses import dataclass

from flashgen.expr.holes.bind import KV_BEGIN, S, level
from flashgen.expr.language.nodes import ROW, UNIFORM, Call, Const, Node, names, walk
from flashgen.expr.prove.linear import COLUMN, Sum, assemble, collect, zero
from flashgen.expr.prove.signs import Signs

_COLUMN = Call("float", (COLUMN,), "float")


@dataclass(frozen=True)
class Separated:
    """A score separated: `rest` and what all of a row has besides, in its unit; its growth from column to column, in that of the score."""

    rest: Sum
    row_bias: Node  # 0 where nothing is taken from the rest
    column_slope: Node | None  # None: it stays in the rest

    def moving(self, factor: Node) -> Node | None:
        """The row's part that is another in each key tile, in units of a uniform factor; numbers that may cancel in it stay together."""
        return _some(self._parts[0].over(factor))

    @property
    def settled(self) -> Node | None:
        """The rest of it, in units of the score: that may be any number of float32, and a quotient by a factor below 1 is not."""
        return _some(self._parts[1])

    @property
    def _parts(self) -> tuple[Sum, Sum]:
        total, nothing = collect(self.row_bias, lambda node: level(node) >= ROW or _counts(node)), zero("float")
        along = {_size(times) for core, times in total.terms if KV_BEGIN in walk(core)}
        moving = tuple((core, times) for core, times in total.terms if KV_BEGIN in walk(core) or _size(times) in along)
        return Sum(nothing, moving), Sum(total.const, tuple(term for term in total.terms if term not in moving))


def separate(total: Sum, signs: Signs) -> Separated:
    """A score as what a row, a column and an element have of it, where it is linear in s, and in the column what else varies.

    So what the row's part leaves behind grows with the columns of one key tile, not with positions in the sequence: large numbers that
    cancel, as of slope * (kv_idx - q_idx) far from the first key, do so once a row, and take no bits of an element.

    >>> from flashgen.expr.holes.cuda import cuda
    >>> from flashgen.expr.language.nodes import Name
    >>> slope, scale, row = Name("slope", "float"), Name("scale", "float"), Name("row", "float")
    >>> found = separate(Sum(row, ((S, scale), (_COLUMN, slope))), Signs({"scale": frozenset()}))
    >>> cuda(found.row_bias), cuda(found.column_slope), cuda(assemble(found.rest))
    ('row', 'slope', 'scale * s')
    """
    terms, nothing = dict(total.terms), zero("float")
    if not terms.keys() <= {S, _COLUMN}:
        return Separated(total, nothing, None)
    factor, slope = terms.get(S), terms.get(_COLUMN)
    if factor and slope and len(terms) == 2 and _uniform(factor, slope) and signs.positive(factor) is not None:
        return Separated(Sum(nothing, ((S, factor),)), total.const, slope)
    return Separated(Sum(nothing, total.terms), total.const, None)


def _some(total: Sum) -> Node | None:
    return None if (node := assemble(total)) == zero("float") else node


def _uniform(*nodes: Node) -> bool:
    return all(level(node) <= UNIFORM for node in nodes)


def _counts(node: Node) -> bool:
    """True if it is computed of a number of tokens or heads, which what moves may cancel."""
    match node:
        case Call("float", (x,)):
            return bool(names(x))
        case Call(_, args):
            return any(map(_counts, args))
    return False


def _size(factor: Node) -> Node:
    """The factor without its sign."""
    match factor:
        case Call("neg", (x,)):
            return x
        case Const(value, type):
            return Const(abs(value), type)
    return factor
