"""The words and rules of derivations: sums over the keys of a row, and what may be done to them without changing their value.

A row has bT keys, T tiles of b. Of key j, x[j] is the score, s[j] = x[j] log2(e) the same in log2 units, v[j] the value (a column of it).
After t tiles m[t] is the reference of the exponents, l[t] the sum of exponentials,
o[t] that of exponentials times values, a[t] their quotient.
"""

from typing import Any

import sympy
from sympy.concrete.expr_with_limits import ExprWithLimits

Expr = Any  # of sympy

j, t, b, T = sympy.symbols("j t b T", integer=True, positive=True)
y = sympy.Symbol("y")  # what attention gives, a column of it
TAU = sympy.Symbol("tau", positive=True)
x, s, v, m, l, o, a, p = (sympy.IndexedBase(name) for name in "xsvmloap")  # noqa: E741


class Largest(ExprWithLimits):  # type: ignore[misc]  # sympy has no types
    """The largest of some terms, as Sum is their sum; -oo without terms."""

    def doit(self, **_: Any) -> Expr:
        """Term by term, where the limits are numbers."""
        ((index, low, high),) = self.limits
        return sympy.Max(*(self.function.subs(index, at) for at in range(int(low), int(high) + 1)))

    def _sympystr(self, printer: Any) -> str:
        return f"Max({printer._print(self.function)}, {printer._print(self.limits[0])})"

    def _latex(self, printer: Any) -> str:
        index, low, high = map(printer._print, self.limits[0])
        return rf"\max_{{{low} \le {index} \le {high}}} {printer._print(self.function)}"

    def _mathml_presentation(self, printer: Any) -> Any:
        index, low, high = map(printer._print, self.limits[0])
        at_most = [element(printer, "mo", printer.dom.createTextNode("\u2264")) for _ in range(2)]
        below = element(printer, "mrow", low, at_most[0], index, at_most[1], high)
        word = element(printer, "mo", printer.dom.createTextNode("max"))
        return element(printer, "mrow", element(printer, "munder", word, below), printer._print(self.function))


def element(printer: Any, tag: str, *children: Any) -> Any:
    """An element of MathML."""
    made = printer.dom.createElement(tag)
    for child in children:
        made.appendChild(child)
    return made


def over(term: Expr, low: Expr = 1, high: Expr = b * T, of: Any = sympy.Sum) -> Expr:
    """The sum, or another reduction, of a term in j over keys `low` to `high`: all of them if not said otherwise."""
    return of(term, (j, low, high))


def so_far(term: Expr, of: Any = sympy.Sum) -> Expr:
    """Over the keys of the first t tiles."""
    return over(term, 1, b * t, of)


def in_tile(term: Expr, of: Any = sympy.Sum) -> Expr:
    """Over the keys of tile t."""
    return over(term, b * (t - 1) + 1, b * t, of)


def power(reference: Expr) -> Expr:
    """The exponential of key j."""
    return 2 ** (s[j] - reference)


def to_log2(e: Expr) -> Expr:
    """exp(x[j]) becomes 2^s[j]."""
    return e.replace(sympy.exp, lambda _: 2 ** s[j])


def shift(e: Expr, reference: Expr) -> Expr:
    """Both sums of a quotient take the factor 2^-reference."""
    return e.replace(lambda part: isinstance(part, sympy.Sum), lambda part: over(_subtract(part.function, reference)))


def _subtract(term: Expr, reference: Expr) -> Expr:
    return term.replace(lambda part: part.is_Pow and part.base == 2, lambda part: 2 ** (part.exp - reference))


def last_tile_separated(e: Expr) -> Expr:
    """A sum or maximum over the first t tiles becomes one over the first t - 1, and one over tile t."""
    for part in e.atoms(sympy.Sum, Largest):
        if part.limits[0] == (j, 1, b * t):
            both = part.func(part.function, (j, 1, b * (t - 1))), in_tile(part.function, part.func)
            e = e.xreplace({part: sum(both) if part.func is sympy.Sum else sympy.Max(*both)})
    return e


def refer(e: Expr) -> Expr:
    """Exponentials of the first t - 1 tiles refer to m[t - 1]; the factor 2^(m[t - 1] - m[t]) goes before their sum."""
    for part in e.atoms(sympy.Sum):
        if part.limits[0] == (j, 1, b * (t - 1)):
            e = e.xreplace({part: 2 ** (m[t - 1] - m[t]) * part.xreplace({m[t]: m[t - 1]})})
    return e


def inside(e: Expr) -> Expr:
    """A quotient of a sum becomes the sum of quotients."""
    numerator, divisor = e.as_numer_denom()
    return over(numerator.function / divisor)


def name(e: Expr, meaning: Expr, word: Expr) -> Expr:
    """The expression with a word in place of what the word stands for."""
    return e.xreplace({meaning: word})
