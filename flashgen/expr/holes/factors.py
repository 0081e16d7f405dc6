"""Uniform factors of q.k, which a kernel makes one of where the text may multiply in steps: float32 has to hold their product."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from flashgen.errors import SpecError
from flashgen.expr.holes.bind import SCALE
from flashgen.expr.language.claims import Requirement
from flashgen.expr.language.fold import call, fold
from flashgen.expr.language.function import Function
from flashgen.expr.language.functions import FUNCTIONS, row
from flashgen.expr.language.nodes import Call, Const, Load, Name, Node, names, rebuild, walk
from flashgen.expr.language.operators import OPERATORS
from flashgen.expr.language.text import show
from flashgen.expr.meaning.evaluate import evaluate

if TYPE_CHECKING:
    from flashgen.spec import Spec

MOST = Const(float(np.finfo(np.float32).max), "float")
MESSAGE = "the score multiplies q.k by what float32 does not hold"
ROWS = [each for each in (*OPERATORS.values(), *FUNCTIONS.values()) if isinstance(each, Function)]
OF_KERNEL = {each.decided: each.name for each in ROWS} | {
    "quotient": "//",
    "remainder": "%",
}  # operations of the language by what binds them


def finite(factors: Iterable[Node], scale: Node, spec: "Spec") -> Iterator[Requirement]:
    """The conditions under which float32 holds bound factors: finite, and not 0, where what is multiplied is.

    Raises SpecError for a factor of constants that breaks it. A factor of what only the kernel knows has none.

    >>> from flashgen.expr.language.nodes import Argument
    >>> from flashgen.spec import Spec
    >>> spec = Spec(head_dim=16, dtype="float16", score="tanh(s / cap)", params={"cap": 50.0})
    >>> factor = Call("/", (SCALE, Argument("p.arg_cap", "float")), "float")
    >>> [rule.text for rule in finite([factor], Const(0.25, "float"), spec)]
    ['0 < abs(0.25 / cap) <= 3.4028235e+38']
    """
    params = {p.name for p in spec.params}
    meanings: dict[str, Node] = {f"p.{p.argument}": Name(p.name, p.type) for p in spec.params} | {SCALE.name: scale}
    for bound in factors:
        factor = fold(_of_language(bound, meanings))
        if any(isinstance(node, Load) for node in walk(factor)) or not names(factor) <= params:
            continue
        assert all(row(node.op) for node in walk(factor) if isinstance(node, Call)), factor
        condition, text = _holds(factor), f"0 < abs({show(factor)}) <= {show(MOST)}"
        if names(factor):
            yield Requirement(text, condition, MESSAGE)
        elif not evaluate(condition, {}):
            raise SpecError(f"{MESSAGE}, {show(factor)}", spec.position("score"), f"write numbers for which {text}")


def _of_language(node: Node, meanings: Mapping[str, Node]) -> Node:
    match node:
        case Name(name):
            return meanings.get(name, node)
        case Call(op, args, type) if op in OF_KERNEL:
            return Call(OF_KERNEL[op], tuple(_of_language(x, meanings) for x in args), type)
    return rebuild(node, lambda child: _of_language(child, meanings))


def _holds(factor: Node) -> Node:
    """A condition: the factor is finite and not 0, or something in it is not. A comparison takes numbers of float32."""
    return call("|", _ordinary(factor), call("~", reduce(partial(call, "&"), map(_ordinary, _multiplied(factor)))))


def _ordinary(node: Node) -> Node:
    size = call("abs", node)
    return call("&", call(">", size, Const(0.0, "float")), call("<=", size, MOST))


def _multiplied(node: Node) -> Iterator[Node]:
    """The operands of products and quotients."""
    match node:
        case Call("*" | "/" | "neg", args):
            for x in args:
                yield from _multiplied(x)
        case _:
            yield node
