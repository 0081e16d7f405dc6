"""Bounds of integers for any call: they tell what 32 bits hold, and what 64."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import TYPE_CHECKING

from flashgen.expr.language.nodes import DISTANCE, INTEGER_NAMES, V_IDX, Call, Const, Index, Length, Name, Node, children, walk
from flashgen.expr.prove.affine import INT32, INT64, MAX_LENGTH, Int, named, number, operations, param, select
from flashgen.expr.prove.intervals import ANY, Facts, Interval, Known
from flashgen.expr.prove.names import LANGUAGE

if TYPE_CHECKING:
    from flashgen.spec import Param

MAX_TEXT = 300  # characters of a form; a longer one is known by its interval alone
MAX_BLOCK_N = 1024  # columns of a key tile
INT = (-INT32 - 1, INT32)
LENGTH = (0, INT32)  # of an array along an axis
LONG = (-INT64 - 1, INT64)


def of_language(name: str) -> str:
    """The name in linear forms of a name of the language."""
    return name if name in INTEGER_NAMES else param(name)


def of_kernel(name: str) -> str:
    """The name in linear forms of a name of a kernel."""
    return LANGUAGE.get(name, name)


def divisors(*nodes: Node) -> tuple[str, ...]:
    """The params that something is divided by as they are: a call with one that is not positive is refused."""
    found = [node.args[1] for root in nodes for node in walk(root) if isinstance(node, Call) and node.op in ("//", "%")]
    return tuple(dict.fromkeys(n.name for n in found if isinstance(n, Name) and n.name not in INTEGER_NAMES))


def intervals(params: "Iterable[Param]", *nodes: Node) -> dict[str, Interval]:
    """The intervals of integer params, by their names in forms; those that something in `nodes` is divided by are at least 1."""
    dividing, known = divisors(*nodes), {p.name: p.interval for p in params if p.type == "int"}
    positive = {name: (max(1, low), max(1, high)) for name in dividing for low, high in (known.get(name, INT),)}
    return {param(name): interval for name, interval in (known | positive).items()}


class Integers:
    """Intervals of integer nodes, of the queries and keys that exist; what tensors hold, and params of no known interval, are any 32-bit
    numbers.

    >>> q, k, n = (Name(x, "int") for x in ("q_idx", "kv_idx", "n"))
    >>> ints = Integers(of_language)
    >>> ints.extent(Call("-", (q, k), "int")), ints.small(Call("-", (k, n), "int"))
    ((-1073741823, 1073741823), False)
    """

    def __init__(self, names: Callable[[str], str], known: Known = ANY):
        """`known`: what `intervals` gives."""
        self.names = names
        self.facts = Facts(1, 1, known)
        last = MAX_LENGTH - 1
        self.facts.known |= dict.fromkeys(("q_idx", "kv_idx", "kv_begin", V_IDX), (0, last)) | {"column": (0, MAX_BLOCK_N - 1)}
        self.facts.known |= dict.fromkeys(("distance", param(DISTANCE)), (-last, last))
        self.facts.known |= dict.fromkeys(("rows after", "keys after"), (0, last))
        key = named("kv_idx")
        rows = {"q_len": named("q_idx") + 1 + named("rows after")}
        keys = {"kv_len": key + 1 + named("keys after"), "kv_begin": key - named("column")}
        self.facts.untangled = [rows, keys, rows | keys]
        self.forms: dict[Node, Int] = {}
        self.extents: dict[Node, Interval] = {}

    def extent(self, node: Node) -> Interval:
        """An interval that holds the integer."""
        if node not in self.extents:
            self.extents[node] = self.facts.extent(self.form(node))
        return self.extents[node]

    def within(self, node: Node, limits: Interval) -> bool:
        """True if the integer lies within the limits."""
        low, high = self.extent(node)
        return limits[0] <= low and high <= limits[1]

    def fits(self, node: Node) -> bool:
        """True if 32 bits hold the integer."""
        return self.within(node, INT)

    def small(self, node: Node) -> bool:
        """True if 32 bits hold the integer and all that it is computed from."""
        return self._all(node, INT)

    def hold(self, node: Node) -> bool:
        """True if 64 bits hold the integer and all that it is computed from."""
        return self._all(node, LONG)

    def form(self, node: Node) -> Int:
        """The integer as a linear form, as far as one is short."""
        if node not in self.forms:
            found = self._form(node)
            self.forms[node] = found if len(found.text) <= MAX_TEXT else self._unknown(self.facts.extent(found))
        return self.forms[node]

    def _all(self, node: Node, limits: Interval) -> bool:
        return (node.type != "int" or self.within(node, limits)) and all(self._all(child, limits) for child in children(node))

    def _form(self, node: Node) -> Int:
        match node:
            case Const(value):
                return number(int(value))
            case Length(name):
                self.facts.known[name] = LENGTH
                return named(name)
            case Index(name, count=count):
                self.facts.known[f"{name} < {count}"] = (0, count - 1)
                return named(f"{name} < {count}")
            case Name(name):
                return named(self.names(name))
            case Call("where", (_, then, other)):
                return select(self._unknown(INT), self.form(then), self.form(other))
            case Call(op, args) if op in _OPERATIONS:
                found = _OPERATIONS[op](*map(self.form, args))
                return self._product(found, *args) if op == "*" else found
        return self._unknown(INT)

    def _product(self, found: Int, a: Node, b: Node) -> Int:
        """The form of a product, unless its factors tell more: those of a square do."""
        corners = [x * y for x, y in product(self.extent(a), self.extent(b))]
        low, high = self.facts.extent(found)
        within = max(min(corners), low), min(max(corners), high)
        return found if within == (low, high) else self._unknown(within)

    def _unknown(self, interval: Interval) -> Int:
        name = f"#{len(self.facts.known)}"
        self.facts.known[name] = interval
        return named(name)


_LANGUAGE = operations()
_OPERATIONS = _LANGUAGE | {  # and a kernel's
    **dict.fromkeys(("quotient", "key_quotient"), _LANGUAGE["//"]),
    **dict.fromkeys(("remainder", "key_remainder", "wrapped"), _LANGUAGE["%"]),
}
