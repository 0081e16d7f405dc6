"""A mask solved for kv_idx: which keys the rows of a query tile may and must see; or for q_idx: which rows the keys of a key tile.

Negation is pushed down to the comparisons; `&` intersects strips pairwise, `|` puts them side by side. A comparison is solved by undoing
the operators around kv_idx; what is left, a function of the row, gives way to its least and greatest value over the tile. What has no rule
may hold everywhere and must hold nowhere, so the rest of a conjunction still limits it.
"""

from functools import reduce
from typing import Literal, cast

from flashgen.expr.language.deciding import approximate
from flashgen.expr.language.nodes import INDEX_NAMES, LONG, Call, Const, Load, Name, Node, names, rebuild, walk
from flashgen.expr.language.operators import COMPARISONS
from flashgen.expr.language.text import show
from flashgen.expr.prove.affine import Atom, Int, named, of, operations, param, select, substitute
from flashgen.expr.prove.intervals import KEYS, ZERO
from flashgen.expr.tiles.extents import SWAPPED, Op, Pairing
from flashgen.expr.tiles.spans import MAX_TEXT, NONE, Combiner, Span, Strip

MAX_PAIRINGS = 2  # two small kernels each before the attention
MAX_CASES = 200  # comparisons solved, those that where, min and max split included
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


class NoRuleError(Exception):
    """The reason why a comparison gives no range."""


class Solver:
    """Solves conditions, into the strips of a Combiner; gathers in `flags`, if given, those that get a name for want of a rule. `paired`:
    kernels before the attention may find extents over tiles."""

    def __init__(self, combiner: Combiner, flags: dict[Node, str] | None = None, *, paired: bool = True):
        self.paired = paired
        self.combiner, self.facts, self.flags = combiner, combiner.facts, flags
        self.side, self.all = combiner.facts.side, combiner.all
        self.cases = 0
        self.operations = operations(self.facts.smallest, self.facts.largest)
        self.reads: dict[Int, str] = {}  # at no row or key: what they are called
        self.pairings: list[Pairing] = []

    def strips(self, node: Node, want: bool = True) -> list[Strip]:
        """The strips of keys at which `node` is `want`."""
        match node:
            case Const(value):
                return [Strip(self.all, self.all)] if value == want else []
            case Call("~", (x,)):
                return self.strips(x, not want)
            case Call("&" | "|" as op, args):
                found = [self.strips(arg, want) for arg in args]
                return self.combiner.every(found) if (op == "&") == want else self.combiner.some(found)
            case Call("where", (test, x, y)):
                return self.choice(test, self.strips(x, want), self.strips(y, want))
        try:
            if isinstance(node, Call) and node.op in COMPARISONS:
                return self.compare(node.op if want else OPPOSITE[node.op], *node.args)
            bit = self.affine(node)
            return self.at_most_zero(1 - bit if want else bit)
        except NoRuleError as error:
            if (flag := self.flagged(node)) is not None:
                span = self.guard(1 - flag if want else flag)
                return self.combiner.condense([Strip(span, span)])
            self.combiner.lose(f"{show(node)}: {error}")
            return [Strip(self.all, NONE)]

    # Comparisons

    def compare(self, op: str, x: Node, y: Node) -> list[Strip]:
        """The strips at which a comparison of integers holds. Raises NoRuleError."""
        if x.type == "float":
            raise NoRuleError("it compares floats")
        whole = Call(op, (x, y), "bool")
        if pick := next((node for node in walk(whole) if isinstance(node, Call) and node.op == "where"), None):
            test, *picked = pick.args
            yes, no = (self.compare(op, *(_replace(arg, pick, value) for arg in whole.args)) for value in picked)
            return self.choice(test, yes, no)
        if x.type == LONG:
            return [self.pair_of_long(cast(Op, op), self.long(x), self.long(y))]
        d = self.affine(x) - self.affine(y)
        if op in ("==", "!=") and _read(d, *self.side.indices):
            return [self.pair("==" if op == "==" else "!=", d)]
        limits = {"<=": [d], "<": [d + 1], ">=": [-d], ">": [1 - d], "==": [d, -d], "!=": [d + 1, 1 - d]}[op]
        found = [self.at_most_zero(limit) for limit in limits]
        return self.combiner.some(found) if op == "!=" else self.combiner.every(found)

    def affine(self, node: Node) -> Int:
        """A node as a sum of atoms; reads of tensors that no index is in get a name. Raises NoRuleError."""
        if node.type in ("float", LONG):
            raise NoRuleError("it is of floats" if node.type == "float" else "it is of int64")
        match node:
            case Const(value):
                return Int(int(value))
            case Name(name):
                return named(name if name in INDEX_NAMES else param(name))
            case Load(tensor, indices):
                read = self.bounded(of(Atom("read", tuple(map(self.affine, indices)), param(tensor))))
                if not read.names.isdisjoint(self.side.indices):
                    return read
                self.reads.setdefault(read, f"read_{len(self.reads)}_{tensor}")
                return self.facts.let(self.reads[read], read)
            case Call(op, args):
                return self.bounded(self.operation(op, [self.affine(arg) for arg in args]))
        raise AssertionError(node)

    def operation(self, op: str, args: list[Int]) -> Int:
        """An operation on sums of atoms. Raises NoRuleError where it is not solved for the unknown."""
        if op not in self.operations:
            raise NoRuleError(f"{op} is not solved for {self.side.unknown}")
        if op in ("//", "%") and (self.facts.extent(args[1])[0] < 1 or not args[1].names.isdisjoint(self.side.indices)):
            raise NoRuleError(f"the divisor {args[1]} is neither a positive number nor a parameter")
        return self.operations[op](*args)

    def bounded(self, x: Int) -> Int:
        """The same integer. Raises NoRuleError if its text is too long, or it may pass 64 bits."""
        if len(x.text) > MAX_TEXT:
            raise NoRuleError("a bound is too long")
        if not self.facts.fits(x):
            raise NoRuleError("a bound may pass 64 bits")
        return x

    def at_most_zero(self, d: Int) -> list[Strip]:
        """The strips of keys at which d <= 0."""
        self.cases += 1
        if self.cases > MAX_CASES:
            raise NoRuleError("there are too many cases")
        self.bounded(d)
        if _read(d, *self.side.indices):
            return [self.pair("<=", d)]
        inside = [(atom, c) for atom, c in d.terms if self.side.unknown in atom.names]
        if not inside:
            low, high = self.over_rows(d)
            return self.combiner.condense([Strip(self.guard(low), self.guard(high))])
        if len(inside) > 1:
            raise NoRuleError(f"{self.side.unknown} stands in several terms that do not combine")
        ((atom, c),) = inside
        return self.solve(atom, 1 if c > 0 else -1, (c * of(atom) - d) // Int(abs(c)))

    def long(self, node: Node) -> Int:
        """A number of int64 that is read, or an integer beside one. Raises NoRuleError."""
        match node:
            case Const(value):
                return Int(int(value))
            case Load(tensor, indices):
                return of(Atom("read", tuple(map(self.affine, indices)), param(tensor)))
            case Call(_, (integer,)):
                return self.affine(integer)
        raise NoRuleError(f"{show(node)} has no rule")

    def pair_of_long(self, op: Op, x: Int, y: Int) -> Strip:
        """The strip of the unknown at which x `op` y: as they stand, since a difference of numbers of int64 may pass 64 bits."""
        x, y = (substitute(side, self.facts.meanings) for side in (x, y))
        if self.side.unknown in y.names or self.side.known in x.names:
            op, x, y = SWAPPED[op], y, x
        if self.side.unknown in y.names or self.side.known in x.names:
            raise NoRuleError("one side depends on rows and on keys, so extents over tiles do not tell what is seen")
        if (x.names | y.names).isdisjoint(self.side.indices):
            raise NoRuleError("it compares numbers of int64")
        return self.found(op, x, y)

    def pair(self, op: Literal["<=", "==", "!="], d: Int) -> Strip:
        """The strip of the unknown at which d `op` 0, with tensors read at rows or keys: what depends on it on one side, the rest on the
        other."""
        d = self.bounded(substitute(d, self.facts.meanings))  # names of a query tile mean nothing to the kernels before
        unknown, known = Int(0), Int(-d.const)
        for atom, c in d.terms:
            if atom.names >= {*self.side.indices}:
                raise NoRuleError(f"{atom} depends on rows and on keys, so extents over tiles do not tell what is seen")
            inside = self.side.unknown in atom.names
            unknown, known = (unknown + of(atom) * c, known) if inside else (unknown, known - of(atom) * c)
        if unknown.terms and all(c < 0 for _, c in unknown.terms):
            return self.found(SWAPPED[op], -unknown, -known)
        return self.found(op, unknown, known)

    def found(self, op: Op, unknown: Int, known: Int) -> Strip:
        """The strip of the unknown at which unknown `op` known, from what kernels before the attention find."""
        if not self.paired:
            raise NoRuleError("what tensors hold at rows and at keys is compared where sequences are all as long")
        found = next((p for p in self.pairings if (p.op, p.unknown, p.known) == (op, unknown, known)), None)
        if found is None:
            if len(self.pairings) == MAX_PAIRINGS:
                raise NoRuleError(f"{MAX_PAIRINGS} other comparisons of what tensors hold are found out before the attention already")
            name = f"{'seen' if self.side is KEYS else 'seeing'}_{len(self.pairings)}"
            found = Pairing(name=name, op=op, unknown=unknown, known=known, side=self.side)
            self.pairings.append(found)
        return found.strip(self.facts)

    def solve(self, atom: Atom, sign: int, x: Int) -> list[Strip]:
        """The strips at which sign * atom <= x; kv_idx is in the atom, and x is free of it once operators around kv_idx are undone."""
        match atom.op:
            case "name":
                low, high = self.over_rows(x)
                spans = [self.combiner.both(self.all, Span(ZERO, x + 1) if sign > 0 else Span(-x, self.side.length)) for x in (high, low)]
                return self.combiner.condense([Strip(*spans)])
            case "//":
                inner, n = atom.args
                return self.at_most_zero(inner - x * n - n + 1 if sign > 0 else -inner - x * n)
            case "%":
                self.combiner.lose(f"{atom} repeats along the {self.side.along}")
                low, high = self.over_rows(x)
                least, greatest = (ZERO, atom.args[1] - 1) if sign > 0 else (1 - atom.args[1], ZERO)
                return self.combiner.condense([Strip(self.guard(least - high), self.guard(greatest - low))])
            case "min" | "max":
                found = [self.at_most_zero(sign * arg - x) for arg in atom.args]
                return self.combiner.some(found) if (atom.op == "min") == (sign > 0) else self.combiner.every(found)
        inner, factor = self.factor_with(atom, self.side.unknown)
        if self.facts.extent(factor)[0] < 1 or not factor.names.isdisjoint(self.side.indices):
            raise NoRuleError(f"the factor {factor} of {self.side.unknown} has no known sign")
        return self.at_most_zero(sign * inner - x // factor)

    def factor_with(self, product_: Atom, name: str) -> tuple[Int, Int]:
        """The factor of a product that reads `name`, and the others."""
        inside = [factor for factor in product_.args if name in factor.names]
        if len(inside) > 1:
            raise NoRuleError(f"{product_} is not linear in {name}")
        return inside[0], reduce(Int.__mul__, (factor for factor in product_.args if factor != inside[0]), Int(1))

    def guard(self, d: Int) -> Span:
        """All keys if d <= 0, else none."""
        if self.facts.nonnegative(-d):
            return self.all
        return NONE if self.facts.nonnegative(d - 1) else Span(ZERO, select(d, self.side.length, ZERO))

    def choice(self, test: Node, yes: list[Strip], no: list[Strip]) -> list[Strip]:
        """The strips of `where`: those of one branch where the test holds, else those of the other."""
        left, right = (self.combiner.every([self.strips(test, want), then]) for want, then in ((True, yes), (False, no)))
        return self.combiner.some([left, right])

    def flagged(self, node: Node) -> Int | None:
        """A condition without a rule as 0 or 1, if flags are allowed and it is the same at every place."""
        if self.flags is None or approximate(node) or not names(node).isdisjoint(self.side.indices):
            return None
        name = self.flags.setdefault(node, f"flag_{len(self.flags)}")
        self.facts.known[name] = (0, 1)
        return named(name)

    # Rows

    def over_rows(self, x: Int) -> tuple[Int, Int]:
        """Bounds of x over the rows of the tile: exact where the terms move together, as in an affine form."""
        low = high = Int(x.const)
        for atom, c in x.terms:
            a, b = self.atom_over_rows(atom)
            low, high = (low + c * a, high + c * b) if c > 0 else (low + c * b, high + c * a)
        self.bounded(low - 1)
        self.bounded(high + 1)
        return low, high

    def atom_over_rows(self, atom: Atom) -> tuple[Int, Int]:
        """The least and the greatest value of an atom over the rows of the tile."""
        if self.side.known not in atom.names:
            return of(atom), of(atom)
        match atom.op:
            case "name":
                return self.side.first, self.side.last
            case "//":
                low, high = self.over_rows(atom.args[0])
                return low // atom.args[1], high // atom.args[1]
            case "%":
                return ZERO, atom.args[1] - 1
            case "min" | "max":
                fold = self.facts.smallest if atom.op == "min" else self.facts.largest
                lows, highs = zip(*map(self.over_rows, atom.args), strict=True)
                return fold(*lows), fold(*highs)
        inner, factor = self.factor_with(atom, self.side.known)
        low, high = (bound * factor for bound in self.over_rows(inner))
        if self.facts.nonnegative(factor):
            return low, high
        return (high, low) if self.facts.nonnegative(-factor) else (self.facts.smallest(low, high), self.facts.largest(low, high))


def _read(d: Int, *indices: str) -> bool:
    """True if a tensor is read at one of these indices."""
    reads = [atom for atom, _ in d.terms if atom.reads]
    return any(not atom.names.isdisjoint(indices) for atom in reads)


def _replace(node: Node, old: Node, new: Node) -> Node:
    return new if node == old else rebuild(node, lambda child: _replace(child, old, new))
