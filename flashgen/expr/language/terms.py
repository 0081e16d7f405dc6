"""Sums over a small literal index, term by term: `sum(i, 4, w[i, h] * max(a[i] * x, 0.0))`."""

import ast
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from flashgen.expr.language.fold import join
from flashgen.expr.language.nodes import Call, Const, Node, walk
from flashgen.expr.language.scope import SUM

if TYPE_CHECKING:
    from flashgen.expr.language.parse import Parser

MAX_TERMS = 64
MAX_OPERATIONS = 4000  # of all terms together


def added(parser: "Parser", tree: ast.expr, args: Sequence[ast.expr]) -> Node:
    """The sum of a term for each value of an index from 0 on, from the left. A term counts once among the operations of a text.

    Raises SpecError, at the column of the mistake.
    """
    if len(args) != 3:
        raise parser.error(tree, f"sum takes 3 arguments, got {len(args)}", f"{SUM}; it adds terms of one key, and never keys")
    index, count, term = args
    if not isinstance(index, ast.Name):
        raise parser.error(index, "the index of a sum is a name", SUM)
    if index.id in parser.scope.known or index.id in parser.indices:
        raise parser.error(index, f"{index.id} has a meaning already", "the index of a sum is a name of its own")
    if not isinstance(count, ast.Constant) or type(count.value) is not int or not 0 < count.value <= MAX_TERMS:
        raise parser.error(count, "how many terms a sum has is a whole number of the text", f"write 1 to {MAX_TERMS}")
    return _sum(parser, index.id, count.value, term)


def _sum(parser: "Parser", index: str, count: int, term: ast.expr) -> Node:
    before, nodes = parser.size, list[Node]()
    for i in range(count):
        parser.size = before
        parser.indices[index] = Const(i, "int")
        nodes.append(parser.number(term))
        if (operations := sum(1 for _ in walk(nodes[0])) * count) > MAX_OPERATIONS:
            raise parser.error(term, f"{operations} operations in a sum", f"allowed: {MAX_OPERATIONS}, those of a term times {count}")
    del parser.indices[index]
    joined = join(*nodes)
    return reduce(lambda x, y: Call("+", (x, y), y.type), joined)
