"""Floats that decide, as what `floor` is of or what is compared: every backend computes them alike, operation by operation in float32."""

from flashgen.expr.language.nodes import COMPARISONS, Call, Name, Node, walk

TRANSCENDENTAL = ("exp", "exp2", "log", "tanh", "sigmoid")


def decides(op: str, already: bool) -> bool:
    """Whether the floats that an operation is of decide something; `already`: whether its result does."""
    return already or op == "floor" or op in COMPARISONS


def approximate(node: Node) -> bool:
    """Whether no two machines give the same: what depends on s, and what comes out of an exponential, a logarithm, tanh or sigmoid."""
    return any(n == Name("s", "float") or (isinstance(n, Call) and n.op in TRANSCENDENTAL) for n in walk(node))
