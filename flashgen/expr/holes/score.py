"""A bound score separated: a positive uniform factor, what a row and a column have of it, and what is left for an element."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.expr.holes.bind import SCALE, level, varies
from flashgen.expr.holes.separated import separate
from flashgen.expr.language.nodes import UNIFORM, Call, Const, Node, names, walk
from flashgen.expr.prove.linear import Sum, assemble, collect, zero
from flashgen.expr.prove.signs import Signs

if TYPE_CHECKING:
    from flashgen.spec import Spec

ONE = Const(1.0, "float")
LEAST_CONSTANT = 2.0**-20


@dataclass(frozen=True)
class Score:
    """`factor`, positive and uniform, times the sum of `rest` and `row_bias`, and `settled`.

    The raw q.k begins at `column_slope` times the column.
    """

    factor: Node
    rest: Node
    row_bias: Node | None = None  # another in each key tile
    settled: Node | None = None  # the same in all: it comes to the maximum where the row ends
    column_slope: Node | None = None
    proof: frozenset[str] = frozenset()  # the params that the sign of the factor rests on

    @property
    def divisible(self) -> bool:
        """True if what is added to the score can be divided by its factor."""
        return _may_divide(self.factor)

    @property
    def beside(self) -> bool:
        """True if it computes something of an element besides s and multiples of its column."""
        calls = (node for node in walk(self.rest) if isinstance(node, Call) and varies(node) and "s" not in names(node))
        return any(node.op not in ("fma", "+", "-", "*", "float") for node in calls)

    @property
    def bounded(self) -> bool:
        """True if it lies between -1 and 1 in units of the factor, with an error larger than what is lost in products with the factor."""
        alone = self.row_bias is None and self.settled is None and self.column_slope is None
        return alone and isinstance(self.rest, Call) and self.rest.op == "ptx::tanh"


def separated(bound: Node, spec: "Spec", signs: Signs, separate_rows: bool) -> Score:
    """The parts of a bound score; `separate_rows`: what a row and a column have of it is taken from the elements."""
    total = collect(bound, varies)
    if not spec.softmax.normalized:
        return Score(factor=ONE, rest=assemble(total))
    if not separate_rows:
        factor, rest, proof = _separated(total, signs)
        return Score(factor=factor, rest=assemble(rest), proof=proof)
    parts = separate(total, signs)
    factor, rest, proof = _separated(parts.rest, signs)
    row_bias, settled = parts.moving(factor), parts.settled
    if not _may_divide(factor) and not (row_bias is None and parts.column_slope is None):
        return separated(bound, spec, signs, separate_rows=False)
    return Score(factor=factor, rest=assemble(rest), row_bias=row_bias, settled=settled, column_slope=parts.column_slope, proof=proof)


def _may_divide(factor: Node) -> bool:
    """True if a factor is the scale of a call times a constant, neither of them next to 0: a quotient by it stays finite."""
    constants = [node.value for node in walk(factor) if isinstance(node, Const)]
    return names(factor) <= {SCALE.name} and all(abs(value) >= LEAST_CONSTANT for value in constants)


def _separated(total: Sum, signs: Signs) -> tuple[Node, Sum, frozenset[str]]:
    """The score as a positive uniform factor times the rest, and the params that the sign of the factor rests on."""
    if len(total.terms) == 1 and total.const == zero("float"):
        core, factor = total.terms[0]
        proof = signs.positive(factor)
        if proof is not None and level(factor) <= UNIFORM:
            return factor, Sum(total.const, ((core, ONE),)), proof
    return ONE, total, frozenset()
