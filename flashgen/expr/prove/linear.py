"""Sums: constant + sum(coefficient * core), where only the cores vary at the level that is looked at."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

from flashgen.expr.language.fold import call
from flashgen.expr.language.nodes import ELEMENT, Call, Const, Index, Name, Node, Summation, Type, names, rebuild, walk

COLUMN = Name("column", "int", ELEMENT)  # of a key in its tile, known when the loop over columns is unrolled
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}  # comparisons, both sides with the other sign
Varies = Callable[[Node], bool]


@dataclass(frozen=True)
class Sum:
    """A number as a sum. Neither `const` nor a coefficient varies; a core does, and is itself normal (see `normal`)."""

    const: Node
    terms: tuple[tuple[Node, Node], ...]  # core, coefficient

    @property
    def type(self) -> Type:
        """The type of the number."""
        return self.const.type

    def __add__(self, other: "Sum") -> "Sum":
        total = dict(self.terms)
        for core, c in other.terms:
            total[core] = plus(total[core], c) if core in total else c
        return Sum(plus(self.const, other.const), tuple((core, c) for core, c in total.items() if c != Const(0, "int")))

    def times(self, factor: Node) -> "Sum":
        """The sum with each term multiplied by a factor that does not vary."""
        const = self.const if self.const == zero(self.type) else times(self.const, factor)
        return Sum(const, tuple((core, times(c, factor)) for core, c in self.terms))

    def over(self, divisor: Node) -> "Sum":
        """The sum of floats with each term divided by a divisor that does not vary."""
        const = self.const if self.const == zero("float") else call("/", self.const, divisor)
        return Sum(const, tuple((core, call("/", c, divisor)) for core, c in self.terms))


def zero(type: Type) -> Const:
    """The constant 0 of a type."""
    return Const(0, "int") if type == "int" else Const(0.0, "float")


def one(type: Type) -> Const:
    """The constant 1 of a type."""
    return Const(1, "int") if type == "int" else Const(1.0, "float")


def plus(a: Node, b: Node) -> Node:
    """A node of a + b, as a - c where b is negative by its text."""
    match b:
        case Call("neg", (x,)):
            return call("-", a, x)
        case Const(value) if value < 0:
            return call("-", a, Const(-value, b.type))
        case Call("*", (Const(c), x)) if c < 0:
            return call("-", a, call("*", Const(-c, b.type), x))
    return call("+", a, b)


def times(a: Node, b: Node) -> Node:
    """A node of a * b, as -b where a is -1; a constant stands in front."""
    minus = Const(-1, a.type)
    if minus in (a, b):
        return call("neg", b if a == minus else a)
    return call("*", b, a) if isinstance(b, Const) else call("*", a, b)


def collect(node: Node, varies: Varies) -> Sum:
    """The number as a sum; products are multiplied out only by what does not vary."""
    if not varies(node):
        return Sum(node, ())
    match node:
        case Call("+", (a, b)):
            return collect(a, varies) + collect(b, varies)
        case Call("-", (a, b)):
            return collect(a, varies) + collect(b, varies).times(Const(-1, node.type))
        case Call("neg", (a,)):
            return collect(a, varies).times(Const(-1, node.type))
        case Call("*", (a, b)) if not (varies(a) and varies(b)):
            return collect(a, varies).times(b) if varies(a) else collect(b, varies).times(a)
        case Call("*", (a, b)):
            return _product(collect(a, varies), collect(b, varies))
        case Call("/", (a, b)) if not varies(b):
            return collect(a, varies).over(b)
        case Call("float", (a,)) if varies(a):
            return _as_float(collect(a, varies))
        case Summation(_, term):
            return _alone(replace(node, term=_around(normal(term, by_index), lambda part: normal(part, varies))))
    return _alone(rebuild(node, lambda child: normal(child, varies)))


def normal(node: Node, varies: Varies) -> Node:
    """The node with every sum in it gathered; a comparison of integers has what varies on its left."""
    if not varies(node):
        return node
    match node:
        case Call("<" | "<=" | ">" | ">=" | "==" | "!=" as op, (a, b)) if a.type == "int":
            total = collect(call("-", a, b), varies)
            if all(_negative(c) for _, c in total.terms):  # x stands there and not -x, which may have a bit more than x
                positive = tuple((core, call("neg", c)) for core, c in total.terms)
                return call(TURNED[op], assemble(Sum(zero("int"), positive)), total.const)
            return call(op, assemble(Sum(zero("int"), total.terms)), call("neg", total.const))
        case Call(_, _, "bool"):
            return rebuild(node, lambda child: normal(child, varies))
    return assemble(collect(node, varies))


def assemble(total: Sum) -> Node:
    """The sum as a node. Of floats: multiply-adds from the constant on, those of s last. Of integers: the constant last."""
    if total.type == "int":
        added = [times(c, core) for core, c in total.terms if not _negative(c)]
        taken = [times(c, core) for core, c in total.terms if _negative(c)]
        return reduce(plus, [*added, *taken, total.const] if added else [total.const, *taken])
    terms = sorted(total.terms, key=lambda term: "s" in names(term[0]))
    result: Node | None = None if total.const == zero("float") else total.const
    for core, c in terms:
        result = _accumulate(result, core, c)
    return result or zero("float")


def by_index(node: Node) -> bool:
    """True if a node differs from term to term of a sum."""
    return any(isinstance(below, Index) for below in walk(node))


def _around(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` applied to the largest parts that no index is in: what a loop has before it."""
    return rebuild(node, lambda child: _around(child, change)) if by_index(node) else change(node)


def _negative(c: Node) -> bool:
    return (isinstance(c, Const) and c.value < 0) or (isinstance(c, Call) and c.op == "neg")


def _accumulate(result: Node | None, core: Node, c: Node) -> Node:
    if result is None:
        return times(c, core)
    if c == one("float"):
        return call("+", result, core)
    return call("-", result, core) if c == Const(-1.0, "float") else Call("fma", (c, core, result), "float")


def _alone(core: Node) -> Sum:
    return Sum(zero(core.type), ((core, one(core.type)),))


def _product(a: Sum, b: Sum) -> Sum:
    """Coefficients of single terms leave a product; a sum of several stays a factor."""
    factor: Node = one(a.type)
    cores = []
    for total in (a, b):
        single = len(total.terms) == 1 and total.const == zero(total.type)
        core, c = total.terms[0] if single else (assemble(total), one(total.type))
        factor = times(factor, c)
        cores.append(core)
    return _alone(Call("*", (cores[0], cores[1]), a.type)).times(factor)


def _as_float(total: Sum) -> Sum:
    """A whole column number leaves float(...), so that what stays inside is of the row: exact while both are below 2^24."""
    if [core for core, _ in total.terms] != [COLUMN]:
        return _alone(Call("float", (assemble(total),), "float"))
    column = Call("float", (COLUMN,), "float")
    return Sum(call("float", total.const), ((column, call("float", total.terms[0][1])),))
