"""Members and statements: what varies less is computed further outside, and what occurs twice once."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

from flashgen.expr.holes.bind import GIVEN, level
from flashgen.expr.holes.cuda import cuda
from flashgen.expr.holes.instructions import instructions
from flashgen.expr.holes.loops import ALL_LANES, LOCALS, OF_LANE, Together, of_lane, shared, statements, together
from flashgen.expr.holes.sharing import Kept, Sharing, member_of
from flashgen.expr.holes.widths import widened
from flashgen.expr.language.identifiers import Names
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import (
    ELEMENT,
    ROW,
    UNIFORM,
    Argument,
    Call,
    Const,
    Load,
    Name,
    Node,
    Type,
    names,
    rebuild,
    walk,
)
from flashgen.expr.prove.affine import user_name
from flashgen.expr.prove.integers import Integers
from flashgen.expr.prove.linear import COLUMN, Varies, normal
from flashgen.expr.prove.names import LANGUAGE

# What a member or a local may not be called: what is in scope of the holes.
TAKEN = (
    "p",
    "s",
    "row",
    "column",
    "batch",
    "head",
    "kv_head",
    "q_idx",
    "kv_begin",
    "to_log2",
    "score",
    "column_slope",
    "row_bias",
    "settled_bias",
    "derivative",
    "keep",
    "o",
    "v_idx",
    "kv_idx",
    "distance",
    "begins_at",
    "weight_of",
    "at",
    "read",
    "paired",
    "even",
    "in_chunks",
    "min",
    "max",
    "abs",
    "term",
    "rows",
    "first",
    "j",
    "TOGETHER",
)
DEFAULTS: dict[Type, str] = {"float": "value", "int": "index", "long long": "index", "bool": "flag", "Divisor": "divisor"}
BOUNDS = {  # of column: what a member is called that it is compared with
    "<": ("end", "of the keys seen, from kv_begin"),
    ">=": ("begin", "of the keys seen, from kv_begin"),
    "==": ("at", "the key seen, from kv_begin"),
}


@dataclass(frozen=True)
class Member:
    """A member of an emitted struct: its value is CUDA text."""

    type: str
    name: str
    value: str
    comment: str = ""


@dataclass(frozen=True)
class Body:
    """The statements of a function that returns an element's value."""

    before: tuple[str, ...]
    value: str
    nodes: tuple[Node, ...]  # what they compute
    together: Together | None = None  # the same of some elements, where sums are loops

    @property
    def lines(self) -> tuple[str, ...]:
        """The statements, the last of which returns."""
        return *self.before, f"return {self.value};"

    @property
    def gathers(self) -> bool:
        """True if it reads params, or tensors at indices of which nothing is known."""
        return any(isinstance(node, Load) or (isinstance(node, Argument) and node not in GIVEN) for node in self.below())

    @property
    def divides(self) -> bool:
        """True if it divides by a number that only the kernel knows."""
        return any(
            isinstance(node, Call) and node.op in ("quotient", "remainder") and node.args[1].type == "Divisor" for node in self.below()
        )

    def reads(self, member: str) -> bool:
        """True if it reads a member of Row."""
        return any(node.name == f"row.{member}" for node in self.below() if isinstance(node, Name))

    def below(self) -> Iterator[Node]:
        """The nodes of all statements."""
        for node in self.nodes:
            yield from walk(node)


class Hoist:
    """Collects members while it makes the text of elements."""

    def __init__(self, integers: Integers, lanes: bool = False, together: bool = False) -> None:
        """`lanes`: all lanes of a warp compute elements in step, and may hold numbers for each other. `together`: where sums are loops,
        some elements are computed together."""
        self.integers, self.lanes, self.together = integers, lanes, together
        self.kept: dict[int, dict[Node, Kept]] = {UNIFORM: {}, ROW: {}}
        self.names = {UNIFORM: Names(TAKEN), ROW: Names()}
        self.instructions = Instructions()  # of all statements
        self.factors: list[Node] = []  # uniform, of what s is part of

    def leaving(self) -> "Hoist":
        """One for rows that leave: their members are apart, those of a query tile are the same."""
        found = Hoist(self.integers)
        found.kept[UNIFORM], found.names[UNIFORM] = self.kept[UNIFORM], self.names[UNIFORM]
        return found

    def apart(self) -> "Hoist":
        """One with the same members, of elements that a lane computes alone."""
        found = copy(self)
        found.lanes = False
        return found

    def text(self, node: Node, hint: str, comment: str) -> str:
        """A uniform number as a constant or the name of a member."""
        return cuda(self._outside(node, ELEMENT, hint, comment))

    def member(self, node: Node, hint: str) -> str:
        """The name of the member of Row that holds this."""
        found = self._outside(node, ELEMENT, hint)
        return next(k.name for k in self.kept[ROW].values() if member_of(k.name, k.value.type, ROW) == found)

    def inline(self, node: Node) -> str:
        """A uniform number where no members are in scope."""
        return cuda(self._lift(node, UNIFORM))

    def body(self, node: Node) -> Body:
        """The body that returns an element's value."""
        return self._body(self._lift(node, ELEMENT))

    def address(self, node: Load) -> Body:
        """The body that returns an element's address, of which no member is made."""
        return self._body(widened(rebuild(node, lambda index: self._lift(index, ELEMENT)), fits=False))

    def body_beside(self, node: Node, name: str, other: Node) -> Body:
        """The body that returns an element's value and sets another, `name`; what both need is computed once."""
        value, beside = self._lift(node, ELEMENT), self._lift(other, ELEMENT)
        locals = Names((*self.names[UNIFORM].taken, name))
        result = name if value == beside else locals.fresh(LOCALS[value.type])
        found = shared([Kept(result, value), Kept(name, beside)], locals)
        lines = [line for k in found for line in ([f"{name} = {cuda(k.value)};"] if k.name == name else statements(k, locals))]
        return Body(before=tuple(lines), value=result, nodes=tuple(k.value for k in found))

    def _body(self, value: Node) -> Body:
        locals = Names(self.names[UNIFORM].taken)
        found = shared([Kept("", value)], locals)
        self.instructions += instructions((k.value for k in found), self._both_rows)
        lines = [line for k in found[:-1] for line in statements(k, locals)]
        return Body(
            before=tuple(lines),
            value=cuda(found[-1].value),
            nodes=tuple(k.value for k in found),
            together=together(found, locals) if self.together and self.lanes else None,
        )

    def of_any_row(self) -> list[Kept]:
        """The members of Row that hold the same in all rows."""
        return [k for k in self.kept[ROW].values() if names(k.value).isdisjoint(("q_idx", "head"))]

    def _both_rows(self, node: Node) -> bool:
        """True if a node is the same in both rows of a thread."""
        same = {f"row.{k.name}" for k in self.of_any_row()}
        same |= {"column", *(k.name for k in self.kept[UNIFORM].values())}
        return all(isinstance(x, Argument) or x.name in same for x in walk(node) if isinstance(x, Name))

    def members(self) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        """The members of Variant and of Row, in an order that computes them."""
        return self._members(UNIFORM), self.row_members()

    def row_members(self) -> tuple[Member, ...]:
        """The members of Row, in an order that computes them."""
        return self._members(ROW)

    def _members(self, at: int) -> tuple[Member, ...]:
        kept = Sharing(self.kept[at].values(), self.names[at], _name, at).result
        return tuple(Member(type=k.value.type, name=k.name, value=cuda(k.value), comment=k.comment) for k in kept)

    def _lift(self, node: Node, at: int, hint: str = "", comment: str = "") -> Node:
        """The node as level `at` reads it: what varies less is a member, and integers are as wide as they must be."""
        if level(node) < at:
            return self._outside(node, at, hint, comment)
        return widened(self._lifted(node, at), node.type == "int" and self.integers.fits(node))

    def _lifted(self, node: Node, at: int) -> Node:
        """The node on its arguments lifted."""
        match node:
            case Load(tensor) if self.lanes and (found := of_lane(node)):
                held = self._outside(found[0], at, f"{user_name(tensor)}{OF_LANE}", "that of a term of a sum")
                return Call("__shfl_sync", (ALL_LANES, held, found[1]), node.type)
            case Call("<" | ">=" | "==" as op, (left, right)) if left == COLUMN:
                return Call(op, (COLUMN, self._lift(right, at, *BOUNDS[op])), "bool")
            case Call("quotient" | "remainder" | "//" | "%" as op, (x, n)) if at > UNIFORM == level(n) and self._short(x, n):
                divisor = self._outside(Call("Divisor", (n,), "Divisor"), at, f"by_{user_name(_name(n))}")
                return Call(op, (self._lift(x, at), divisor), "int")
            case Call("*" | "fma" as op, (factor, core, *rest), "float"):
                slope = "inner" if "s" in names(core) else "slope"
                if slope == "inner" and level(factor) <= UNIFORM:
                    self.factors.append(factor)
                lifted = (self._lift(factor, at, slope), self._lift(core, at), *(self._lift(r, at, "bias") for r in rest))
                return Call(op, lifted, "float")
            case Call("+", (rest, core), "float"):
                return Call("+", (self._lift(rest, at, "bias"), self._lift(core, at)), "float")
        return rebuild(node, lambda child: self._lift(child, at))

    def _outside(self, node: Node, at: int, hint: str, comment: str = "") -> Node:
        """A node that varies less than `at`: a constant, an argument, or a member."""
        varies = level(node)
        tidy = self.tidy(node, lambda n: level(n) == varies) if varies == ROW and "*" not in node.type else node
        if node.type == "int" and varies == UNIFORM:
            tidy = self.tidy(node, lambda n: not isinstance(n, Const))
        if level(tidy) < varies:
            return self._outside(tidy, at, hint, comment)
        if isinstance(tidy, Argument):
            return tidy
        if varies == 0:
            return self._lift(tidy, 0)
        known = self.kept[varies]
        value = self._lift(tidy, varies)
        if value not in known:
            name = self.names[varies].fresh(hint or _name(tidy))
            known[value] = Kept(name=name, value=value, comment=comment, end=(hint, comment) == BOUNDS["<"])
        return member_of(known[value].name, value.type, varies)

    def tidy(self, node: Node, varies: Varies) -> Node:
        """The node with its sums gathered, where 64 bits hold each of them."""
        tidy = normal(node, varies)
        return tidy if self.integers.hold(tidy) else node

    def _short(self, x: Node, n: Node) -> bool:
        """True if 32 bits hold the dividend and the divisor."""
        return n.type == "int" and self.integers.fits(x) and self.integers.fits(n)


def _name(node: Node) -> str:
    match node:
        case Name(name):
            return LANGUAGE.get(name, name)
        case Load(tensor, indices):
            simple = [LANGUAGE.get(i.name, i.name).rpartition(".")[2] for i in indices if isinstance(i, Name)]  # row.index is a member
            return "_".join([user_name(tensor), *(simple if len(simple) == len(indices) else ["value"])])
        case Call("-", (Name("p.q_len" | "q_len"), Const(1))):
            return "last_query"
        case Call("-", (Name("p.kv_len" | "kv_len"), Const(1))):
            return "last_key"
        case Call("min", (Name("q_idx"), _)):
            return "query"
        case Call("+" | "-", _, "int"):
            return "offset"
    return DEFAULTS[node.type]
