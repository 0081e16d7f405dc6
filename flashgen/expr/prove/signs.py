"""Proves what is positive, and names the params that this rests on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.expr.language.function import Sign
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call, Const, Index, Name, Node, Summation
from flashgen.expr.language.operators import UNKNOWN

if TYPE_CHECKING:
    from flashgen.spec import Param

NOTHING: frozenset[str] = frozenset()
_KERNEL: dict[str, tuple[Sign, Sign]] = {
    **dict.fromkeys(("quotient", "key_quotient"), ("never", "first")),
    **dict.fromkeys(("remainder", "key_remainder", "wrapped"), ("never", "always")),
}


@dataclass(frozen=True)
class Signs:
    """Names known to be positive, each with the params that this rests on; names known to be at least 0.

    >>> signs = Signs({"softcap": frozenset(["softcap"])})
    >>> signs.positive(Call("*", (Name("softcap", "float"), Const(2.0, "float")), "float"))
    frozenset({'softcap'})
    """

    positives: Mapping[str, frozenset[str]]
    nonnegatives: frozenset[str] = NOTHING

    def positive(self, node: Node) -> frozenset[str] | None:
        """The params that node > 0 rests on; None: not proved."""
        match node:
            case Const(value):
                return NOTHING if value > 0 else None
            case Name(name):
                return self.positives.get(name)
            case Summation(_, term):
                return self.positive(term)
            case Call(op, args):
                return self._of(_sign(op), 0, args)
        return None

    def nonnegative(self, node: Node) -> frozenset[str] | None:
        """The params that node >= 0 rests on; None: not proved."""
        if (positive := self.positive(node)) is not None:
            return positive
        match node:
            case Const(value):
                return NOTHING if value >= 0 else None
            case Index():
                return NOTHING
            case Summation(_, term):
                return self.nonnegative(term)
            case Name(name):
                return NOTHING if name in self.nonnegatives else None
            case Call(op, args):
                return self._of(_sign(op), 1, args)
        return None

    def _of(self, sign: tuple[Sign, Sign], which: int, args: tuple[Node, ...]) -> frozenset[str] | None:
        """Proof of an operation's sign, from those of its arguments."""
        known = self.nonnegative if which else self.positive
        numbers = [x for x in args if x.type != "bool"]
        match sign[which]:
            case "always":
                return NOTHING
            case "every":
                return _all(*map(known, numbers))
            case "some":
                return _any(*map(known, numbers))
            case "first":
                return known(numbers[0])
            case "sum":
                a, b = numbers
                return _any(_all(self.positive(a), self.nonnegative(b)), _all(self.nonnegative(a), self.positive(b)))
        return None


def positive(params: "Iterable[Param]") -> dict[str, frozenset[str]]:
    """The params that are positive, by name, each with what this rests on: nothing where its bounds say so, itself where its default is."""
    return {p.name: NOTHING if p.min is not None and p.min > 0 else frozenset([p.name]) for p in params if p.default > 0}


def _sign(op: str) -> tuple[Sign, Sign]:
    """The rule for the sign of an operation; those of kernels alone are of what is not negative, or nothing is known of them."""
    found = row(op)
    return found.sign if found else _KERNEL.get(op, UNKNOWN)


def _all(*proofs: frozenset[str] | None) -> frozenset[str] | None:
    result = NOTHING
    for proof in proofs:
        if proof is None:
            return None
        result |= proof
    return result


def _any(*proofs: frozenset[str] | None) -> frozenset[str] | None:
    return min((p for p in proofs if p is not None), key=len, default=None)
