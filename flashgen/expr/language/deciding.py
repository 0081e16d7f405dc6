"""Floats that decide, as what `floor` is of or what is compared: every backend computes them alike, operation by operation in float32."""

from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call, Name, Node, walk


def decides(op: str, already: bool) -> bool:
    """Whether the floats that an operation is of decide something; `already`: whether its result does."""
    found = row(op)
    return already or (found is not None and found.decides)


def approximate(node: Node) -> bool:
    """Whether no two machines give the same: what depends on s, and what comes out of an exponential, a logarithm, tanh and the like."""
    return any(n == Name("s", "float") or (isinstance(n, Call) and _approximate(n.op)) for n in walk(node))


def _approximate(op: str) -> bool:
    found = row(op)
    return found is not None and found.approximate
