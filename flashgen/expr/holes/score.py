"""A bound score separated: a positive uniform factor, what a row and a column have of it, and what is left for an element."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.dtypes import float32_text
from flashgen.expr.holes.bind import SCALE, level, varies
from flashgen.expr.holes.separated import separate
from flashgen.expr.language.claims import Requirement
from flashgen.expr.language.fold import FALSE, TRUE, call, fold
from flashgen.expr.language.nodes import UNIFORM, Call, Const, Name, Node, Summation, names, walk
from flashgen.expr.language.text import show
from flashgen.expr.prove.linear import Sum, assemble, collect, zero
from flashgen.expr.prove.signs import Signs

if TYPE_CHECKING:
    from flashgen.spec import Spec

ONE = Const(1.0, "float")
LEAST_SCALE = 2.0**-64  # that biases are divided by: quotients that differ beyond FAR (softmax/natural.j2) cannot both have weight
LEAST_CONSTANT = 2.0**-20  # beside it
PART_OF_SLOPE = 2.0**-90  # distances reach to 2^31, and their quotients then to 2^121; q.k is to stay below 2^66


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
    of_slopes: Node | None = None  # what both are divided by, where that is not the factor
    proof: frozenset[str] = frozenset()  # the params that the sign of the factor rests on

    @property
    def divisible(self) -> bool:
        """True if what is added to the score can be divided by its factor."""
        return _may_divide(self.factor)

    @property
    def beside(self) -> bool:
        """True if it computes something of an element besides s and multiples of its column."""
        below = (node for node in walk(self.rest) if isinstance(node, Call | Summation) and varies(node) and "s" not in names(node))
        return any(isinstance(node, Summation) or node.op not in ("fma", "+", "-", "*", "float") for node in below)

    @property
    def bounded(self) -> bool:
        """True if it lies between -1 and 1 in units of the factor, with an error larger than what is lost in products with the factor."""
        alone = self.row_bias is None and self.settled is None and self.column_slope is None
        return alone and isinstance(self.rest, Call) and self.rest.op == "ptx::tanh"

    def requires(self, usual: tuple[Requirement, ...]) -> tuple[Requirement, ...]:
        """The requirements of a factor that is to be positive; `usual`: those of the scale, if it is one."""
        return *map(_positive, sorted(self.proof)), *(usual if SCALE.name in names(self.factor) else ())


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
    slope, unit = parts.column_slope, factor if parts.column_slope is None else _of_slopes(parts.column_slope, factor)
    row_bias = parts.moving(unit)
    if not _may_divide(factor) and not (row_bias is None and slope is None):
        return separated(bound, spec, signs, separate_rows=False)
    return Score(
        factor=factor,
        rest=assemble(rest),
        row_bias=row_bias,
        settled=parts.settled,
        column_slope=None if slope is None else call("/", slope, unit),
        of_slopes=None if unit == factor else unit,
        proof=proof,
    )


def _of_slopes(slope: Node, factor: Node) -> Node:
    """The divisor of a slope: the factor of q.k, and at least a part of the slope, so that what it adds at any distance stays finite.

    Where that is the greater, the slope still adds so much from key to key that it alone decides.
    """
    part = fold(call("*", Const(PART_OF_SLOPE, "float"), call("abs", slope)))
    if isinstance(part, Const) and part.value <= LEAST_SCALE * LEAST_CONSTANT:
        return factor
    return call("max", factor, part)


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


def _positive(param: str) -> Requirement:
    node = Call(">", (Name(param, "float"), Const(0.0, "float")), "bool")
    return Requirement(f"{param} > 0", node, f"{param} must be positive: the sign of the score rests on it")


def positive_scale(scale: Node, params: Signs) -> tuple[frozenset[str] | None, tuple[Requirement, ...]]:
    """The params that a positive scale rests on, None without proof; and what it must be at a call, where it is a factor of the score."""
    bounds = (Call(">=", (scale, Const(LEAST_SCALE, "float")), "bool"), Call("<=", (scale, Const(1 / LEAST_SCALE, "float")), "bool"))
    proof, usual = params.positive(scale), call("&", *map(fold, bounds))
    if proof is None or usual == FALSE:
        return None, ()
    message = f"scale is positive by default, and then from {float32_text(LEAST_SCALE)} to {float32_text(1 / LEAST_SCALE)}"
    return proof, () if usual == TRUE else (Requirement(show(usual), usual, message),)
