"""What a score adds to all of a row, taken at the first of a thread's two rows for both: softmax does not see it.

A term that grows evenly with q_idx, as ALiBi's slope * float(kv_begin - q_idx), differs in every key of the second row by the same number,
which its log-sum-exp and maximum get back. So what the columns add to the term is computed once for two elements.
"""

from flashgen.expr.fold import call
from flashgen.expr.linear import Sum, collect
from flashgen.expr.nodes import Call, Const, Name, Node, names, rebuild

APART = 8  # query rows, between the two of a thread
Q_IDX, FIRST_ROW = Name("q_idx", "int"), Name("first_row", "int")


def at_first_row(total: Sum) -> tuple[Sum, Node] | None:
    """The sum as it is in a thread's first row, and how much more the second row has of it; None where that is not known.

    >>> from flashgen.expr.cuda import cuda
    >>> slope = Name("slope", "float")
    >>> term = Call("*", (slope, Call("float", (Call("-", (Name("kv_begin", "int"), Q_IDX), "int"),), "float")), "float")
    >>> first, more = at_first_row(Sum(term, ()))
    >>> cuda(first.const), cuda(more)
    ('slope * float(kv_begin - first_row)', '-8.0f * slope')
    """
    of_row = collect(total.const, _moves)
    if not of_row.terms or any(_moves(c) for _, c in total.terms):
        return None
    more: Node = Const(0.0, "float")
    for core, coefficient in of_row.terms:
        if not (isinstance(core, Call) and core.op == "float"):
            return None
        index = collect(core.args[0], _moves)
        if len(index.terms) != 1 or index.terms[0][0] != Q_IDX or _moves(index.terms[0][1]):
            return None
        step = call("*", Const(APART, "int"), index.terms[0][1])
        more = call("+", more, call("*", call("float", step), coefficient))
    return Sum(_first(total.const), total.terms), more


def _moves(node: Node) -> bool:
    return "q_idx" in names(node)


def _first(node: Node) -> Node:
    return FIRST_ROW if node == Q_IDX else rebuild(node, _first)
