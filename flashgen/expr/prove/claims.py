"""Proves the claims of expressions, or requires them of the params at each call; others are refused where they are written."""

from collections.abc import Iterable, Iterator

from flashgen.errors import Position
from flashgen.expr.language.claims import Claim, Requirement
from flashgen.expr.language.fold import fold
from flashgen.expr.language.nodes import INTEGER_NAMES, Call, Const, Load, Name, Node, names, walk
from flashgen.expr.language.parse import Parser
from flashgen.expr.language.scope import MAX_EXACT, Scope
from flashgen.expr.language.text import show
from flashgen.expr.prove.affine import param
from flashgen.expr.prove.integers import Integers, of_language
from flashgen.expr.prove.signs import NOTHING, Signs

ZERO = Const(0, "int")


def parse(text: str, scope: Scope, position: Position) -> Node:
    """The typed form of an expression, its claims proved; `position` is where its text begins.

    >>> parse("kv_idx < n", Scope(params={"n": "int"}), Position("<mask>", 1, 1, "kv_idx < n"))
    Call(op='<', args=(Name(name='kv_idx', type='int'), Name(name='n', type='int')), type='bool')

    Raises SpecError, at the column of the mistake.
    """
    parser = Parser(scope, text, position)
    node = parser.read()
    prove(parser.claims, scope)
    return node


def prove(claims: Iterable[Claim], scope: Scope) -> tuple[Requirement, ...]:
    """The requirements of the params that claims rest on. Raises SpecError for a claim that does not hold."""
    integers = Integers(of_language, {param(name): interval for name, interval in scope.bounds.items()})
    found = (requirement for claim in claims for requirement in _requirements(claim, scope, integers))
    return tuple(dict.fromkeys(found))


def _requirements(claim: Claim, scope: Scope, integers: Integers) -> Iterator[Requirement]:
    match claim.kind:
        case "exact":
            if not integers.within(claim.node, (-MAX_EXACT, MAX_EXACT)):
                hint = "bound its parts, as in min(max(x, -1000), 1000), or multiply by a number with a point first: 1.0 * x"
                raise claim.refuse("an integer that may pass 64 bits: params and int32 tensors hold any 32-bit numbers", hint)
        case "holds":
            if _only_params(claim.node, scope):
                assert isinstance(claim.node, Call), claim.node
                yield from _required(claim, claim.node, claim.subject, integers)
        case "positive":
            message = f"{claim.subject} must be positive"
            for node in _positive(claim, scope):
                yield from _required(claim, Call(">", (node, ZERO), "bool"), message, integers)


def _positive(claim: Claim, scope: Scope) -> tuple[Node, ...]:
    """The nodes that have to be positive at a call for the node of a claim to be so."""
    if _only_params(claim.node, scope):
        return (claim.node,)
    lengths = dict.fromkeys(("q_len", "kv_len"), NOTHING)
    params = {name: frozenset([name]) for name in scope.params}
    bounded = {name: NOTHING for name, (low, _) in scope.bounds.items() if low > 0}
    proof = Signs(lengths | params | bounded, frozenset(INTEGER_NAMES)).positive(claim.node)
    if proof is None:
        raise claim.refuse(f"{claim.subject} must be positive, and this may not be", f"write max(1, {show(claim.node)})")
    return tuple(Name(name, "int") for name in sorted(proof))


def _required(claim: Claim, condition: Call, message: str, integers: Integers) -> Iterator[Requirement]:
    """The requirements that are left of a condition x > y or x >= y of integers."""
    low, high = integers.extent(Call("-", condition.args, "int"))
    least = 1 if condition.op == ">" else 0
    if high < least:
        raise claim.refuse(message, f"got {claim.source}")
    if low < least:
        required = fold(condition)
        yield Requirement(show(required), required, message)


def _only_params(node: Node, scope: Scope) -> bool:
    return names(node) <= scope.params.keys() and not any(isinstance(n, Load) for n in walk(node))
