"""Sums over a small literal index: `sum(i, 4, w[i, h] * max(a[i] * x, 0.0))`. Long ones of a score are a node of their own."""

import ast
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from flashgen.errors import SpecError
from flashgen.expr.language.fold import fold, join
from flashgen.expr.language.nodes import Call, Const, Index, Load, Node, Summation, names, unrolled, walk
from flashgen.expr.language.scope import SUM

if TYPE_CHECKING:
    from flashgen.expr.language.parse import Parser

MAX_TERMS = 64
MAX_OPERATIONS = 4000  # of all terms together
FEW_READS, FEW_OPERATIONS = 12, 200  # of all terms: registers have the numbers of so few reads, and a text so many operations


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
        if not i and (operations := sum(1 for _ in walk(unrolled(nodes[0]))) * count) > MAX_OPERATIONS:
            raise parser.error(term, f"{operations} operations in a sum", f"allowed: {MAX_OPERATIONS}, those of a term times {count}")
    joined = join(*nodes)
    return _summation(parser, index, term, joined) or reduce(lambda x, y: Call("+", (x, y), y.type), joined)


def _summation(parser: "Parser", name: str, term: ast.expr, terms: Sequence[Node]) -> Summation | None:
    """The sum as a node, where a loop of a score's element pays; `terms`: what it has to be the sum of."""
    before, claims = (parser.size, parser.depth), len(parser.claims)
    index = parser.indices[name] = Index(name, "int", count=len(terms))
    try:
        found = Summation(index, parser.number(term))
    except SpecError:  # where the index has to be a number, as an exponent
        return None
    finally:
        del parser.indices[name], parser.claims[claims:]
        parser.size, parser.depth = before
    of_element = "s" in parser.scope.names and not {"s", "kv_idx"}.isdisjoint(names(found.term))
    if not of_element or found.term.type != "float" or not _pays(found):
        return None
    return found if all(fold(found.at(i)) == fold(each) for i, each in enumerate(terms)) else None


def _pays(found: Summation) -> bool:
    """True if what depends on the index is more than a few reads or operations, and no row or key has reads of its own.

    Rows and keys are read anew by each loop: that is slower than registers that spill. A sum of loops is each of them.
    """
    of_index = [node for node in walk(found.term) if found.index in walk(node)]
    reads = [node for node in of_index if isinstance(node, Load)]
    operations = sum(isinstance(node, Call) for node in of_index)
    if any(isinstance(node, Summation) for node in walk(found.term)) or any(names(read) & {"q_idx", "kv_idx", "s"} for read in reads):
        return False
    return found.index.count * len(reads) > FEW_READS or found.index.count * operations > FEW_OPERATIONS
