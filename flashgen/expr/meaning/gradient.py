"""Derivatives of expressions, as expressions: the rows of functions hold the slopes, the chain rule joins them.

A slope is a form of what the forward computes, so it costs little beside it: 1 - t * t of t = tanh(a), y * (1 - y) of y = sigmoid(a).

At a kink the derivative is the mean of those on either side: abs has 0 at 0, and `min` and `max` give half to each of two that are equal,
as in PyTorch and JAX. So what is smooth stays right where it is written with kinks, as softplus at 0. `where` has the derivative of the
branch that it takes, and nothing of the other's matters. floor, round, int and conditions have the derivative 0, and so has a read by its
indices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from flashgen.errors import Position, SpecError
from flashgen.expr.language.fold import call, fold
from flashgen.expr.language.function import Function
from flashgen.expr.language.functions import row
from flashgen.expr.language.located import Located
from flashgen.expr.language.nodes import Call, Const, Index, Load, Name, Node, Summation, unrolled, walk
from flashgen.expr.language.parse import Parser
from flashgen.expr.language.read import read
from flashgen.expr.language.scope import Scope

if TYPE_CHECKING:
    from flashgen.spec import Spec

Variable = Name | Load  # a float
ZERO, ONE = Const(0.0, "float"), Const(1.0, "float")
S, O = Name("s", "float"), Name("o", "float")  # noqa: E741


@dataclass(frozen=True)
class Derivatives:
    """The derivatives of a spec's expressions by what they read; what one does not depend on is left out.

    `s`: d score / d s. `score`, `sink`, `scale` and `weight`: by float params, and by float tensors at the indices where they are read.
    `o`, `output`: the same of `output`, by o and by what else it reads; without one 1 and nothing.
    """

    s: Node
    score: Mapping[Variable, Node]
    sink: Mapping[Variable, Node]
    scale: Mapping[Variable, Node]
    weight: Mapping[Variable, Node]
    o: Node
    output: Mapping[Variable, Node]


def derivatives(spec: "Spec") -> Derivatives:
    """The derivatives of the score, the sink, the scale, the weight and the output of a spec.

    >>> from flashgen.expr.language.text import show
    >>> from flashgen.spec import Spec
    >>> found = derivatives(Spec(head_dim=64, dtype="float16", score="softcap * tanh(s / softcap)", params={"softcap": 50.0}))
    >>> show(found.s)
    '1.0 - tanh(s / softcap) * tanh(s / softcap)'
    >>> [f"{show(by)}: {show(node)}" for by, node in found.score.items()]
    ['softcap: tanh(s / softcap) - (1.0 - tanh(s / softcap) * tanh(s / softcap)) * s / softcap']

    Raises SpecError at a function that has no derivative, where one is asked for; and for a tensor or param with `grad: true` that no
    derivative is by.
    """
    parsed = read(spec)
    sink, weight = (ZERO if node is None else node for node in (parsed.sink, parsed.weight))
    output = O if parsed.output is None else parsed.output
    parts = (
        ("score", spec.score, parsed.score),
        ("softmax.sink", spec.softmax.sink, sink),
        ("scale", spec.scale, parsed.scale),
        ("weight", spec.weight, weight),
        ("output", spec.output, output),
    )
    for key, text, node in parts:
        _check(node, Located(text or "", spec.position(key)))
    score, of_sink, of_scale, of_weight, of_output = (_by_each(node) for _, _, node in parts)
    learned = {name for role in spec.norm.of if (name := spec.norm.columns(role))} if spec.norm else set[str]()
    smooth = (*score, *of_sink, *of_scale, *of_weight, *of_output)
    _check_asked(spec, {by.name if isinstance(by, Name) else by.tensor for by in smooth} | learned)
    return Derivatives(
        s=derivative(parsed.score, S),
        score=score,
        sink=of_sink,
        scale=of_scale,
        weight=of_weight,
        o=derivative(output, O),
        output=of_output,
    )


def derivative(node: Node, by: Variable) -> Node:
    """The derivative of a float by a name or by a read, simplified and folded.

    >>> from flashgen.expr.language.text import show
    >>> x = Name("x", "float")
    >>> show(derivative(Call("*", (x, Call("exp", (x,), "float")), "float"), x))
    'exp(x) + x * exp(x)'
    """
    return fold(_chain(fold(node), fold(by)))


def variables(node: Node) -> tuple[Variable, ...]:
    """The float names and reads of an expression, s and o apart, in the order in which it has them."""
    return tuple(dict.fromkeys(n for n in walk(fold(node)) if isinstance(n, Name | Load) and n.type == "float" and n not in (S, O)))


def _by_each(node: Node) -> Mapping[Variable, Node]:
    """The derivatives by each variable; by what sums read at their index the terms are taken one by one."""
    each = unrolled(node)
    by_index = {n.tensor for n in walk(node) if isinstance(n, Load) and any(isinstance(below, Index) for below in walk(n))}
    found = {by: derivative(each if isinstance(by, Load) and by.tensor in by_index else node, by) for by in variables(each)}
    return {by: slope for by, slope in found.items() if slope != ZERO}


def _check(node: Node, text: Located) -> None:
    """Raises SpecError for a function without a derivative of which one is asked for, at its position in the text."""
    for n in walk(node):
        if isinstance(n, Call) and any(variables(x) or {S, O} & {*walk(x)} for x in _floats(n)) and _lacks_a_slope(n):
            hint = f"write it without {n.op}, or fill the cell `derivative` of its row"
            raise text.error_of(n.op, f"the function {n.op} has no derivative", hint)


def _check_asked(spec: "Spec", smooth: set[str]) -> None:
    """Raises SpecError for the first tensor or param that asks for a gradient which is 0 whatever it holds."""
    for kind, declared in (("params", spec.params), ("tensors", spec.tensors)):
        for one in declared:
            if one.grad and one.name not in smooth:
                path = f"{kind}.{one.name}.grad"
                message = f"{path}: the gradient is 0 whatever {one.name} holds: it is read by the mask or by decisions alone"
                raise SpecError(message, spec.position(path), "leave grad out, or read it in score, scale, sink, weight, output or norm")


def _lacks_a_slope(node: Call) -> bool:
    found = row(node.op)
    return node.type == "float" and (found is None or len(found.derivative) != len(_floats(node)))


def _floats(node: Call) -> tuple[Node, ...]:
    return tuple(x for x in node.args if x.type == "float")


def _chain(node: Node, by: Node) -> Node:
    """The sum over a node's arguments of its slope by each, times the derivative of that."""
    if node == by:
        return ONE
    if isinstance(node, Summation):
        return ZERO if (of_term := _chain(node.term, by)) == ZERO else replace(node, term=of_term)
    if not isinstance(node, Call) or node.type != "float":
        return ZERO
    inner = [_chain(x, by) for x in _floats(node)]
    if all(x == ZERO for x in inner):
        return ZERO
    found = row(node.op)
    assert found, node.op
    terms = (_times(_slope(text, found, node), x) for text, x in zip(found.derivative, inner, strict=True) if x != ZERO)
    return reduce(_plus, terms)


def _slope(text: str, function: Function, node: Call) -> Node:
    """A cell `derivative` with a call's arguments in place of its parameters."""
    bound = dict(zip(function.parameters, node.args, strict=True))
    return fold(Parser(Scope(masks=False), text, Position(f"<derivative of {function.name}>", 1, 1, text), bound).read("float"))


def _plus(x: Node, y: Node) -> Node:
    match x, y:
        case Call("where", (c, then, zero)), Call("where", (same, none, other)) if c == same and zero == none == ZERO:
            return call("where", c, then, other)
        case _, Call("neg", (negated,)):
            return call("-", x, negated)
    return _times(Const(2.0, "float"), x) if x == y else call("+", x, y)


def _times(x: Node, y: Node) -> Node:
    """The product with equal factors above and below cancelled; 0 times anything is 0, as where a branch is not taken."""
    for choice, factor in ((x, y), (y, x)):
        match choice:
            case Call("where", (c, then, other)) if ZERO in (then, other):
                return call("where", c, *(ZERO if branch == ZERO else _times(branch, factor) for branch in (then, other)))
    above, below = _factors(Call("*", (x, y), "float"))
    if ZERO in above:
        return ZERO
    for one in tuple(above):
        if one in below:
            above.remove(one)
            below.remove(one)
    number = _joined("/", _joined("*", ONE, filter(_number, above)), filter(_number, below))
    above, below = ([one for one in side if not _number(one)] for side in (above, below))
    negative = number == Const(-1.0, "float") and bool(above)
    quotient = _joined("/", _joined("*", ONE if negative else number, above), below)
    return call("neg", quotient) if negative else quotient


def _joined(op: str, first: Node, others: Iterable[Node]) -> Node:
    """The first node with each of the others after it, from left to right."""
    for other in others:
        first = call(op, first, other)
    return first


def _number(node: Node) -> bool:
    return isinstance(node, Const)


def _factors(node: Node) -> tuple[list[Node], list[Node]]:
    """The factors that a node is the product of, and those that it is divided by."""
    match node:
        case Call("*" | "/" as op, (x, y)) if node.type == "float":
            (above, below), (more, under) = _factors(x), _factors(y)
            return ([*above, *more], [*below, *under]) if op == "*" else ([*above, *under], [*below, *more])
        case Call("neg", (x,)) if node.type == "float":
            above, below = _factors(x)
            return [Const(-1.0, "float"), *above], below
    return [node], []
