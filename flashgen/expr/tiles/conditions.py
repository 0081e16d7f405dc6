"""Conditions solved for kv_idx: what can be becomes `kv_idx < x` or `kv_idx >= x`, and bounds are gathered into few."""

from flashgen.expr.language.fold import FALSE, TRUE, call
from flashgen.expr.language.nodes import Call, Const, Name, Node, names
from flashgen.expr.prove.integers import Integers, of_language
from flashgen.expr.prove.intervals import ANY, Known
from flashgen.expr.prove.linear import collect, normal

KV, KV_LEN = Name("kv_idx", "int"), Name("kv_len", "int")
ZERO, ONE = Const(0, "int"), Const(1, "int")

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def reads_key(node: Node) -> bool:
    """True if a node differs from key to key."""
    return "kv_idx" in names(node)


def visible(mask: Node, known: Known = ANY) -> Node:
    """The mask and kv_idx < kv_len as a conjunction: bounds on kv_idx first, then what is none. `known`: the intervals of params.

    >>> from flashgen.expr.language.text import show
    >>> n, q = Name("n", "int"), Name("q_idx", "int")
    >>> show(visible(Call("|", (Call("<", (KV, n), "bool"), Call("<=", (KV, q), "bool")), "bool")))
    'kv_idx < min(max(n, q_idx + 1), kv_len)'
    """
    return _join("&", [*parts("&", solve(mask, known)), call("<", KV, KV_LEN)])


def solve(node: Node, known: Known = ANY) -> Node:
    """An equal condition for 0 <= kv_idx < kv_len, with comparisons of integers solved for kv_idx where that can be done."""
    match node:
        case Call("~", (inner,)):
            return _negate(inner, known)
        case Call("&" | "|" as op, (a, b)):
            return _join(op, [*parts(op, solve(a, known)), *parts(op, solve(b, known))])
        case Call("<" | "<=" | ">" | ">=" | "==" | "!=", (a, _)) if a.type == "int" and reads_key(node):
            solved = _compare(node)
            return solved if Integers(of_language, known).hold(solved) else node
    return node


def _negate(node: Node, known: Known) -> Node:
    match node:
        case Call("~", (inner,)):
            return solve(inner, known)
        case Call("&" | "|" as op, (a, b)):
            return solve(Call("|" if op == "&" else "&", (call("~", a), call("~", b)), "bool"), known)
        case Call(op, (a, b)) if op in _NEGATED and a.type == "int":
            return solve(call(_NEGATED[op], a, b), known)
    return call("~", node)


def _compare(node: Call) -> Node:
    a, b = node.args
    less, more = call("-", a, b), call("-", b, a)
    match node.op:
        case "<=":
            solved = _not_positive(less)
        case "<":
            solved = _not_positive(call("+", less, ONE))
        case ">=":
            solved = _not_positive(more)
        case ">":
            solved = _not_positive(call("+", more, ONE))
        case "==":
            return _equal(less) or _both("&", _not_positive(less), _not_positive(more)) or node
        case _:
            if equal := _equal(less):
                return call("!=", *equal.args) if isinstance(equal, Call) else call("~", equal)
            return _both("|", _not_positive(call("+", less, ONE)), _not_positive(call("+", more, ONE))) or node
    return solved or node


def _equal(difference: Node) -> Node | None:
    """kv_idx == x, if the difference is kv_idx - x or x - kv_idx."""
    total = collect(difference, reads_key)
    match total.terms:
        case ():
            return call("==", total.const, ZERO)
        case ((core, Const(1)),) if core == KV:
            return call("==", KV, call("neg", total.const))
        case ((core, Const(-1)),) if core == KV:
            return call("==", KV, total.const)
    return None


def _both(op: str, a: Node | None, b: Node | None) -> Node | None:
    return _join(op, [*parts(op, a), *parts(op, b)]) if a and b else None


def _either(condition: Node, a: Node | None, b: Node | None) -> Node | None:
    """The condition that is a where a condition holds, and b elsewhere; None if one of them is."""
    if not (a and b):
        return None
    held, other = solve(call("&", condition, a)), solve(call("&", call("~", condition), b))
    return _join("|", [*parts("|", held), *parts("|", other)])


def _not_positive(node: Node) -> Node | None:
    """node <= 0, solved for kv_idx; None: not of a form that can be."""
    total = collect(node, reads_key)
    match total.terms:
        case ():
            return call("<=", total.const, ZERO)
        case ((core, Const(int(k))),) if k > 0:
            return _at_most(core, call("//", call("neg", total.const), Const(k, "int")))
        case ((core, Const(int(k))),):
            return _at_least(core, call("//", call("+", total.const, Const(-k - 1, "int")), Const(-k, "int")))
    return None


def _at_most(core: Node, x: Node) -> Node | None:
    match core:
        case Name("kv_idx"):
            return call("<", KV, call("+", x, ONE))
        case Call("//", (inner, n)) if not reads_key(n):  # inner // n <= x: inner < (x + 1) * n
            return _not_positive(call("+", call("-", inner, call("*", call("+", x, ONE), n)), ONE))
        case Call("max" | "min" as op, (a, b)):
            return _both("&" if op == "max" else "|", _not_positive(call("-", a, x)), _not_positive(call("-", b, x)))
        case Call("abs", (a,)):
            return _both("&", _not_positive(call("-", a, x)), _not_positive(call("-", call("neg", a), x)))
        case Call("where", (condition, a, b)):
            return _either(condition, _not_positive(call("-", a, x)), _not_positive(call("-", b, x)))
    return None


def _at_least(core: Node, x: Node) -> Node | None:
    match core:
        case Name("kv_idx"):
            return call(">=", KV, x)
        case Call("//", (inner, n)) if not reads_key(n):
            return _not_positive(call("-", call("*", x, n), inner))
        case Call("max" | "min" as op, (a, b)):
            return _both("|" if op == "max" else "&", _not_positive(call("-", x, a)), _not_positive(call("-", x, b)))
        case Call("abs", (a,)):
            return _both("|", _not_positive(call("-", x, a)), _not_positive(call("+", x, a)))
        case Call("where", (condition, a, b)):
            return _either(condition, _not_positive(call("-", x, a)), _not_positive(call("-", x, b)))
    return None


def parts(op: str, node: Node | None) -> list[Node]:
    """The nodes that an operator joins at the top of a node; none of None."""
    match node:
        case Call(o, (a, b)) if o == op:
            return [*parts(op, a), *parts(op, b)]
        case None:
            return []
    return [node]


def _join(op: str, parts: list[Node]) -> Node:
    """The parts joined, with one upper bound, one lower bound, and what reads no key inside a bound if there is one."""
    upper = [bound for p in parts if (bound := _bound(p, "<"))]
    lower = [bound for p in parts if (bound := _bound(p, ">="))]
    fixed = _chain(op, [p for p in parts if not reads_key(p)])
    rest = [p for p in parts if reads_key(p) and not (_bound(p, "<") or _bound(p, ">="))]
    least, most = ("max", "min") if op == "&" else ("min", "max")
    begin, end = _extreme(least, lower), _extreme(most, upper)
    neutral = TRUE if op == "&" else FALSE
    # A condition that is met, or not, for all keys of a row: a bound at the far or the near end.
    if end and fixed != neutral:
        end, fixed = (call("where", fixed, end, ZERO) if op == "&" else call("where", fixed, KV_LEN, end)), neutral
    elif begin and fixed != neutral:
        begin, fixed = (call("where", fixed, begin, KV_LEN) if op == "&" else call("where", fixed, ZERO, begin)), neutral
    bounds = [*([call(">=", KV, begin)] if begin else []), *([call("<", KV, end)] if end else [])]
    return _chain(op, [*([] if fixed == neutral else [fixed]), *bounds, *rest])


def _bound(node: Node, op: str) -> Node | None:
    """x, if the condition is kv_idx `op` x."""
    match node:
        case Call(o, (Name("kv_idx"), x)) if o == op and not reads_key(x):
            return x
    return None


def _extreme(op: str, bounds: list[Node]) -> Node | None:
    """The least or greatest, each once."""
    distinct = list(dict.fromkeys(normal(b, lambda n: not isinstance(n, Const)) for b in bounds))
    result = distinct[0] if distinct else None
    for bound in distinct[1:]:
        result = call(op, result, bound) if result else bound
    return result


def _chain(op: str, parts: list[Node]) -> Node:
    result: Node = TRUE if op == "&" else FALSE
    for part in dict.fromkeys(parts):
        result = call(op, result, part)
    return result
