"""Floats that decide, as what `floor` is of or what is compared: every backend computes them alike, operation by operation in float32."""

from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import COMPUTED, Call, Name, Node, walk


def decides(op: str, already: bool) -> bool:
    """True if the operands of an operation, which are floats, decide something; `already`: its result does."""
    found = row(op)
    return already or (found is not None and found.decides)


def approximate(node: Node) -> bool:
    """True if machines may differ in a node: it depends on s or o, or comes out of an exponential, a logarithm, tanh and the like."""
    return any((isinstance(n, Name) and n.name in COMPUTED) or (isinstance(n, Call) and _approximate(n.op)) for n in walk(node))


def _approximate(op: str) -> bool:
    found = row(op)
    return found is not None and found.approximate
