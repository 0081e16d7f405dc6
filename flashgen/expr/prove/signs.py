"""What is provably positive, and on which params that rests."""

from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.expr.language.nodes import Call, Const, Load, Name, Node

NOTHING: frozenset[str] = frozenset()


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
            case Load():
                return None
            case Call("*" | "/" | "min", args):
                return _all(*map(self.positive, args))
            case Call("max", args):
                return _any(*map(self.positive, args))
            case Call("+", (a, b)):
                return _any(_all(self.positive(a), self.nonnegative(b)), _all(self.nonnegative(a), self.positive(b)))
            case Call("where", (_, then, other)):
                return _all(self.positive(then), self.positive(other))
            case Call("float" | "sqrt", (x,)):
                return self.positive(x)
            case Call("exp" | "exp2" | "sigmoid"):
                return NOTHING
        return None

    def nonnegative(self, node: Node) -> frozenset[str] | None:
        """The params that node >= 0 rests on; None: not proved."""
        if (positive := self.positive(node)) is not None:
            return positive
        match node:
            case Const(value):
                return NOTHING if value >= 0 else None
            case Name(name):
                return NOTHING if name in self.nonnegatives else None
            case Call("%" | "remainder" | "wrapped" | "abs" | "sqrt"):  # divisors are positive
                return NOTHING
            case Call("+" | "*" | "/" | "min", args):
                return _all(*map(self.nonnegative, args))
            case Call("max", args):
                return _any(*map(self.nonnegative, args))
            case Call("where", (_, then, other)):
                return _all(self.nonnegative(then), self.nonnegative(other))
            case Call("float" | "floor" | "//" | "quotient", (x, *_)):
                return self.nonnegative(x)
        return None


def _all(*proofs: frozenset[str] | None) -> frozenset[str] | None:
    result = NOTHING
    for proof in proofs:
        if proof is None:
            return None
        result |= proof
    return result


def _any(*proofs: frozenset[str] | None) -> frozenset[str] | None:
    return min((p for p in proofs if p is not None), key=len, default=None)
