"""Linear forms as CUDA text and as NumPy numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from flashgen.expr.prove.affine import INT32, MAX_LENGTH, Atom, Int, alone, grouped, named, of, param
from flashgen.expr.prove.integers import LENGTH, Integers, of_kernel
from flashgen.expr.prove.intervals import KEYS, ZERO, Facts
from flashgen.expr.prove.names import EXTENTS, FIRST, KERNEL, TOTAL, WHOLE
from flashgen.spec.axes import extent
from flashgen.spec.geometry import DENSE, Geometry

if TYPE_CHECKING:
    from flashgen.spec import Tensor

SYMBOLS = {"BLOCK_M": "rows", **KERNEL}  # a query tile may be a part of one
AXES = {axis: Integers(of_kernel).form(extent) for axis, extent in EXTENTS.items()}


@dataclass(frozen=True)
class PairingText:
    """A pairing as CUDA text."""

    name: str
    unknown: str  # in scope: p, batch, head, kv_head; kv_idx, or of query tiles for a key tile q_idx
    known: str  # the other one
    may: str  # of a tile: key, or row (longlong2, the least and the greatest), low, high of the known
    must: str
    axes: tuple[str, ...]
    meaning: str

    @property
    def place(self) -> str:
        """The index of batch and head in memory, before the tile."""
        return {"": "0", "batch": "batch", "heads": "head", "batchheads": "(batch * p.heads + head)"}["".join(self.axes)]


@dataclass(frozen=True)
class RangeText:
    """Statements, in order, and begin, end and whether masked of every loop."""

    lines: tuple[str, ...]
    loops: tuple[tuple[str, str, bool], ...]
    pairings: tuple[PairingText, ...] = ()
    contiguous: bool = True  # each loop begins where the one before it ends

    @property
    def spared(self) -> bool:
        """True if the mask is not tested in some loop."""
        return any(not masked for _, _, masked in self.loops)

    @property
    def behind(self) -> tuple[int, ...]:
        """The loops that begin where the one before them ends, by index."""
        return tuple(i for i, (left, right) in enumerate(pairwise(self.loops), 1) if left[1] == right[0])


class Printer:
    """Text of 32-bit values: plain int wherever no partial result can leave 32 bits, else long long inside."""

    def __init__(self, facts: Facts, tensors: "Sequence[Tensor]", geometry: Geometry = DENSE):
        self.facts, self.tensors, self.geometry = facts, {param(tensor.name): tensor for tensor in tensors}, geometry
        symbols = SYMBOLS if facts.side is KEYS else KERNEL
        self.symbols = {name: symbol for name, symbol in symbols.items() if name not in geometry.own}  # else in scope under their names
        self.axes = AXES | {name: named(KERNEL[name]) for name in geometry.own - geometry.behind}
        given = [KERNEL[name] for name in geometry.own] + [node.name for node in (*FIRST.values(), *TOTAL.values())]
        facts.known |= dict.fromkeys(given, (0, MAX_LENGTH))
        self.texts: dict[Atom, tuple[str, bool]] = {}

    def narrow(self, x: Int) -> str:
        """The text of an integer as an int of 32 bits."""
        text, wide = self.sum(x)
        if wide:
            return f"int({text})"
        return text[1:-1] if (atom := alone(x)) and atom.op == "select" else text

    def sum(self, x: Int) -> tuple[str, bool]:
        """The text, and whether it is a long long."""
        terms = [(1 if c > 0 else -1, Int(0, ((atom, abs(c)),))) for atom, c in x.terms]
        terms += [(1 if x.const >= 0 else -1, Int(abs(x.const)))] if x.const or not terms else []
        ordered = self.order(terms)
        wide = ordered is None
        text = ""
        for sign, part in ordered or terms:
            piece, long = self.product(part)
            text += " + " if sign > 0 else " - "
            text += _widen(piece) if wide and len(text) == 3 and not long else piece
        return text[3:] if text.startswith(" + ") else f"-{text[3:]}", wide

    def product(self, part: Int) -> tuple[str, bool]:
        """The text of one term with a positive coefficient, and true if it takes 64 bits."""
        if not part.terms:
            return (str(part.const), False) if part.const <= INT32 else (f"{part.const}LL", True)
        ((atom, c),) = part.terms
        text, wide = self.atom(atom)
        if c == 1:
            return text, wide
        wide = wide or not self.is_int(part)
        return f"{c}{'LL' if wide else ''} * {grouped(text)}", wide

    def order(self, terms: list[tuple[int, Int]]) -> list[tuple[int, Int]] | None:
        """The terms such that all sums from the left fit 32 bits: kv_len - q_len + q_last, not kv_len + q_last - q_len."""
        if any(self.product(part)[1] or not self.is_int(part) for _, part in terms):
            return None
        done: list[tuple[int, Int]] = []
        total, left = Int(0), sorted(terms, key=lambda term: (not term[1].terms, term[0] < 0, term[1].text.isupper()))
        while left:
            term = next(((sign, part) for sign, part in left if self.is_int(total + sign * part)), None)
            if term is None:
                return None
            total += term[0] * term[1]
            done.append(term)
            left.remove(term)
        return done

    def is_int(self, x: Int) -> bool:
        """True if an integer fits 32 bits whatever its names stand for."""
        low, high = self.facts.extent(x)
        return low >= -INT32 - bool(x.terms) and high <= INT32

    def atom(self, atom: Atom) -> tuple[str, bool]:
        """The text of an atom, and true if it is a long long; made once."""
        if atom not in self.texts:
            self.texts[atom] = self.written(atom)
        return self.texts[atom]

    def written(self, atom: Atom) -> tuple[str, bool]:
        """The text of an atom, and true if it is a long long."""
        if atom.op == "name":
            return self.symbols.get(atom.name, atom.name), False
        if atom.op == "read":
            tensor = self.tensors[atom.name]
            shape = tensor.shape
            indices = [self.clamp(index, extent(tensor, i)) for i, index in enumerate(atom.args)]
            if (at := self.geometry.joined(shape)) is not None:
                first, total = (named(names[str(shape[at + 1])].name) for names in (FIRST, TOTAL))
                indices[at : at + 2] = [self.facts.smallest(first + indices[at + 1], total - 1)]
            return f"{atom.name}({', '.join(map(self.narrow, indices))})", False
        text, wide = self.select(*atom.args) if atom.op == "select" else self.operation(atom)
        if wide and self.is_int(of(atom)):
            return f"int({text})", False
        return f"({text})" if atom.op == "select" else text, wide

    def clamp(self, index: Int, axis: str | int) -> Int:
        """The index inside its axis."""
        if WHOLE.get(index.text) == axis:
            return index
        size = Int(axis) if isinstance(axis, int) else self.axes.get(axis) or self.length(f"p.{axis}")
        return self.facts.largest(ZERO, self.facts.smallest(index, size - 1))

    def length(self, member: str) -> Int:
        """The number of elements of an array along an axis that it alone tells."""
        self.facts.known[member] = LENGTH
        return named(member)

    def select(self, d: Int, x: Int, y: Int) -> tuple[str, bool]:
        """d <= 0 ? x : y, with the terms of d on the side where they are positive."""
        right = Int(max(0, -d.const), tuple((atom, -c) for atom, c in d.terms if c < 0))
        left = d + right
        less = "<=" if left.const == 0 or not left.terms else "<"
        (a, _), (b, _) = self.sum(left - (less == "<")), self.sum(right)
        (then, wide), (other, long) = self.sum(x), self.sum(y)
        return f"{a} {less} {b} ? {then} : {other}", wide or long

    def operation(self, atom: Atom) -> tuple[str, bool]:
        """The text of an operation, and true if it is a long long; `//` and `%` round down."""
        texts, wides = zip(*map(self.sum, atom.args), strict=True)
        wide = any(wides)
        if atom.op == "*":
            wide = wide or not self.is_int(of(atom))
            factors = " * ".join(map(grouped, texts))
            return f"(long long){factors}" if wide and not wides[0] else factors, wide
        a, *rest = [_widen(text) if wide and not long else text for text, long in zip(texts, wides, strict=True)]
        if atom.op in ("min", "max"):
            return reduce(lambda inner, text: f"{atom.op}({text}, {inner})", reversed((a, *rest))), wide
        (n,) = rest
        if self.facts.extent(atom.args[0])[0] >= 0:
            return f"{grouped(a)} {'/' if atom.op == '//' else '%'} {grouped(n)}", wide
        return f"{'floor_div' if atom.op == '//' else 'floor_mod'}({a}, {n})", wide


def _widen(text: str) -> str:
    return f"{text}LL" if text.isdigit() else f"(long long){grouped(text)}"


def number(x: Int, values: Mapping[str, Any]) -> Any:
    """Its value, where `values` holds what its names mean; tensors by name."""
    return sum((c * _value(atom, values) for atom, c in x.terms), np.int64(x.const))


def _value(atom: Atom, values: Mapping[str, Any]) -> Any:
    if atom.op == "name":
        return np.int64(values[atom.name])
    args = [number(arg, values) for arg in atom.args]
    match atom.op:
        case "read":
            array = np.asarray(values[atom.name])
            if not array.size:  # there is no key, and no tile whatever is read
                return np.int64(0)
            return np.int64(array[tuple(np.clip(index, 0, size - 1) for index, size in zip(args, array.shape, strict=True))])
        case "//":  # a divisor of 0 is the length of no key, and nothing is asked of it
            return args[0] // np.maximum(args[1], 1)
        case "%":
            return args[0] % np.maximum(args[1], 1)
        case "select":
            return np.where(args[0] <= 0, args[1], args[2])
    return reduce({"*": np.multiply, "min": np.minimum, "max": np.maximum}[atom.op], args)
