"""Division over the columns of a tile: what is divided besides a column is divided once a row, and a remainder that is compared not at all.

n divides what differs from column to column, a sum x = rest + columns, with columns >= 0 or columns <= 0:

    x // n == rest // n + (rest % n + columns) // n             both parts of the quotient are of what is not negative
    x // n == -1 - (-1 - x) // n, x % n == n - 1 - (-1 - x) % n     turns columns <= 0 around
    x % n == k  where  0 <= k < n  and  columns % n == (k - rest) % n

Of keys alone, kv_begin % n + column passes n in no tile that divides n: `key_quotient` and `key_remainder` know the tile.
"""

from flashgen.expr.holes.bind import KV_BEGIN, level
from flashgen.expr.language.fold import FALSE, TRUE, call
from flashgen.expr.language.nodes import ELEMENT, UNIFORM, Call, Const, Node, names, rebuild
from flashgen.expr.prove.integers import Integers
from flashgen.expr.prove.linear import COLUMN, Sum, assemble, collect, plus, times, zero
from flashgen.expr.prove.signs import NOTHING, Signs

_DIVISIONS = {"//": "quotient", "quotient": "quotient", "%": "remainder", "remainder": "remainder"}
ZERO, ONE, MINUS_ONE = Const(0, "int"), Const(1, "int"), Const(-1, "int")


def divide_rows(node: Node, signs: Signs, integers: Integers) -> Node:
    """The bound node with divisions as far outside as they go.

    >>> from flashgen.expr.holes.cuda import cuda
    >>> from flashgen.expr.prove.integers import of_kernel
    >>> from flashgen.expr.prove.linear import COLUMN
    >>> from flashgen.expr.language.nodes import Name
    >>> odd = Call("==", (Call("%", (call("-", Name("q_idx", "int"), COLUMN), Const(2, "int")), "int"), ONE), "bool")
    >>> cuda(divide_rows(odd, Signs({}, frozenset(["column"])), Integers(of_kernel)))
    'remainder(column, 2) == floor_mod(q_idx - 1, 2)'
    """
    if level(node) < ELEMENT:
        return node
    match node:
        case Call("==" | "!=" as compared, (a, b)) if a.type == "int" and (phase := _phase(call("-", a, b), signs, integers)):
            return phase if compared == "==" else call("~", phase)
    node = rebuild(node, lambda child: divide_rows(child, signs, integers))
    match node:
        case Call(op, (x, n), "int") if op in _DIVISIONS and level(n) <= UNIFORM:
            return _divided(_DIVISIONS[op], x, n, signs, integers) or node
    return node


def _divided(op: str, x: Node, n: Node, signs: Signs, integers: Integers) -> Node | None:
    parts = _columns(x, signs)
    if parts is None:
        return None
    rest, columns, falling = parts
    if falling:
        rest = call("-", MINUS_ONE, rest)
    small = _small(op, columns, call("%", rest, n), n)
    if op == "remainder" and not integers.small(small):  # of rest % n - n, in other words, 32 bits hold the sum
        below = call("-", MINUS_ONE, call("%", call("-", MINUS_ONE, rest), n))
        small = Call("%", (call("+", columns, below), n), "int")
    if op == "remainder":
        return call("-", call("-", n, ONE), small) if falling else small
    outside = ZERO if rest == ZERO else call("//", rest, n)
    return call("-", call("-", MINUS_ONE, outside), small) if falling else call("+", small, outside)


def _small(op: str, columns: Node, rest: Node, n: Node) -> Node:
    """The quotient or remainder of columns + rest by n, where 0 <= rest < n."""
    if rest == ZERO:
        return Call(op, (columns, n), "int")
    if columns == COLUMN and rest == call("%", KV_BEGIN, n) and isinstance(n, Const):
        return Call(f"key_{op}", (call("+", columns, rest), n), "int")
    match n:
        case Const(int(value)) if op == "remainder" and names(columns) == {"column"} and value.bit_count() > 1:
            return Call("wrapped", (call("+", Call(op, (columns, n), "int"), rest), n), "int")  # the compiler knows columns % n
    return Call(op, (call("+", columns, rest), n), "int")


def _phase(difference: Node, signs: Signs, integers: Integers) -> Node | None:
    """difference == 0, if it is a remainder less what does not vary."""
    total = collect(difference, lambda node: level(node) == ELEMENT)
    match total.terms:
        case ((Call("%" | "remainder", (x, n)), Const(1 | -1 as sign)),) if level(n) <= UNIFORM and (
            parts := _columns(divide_rows(x, signs, integers), signs)
        ):
            wanted = times(total.const, Const(-sign, "int")) if total.const != ZERO else ZERO
        case _:
            return None
    rest, columns, falling = parts
    phase = call("%", call("-", rest, wanted) if falling else plus(wanted, call("neg", rest)), n)
    inside = TRUE if _is_remainder(wanted, n) else call("&", call(">=", wanted, ZERO), call("<", wanted, n))
    if inside == FALSE:
        return FALSE
    return Call("==", (Call("remainder", (columns, n), "int"), call("where", inside, phase, MINUS_ONE)), "bool")


def _is_remainder(node: Node, n: Node) -> bool:
    """True if a node is provably a remainder of n."""
    match node:
        case Call("%" | "remainder", (_, m)):
            return m == n
    return node == ZERO


def _columns(x: Node, signs: Signs) -> tuple[Node, Node, bool] | None:
    """The part of x that does not vary, the other as a number >= 0, and true if x falls as that rises; None: its sign is not known."""
    total = collect(x, lambda node: level(node) == ELEMENT)
    if not total.terms or any(signs.nonnegative(core) != NOTHING for core, _ in total.terms):
        return None
    if all(signs.nonnegative(c) == NOTHING for _, c in total.terms):
        return total.const, assemble(Sum(zero("int"), total.terms)), False
    turned = total.times(MINUS_ONE)
    if all(signs.nonnegative(c) == NOTHING for _, c in turned.terms):
        return total.const, assemble(Sum(zero("int"), turned.terms)), True
    return None
