"""Bounds of keys and indices of tensors that 32 bits may not hold: they stop where nothing changes any more.

A bound of kv_idx below 0 is as good as 0, and one beyond all keys as good as their end. So is an index of a tensor, which is clamped to it
anyway, and what divides positions is as good as their greatest distance. What is the same in a whole query tile stops there, where that
will do, so that rows and elements stay as they are.
"""

from functools import partial

from flashgen.expr.language.fold import call
from flashgen.expr.language.nodes import Call, Const, Load, Node, names, rebuild
from flashgen.expr.language.operators import COMPARISONS
from flashgen.expr.prove.affine import INT32, MAX_LENGTH
from flashgen.expr.prove.integers import INT, Integers, of_language
from flashgen.expr.prove.intervals import ANY, Interval, Known
from flashgen.expr.prove.linear import Sum, assemble, collect, zero
from flashgen.expr.tiles.conditions import KV, reads_key

KEYS = (-1, MAX_LENGTH)  # no key, and beyond all
FROM_A_KEY = (INT[0] + MAX_LENGTH, INT[1])  # where a bound fits 32 bits also when counted from a key on


def saturated(node: Node, known: Known = ANY) -> Node:
    """An equal node for all queries and keys, with bounds and indices that 32 bits hold where the written ones might not. `known`: the
    intervals of params.

    >>> from flashgen.expr.language.nodes import Name
    >>> from flashgen.expr.language.text import show
    >>> reach = call("+", Name("q_idx", "int"), Name("n", "int"))
    >>> show(saturated(call("<", KV, reach)))
    'kv_idx < q_idx + min(max(n, -1073741824), 1073741824)'
    """
    return _Saturation(known)(node)


class _Saturation:
    def __init__(self, known: Known) -> None:
        self.integers = Integers(of_language, known)

    def __call__(self, node: Node) -> Node:
        match rebuild(node, self):
            case Call(op, (left, bound)) if op in COMPARISONS and left == KV and not reads_key(bound):
                bounded = self.integers.small(call("-", bound, KV))
                return Call(op, (KV, bound if bounded else self.stop(bound, KEYS, FROM_A_KEY)), "bool")
            case Call("//", (x, n)) if reads_key(x) and not isinstance(n, Const) and self.integers.within(x, (-MAX_LENGTH, MAX_LENGTH - 1)):
                return Call("//", (x, call("min", n, Const(MAX_LENGTH, "int"))), "int")  # -1 or 0 from there on
            case Load(tensor, indices, type):
                return Load(tensor, tuple(self.stop(index, (0, INT32), INT) for index in indices), type)
            case other:
                return other

    def stop(self, x: Node, wanted: Interval, allowed: Interval) -> Node:
        """A node equal to x inside `wanted`, and outside on the same side of it; it stays in `allowed`, which holds `wanted`, if it can."""
        if self.integers.small(x) and self.integers.within(x, allowed):
            return x
        match x:
            case Call("min" | "max" as op, (a, b)):
                return self.clamped(call(op, self.stop(a, wanted, allowed), self.stop(b, wanted, allowed)), wanted, allowed)
            case Call("where", (condition, a, b)):
                return call("where", condition, self.stop(a, wanted, allowed), self.stop(b, wanted, allowed))
        for index in ("kv_idx", "q_idx"):
            total = collect(x, partial(_reads, index))
            rest = assemble(Sum(zero("int"), total.terms))
            if total.terms and not isinstance(total.const, Const) and self.integers.small(rest):
                low, high = self.integers.extent(rest)
                within = max(INT[0], allowed[0] - low), min(INT[1], allowed[1] - high)
                whole = call("+", rest, self.stop(total.const, (wanted[0] - high, wanted[1] - low), within))
                if self.integers.within(whole, allowed):
                    return whole
        return self.clamped(x, wanted, allowed)

    def clamped(self, x: Node, wanted: Interval, allowed: Interval) -> Node:
        low, high = self.integers.extent(x)
        above = call("max", x, Const(wanted[0], "int")) if low < allowed[0] else x
        return call("min", above, Const(wanted[1], "int")) if high > allowed[1] else above


def _reads(name: str, node: Node) -> bool:
    return name in names(node)
