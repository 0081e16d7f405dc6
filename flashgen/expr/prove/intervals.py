"""Facts about the names of a query tile, and what follows: intervals, and inequalities proved from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from types import MappingProxyType

from flashgen.expr.prove.affine import INT32, INT64, MAX_LENGTH, Atom, Int, alone, largest, named, of, parts, smallest, untangled

Interval = tuple[int, int]
Known = Mapping[str, Interval]  # of params, by their names in forms
ANY: Known = MappingProxyType({})

ZERO, Q_BEGIN, Q_LAST, Q_LEN, KV_LEN = Int(0), named("q_begin"), named("q_last"), named("q_len"), named("kv_len")
K_BEGIN, K_LAST = named("k_begin"), named("k_last")
BLOCK_M, BLOCK_N = named("BLOCK_M"), named("BLOCK_N")
MAX_OPENED = 4000  # forms opened for a proof, over a whole analysis


@dataclass(frozen=True, kw_only=True)
class Side:
    """The index that a mask is solved for: the unknown, below `length`, where the other index runs over a tile from `first` to `last`."""

    unknown: str
    length: Int
    known: str
    first: Int
    last: Int
    end: str  # the length that `last` is below
    offset: str  # of a place of the tile from its first
    along: str  # what there is one of for each value of the unknown
    block: Int  # of a tile of the unknown

    @property
    def indices(self) -> tuple[str, str]:
        """The unknown and the known index."""
        return self.unknown, self.known


KEYS = Side(
    unknown="kv_idx", length=KV_LEN, known="q_idx", first=Q_BEGIN, last=Q_LAST, end="q_len", offset="rows", along="keys", block=BLOCK_N
)
ROWS = Side(
    unknown="q_idx", length=Q_LEN, known="kv_idx", first=K_BEGIN, last=K_LAST, end="kv_len", offset="columns", along="rows", block=BLOCK_M
)


class Facts:
    """An interval for every name: lengths up to MAX_LENGTH, those of params as `known` says, every other one any 32-bit number.

    >>> Facts(128, 64).nonnegative(KV_LEN - (Q_LAST + KV_LEN - Q_LEN + 1))
    True
    """

    def __init__(self, block_m: int, block_n: int, known: Known = ANY, side: Side = KEYS):
        self.side = side
        after = f"{side.offset} after"
        lengths = (str(side.first), str(side.last), "q_len", "kv_len", after)
        self.known: dict[str, Interval] = dict.fromkeys(lengths, (0, MAX_LENGTH)) | dict.fromkeys(("b", "h", "hk"), (0, INT32))
        self.known |= {**known, **dict.fromkeys(("p.batch", "p.heads", "p.group"), (1, INT32))}
        self.known |= {"BLOCK_M": (block_m, block_m), "BLOCK_N": (block_n, block_n)}
        self.known[side.offset] = (0, (block_m if side is KEYS else block_n) - 1)
        # The three numbers of the tile move together; told apart, q_len - q_last would have no sign. Each is tried.
        last = side.first + named(side.offset)
        self.untangled = [{str(side.last): last, side.end: last + 1 + named(after)}]
        self.meanings: dict[str, Int] = {}
        self.extents: dict[Atom, Interval] = {}
        self.proofs: dict[Int, bool] = {}
        self.opened = 0

    def let(self, name: str, value: Int) -> Int:
        """Gives a 32-bit value a name, unless it is a name, a constant, or has a name already."""
        if not value.terms or ((found := alone(value)) and found.op == "name"):
            return value
        if value in self.meanings.values():
            return named(next(old for old, known in self.meanings.items() if known == value))
        low, high = self.extent(value)
        if low < 0 and self.nonnegative(value):  # a proof sees more than intervals do
            low = 0
        if high > INT32 and self.nonnegative(self.side.length - value):
            high = MAX_LENGTH
        assert name not in self.known, name
        assert -INT32 - 1 <= low <= high <= INT32, f"{name} = {value}"
        self.known[name], self.meanings[name] = (low, high), value
        return named(name)

    def extent(self, x: Int) -> Interval:
        """An interval that holds x: the one of its form as it stands, within those with names untangled."""
        low, high = self._sum(x)
        for meanings in self.untangled:
            if not x.names.isdisjoint(meanings):
                a, b = self._sum(untangled(x, meanings))
                low, high = max(low, a), min(high, b)
        return low, high

    def fits(self, x: Int) -> bool:
        """True if x and every part of it stay inside 64 bits."""
        sizes = [abs(c) * max(map(abs, self._atom(atom))) for atom, c in x.terms]
        return abs(x.const) + sum(sizes) <= INT64 and all(self.fits(arg) for atom, _ in x.terms for arg in atom.args)

    def nonnegative(self, x: Int) -> bool:
        """True if x >= 0 follows."""
        if x not in self.proofs:
            self.proofs[x] = self.extent(x)[0] >= 0 or self._open(x)
        return self.proofs[x]

    def smallest(self, *xs: Int) -> Int:
        """The least, without what is provably no less than another."""
        return reduce(lambda x, y: smallest(*_needed(parts("min", x), parts("min", y), lambda a, b: self.nonnegative(a - b))), xs)

    def largest(self, *xs: Int) -> Int:
        """The greatest, without what is provably no greater than another."""
        return reduce(lambda x, y: largest(*_needed(parts("max", x), parts("max", y), lambda a, b: self.nonnegative(b - a))), xs)

    def _open(self, x: Int) -> bool:
        """True if x >= 0 follows when an atom gives way to its arguments: first where all of them must do, then where one may."""
        self.opened += 1
        if self.opened > MAX_OPENED:
            return False
        for atom, c in x.terms:
            if atom.name in self.meanings:
                return self.nonnegative(x + c * (self.meanings[atom.name] - of(atom)))
            if atom.op == "select" or atom.op == ("min" if c > 0 else "max"):
                args = atom.args[1:] if atom.op == "select" else atom.args
                return all(self.nonnegative(x + c * (arg - of(atom))) for arg in args)
        for (a, c), (b, d) in product(x.terms, x.terms):
            if c == -d > 0 and a.op == b.op == "//" and a.args[1] == b.args[1]:
                return self.nonnegative(x + c * (of(b) - of(a))) and self.nonnegative(a.args[0] - b.args[0])
        extremes = [(atom, c) for atom, c in x.terms if atom.op in ("min", "max")]
        return any(self.nonnegative(x + c * (arg - of(atom))) for atom, c in extremes for arg in atom.args)

    def _sum(self, x: Int) -> Interval:
        low = high = x.const
        for atom, c in x.terms:
            a, b = self._atom(atom)
            low, high = low + min(c * a, c * b), high + max(c * a, c * b)
        return low, high

    def _atom(self, atom: Atom) -> Interval:
        if atom.op in ("name", "read"):
            return self.known.get(atom.name if atom.op == "name" else "", (-INT32 - 1, INT32))
        if atom not in self.extents:
            self.extents[atom] = self._compound(atom, [self.extent(arg) for arg in atom.args])
        return self.extents[atom]

    def _compound(self, atom: Atom, spans: list[Interval]) -> Interval:
        match atom.op:
            case "//":
                return _corners(int.__floordiv__, spans[0], (max(1, spans[1][0]), max(1, spans[1][1])))
            case "%":
                low, high = spans[0]
                return 0, min(high, max(0, spans[1][1] - 1)) if low >= 0 else max(0, spans[1][1] - 1)
            case "*":
                factors = [next(iter(f.terms))[0] for f in atom.args]
                for quotient, n in product(factors, atom.args):
                    if quotient.op == "//" and quotient.args[1] == n and len(factors) == 2:  # x // n * n lies in (x - n, x]
                        low, high = self.extent(quotient.args[0])
                        return min(0, low - self.extent(n)[1] + 1) if low < 0 else 0, high
                result = (1, 1)
                for span in spans:
                    result = _corners(int.__mul__, result, span)
                return result
            case "select":
                return min(spans[1][0], spans[2][0]), max(spans[1][1], spans[2][1])
        fold = min if atom.op == "min" else max
        low, high = fold(low for low, _ in spans), fold(high for _, high in spans)
        if {*atom.args}.isdisjoint(-arg for arg in atom.args):
            return low, high
        return (low, min(high, 0)) if atom.op == "min" else (max(low, 0), high)  # of a number and its opposite, as abs is


def _needed(xs: Sequence[Int], ys: Sequence[Int], covered: Callable[[Int, Int], bool]) -> list[Int]:
    """The members of both lists that no member of the other list covers."""
    kept = [x for x in xs if not any(covered(x, y) for y in ys)]
    return [*kept, *(y for y in ys if not any(covered(y, x) for x in kept))]


def _corners(f: Callable[[int, int], int], x: Interval, y: Interval) -> Interval:
    values = [f(a, b) for a, b in product(x, y)]
    return min(values), max(values)
