"""Derivations: rewritings of an expression, step by step, as text, LaTeX and MathML, and as numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
from sympy.printing.mathml import MathMLPresentationPrinter

from flashgen.theory.rewrite import TAU, Expr, T, b, element, m, s, t, v, x
from flashgen.theory.schedule import THRESHOLD


@dataclass(frozen=True)
class Step:
    """One rewriting of what `left` stands for: `before` and `after` have the same value, and `why` says by which rule."""

    left: Expr
    before: Expr
    after: Expr
    why: str

    @property
    def equation(self) -> Expr:
        """The step as an equation, `left` = `after`."""
        return sympy.Eq(self.left, self.after, evaluate=False)


@dataclass(frozen=True)
class Derivation:
    """The steps from softmax's definition to a schedule, and the recurrences where they end.

    `print(derivation)` shows all of it as text, `derivation.latex` as LaTeX. `definitions`: what l[t], o[t], a[t] and p[t] stand for.
    """

    schedule: str
    steps: tuple[Step, ...]
    recurrences: tuple[Expr, ...]  # equations, of tile t
    definitions: Mapping[Expr, Expr] = field(repr=False)
    lazy: bool = False

    def __str__(self) -> str:
        steps = [f"  {_text(step.equation)}\n      {step.why}" for step in self.steps]
        return "\n".join([f"{self.schedule}:", *steps, "  so, tile by tile:", *(f"  {_text(e)}" for e in self.recurrences)])

    @property
    def latex(self) -> str:
        """An align environment: a line a step with its reason, then the recurrences."""
        reasons = [step.why.replace("^", r"\^{}") for step in self.steps]
        lines = [rf"&{latex(step.equation)} && \text{{{why}}}" for step, why in zip(self.steps, reasons, strict=True)]
        return "\\begin{align*}\n" + " \\\\\n".join([*lines, *(f"&{latex(e)}" for e in self.recurrences)]) + "\n\\end{align*}"

    def evaluate(self, e: Expr, scores: Sequence[Expr], values: Sequence[Expr], tile: int, at: int, digits: int = 50) -> Expr:
        """The number that an expression of the steps is, for scores in log2 units and values of all keys, after tile number `at`.

        >>> one = derive("one_pass")
        >>> one.evaluate(one.steps[0].after, [0, 1], [1, 4], tile=1, at=2, digits=5)
        3.0000
        """
        for word, meaning in self.definitions.items():
            if not isinstance(word, sympy.IndexedBase):
                e = e.subs(word, meaning)
            else:
                e = e.replace(lambda part, of=word: part.is_Indexed and part.base == of, lambda part, m=meaning: m.subs(t, part.indices[0]))
        e = e.subs({t: at, b: tile, T: len(scores) // tile, TAU: THRESHOLD}).doit()
        known = {m[i]: reference for i, reference in enumerate(self._references(scores, tile))}
        for i, (score, value) in enumerate(zip(scores, values, strict=True), 1):
            known |= {s[i]: score, v[i]: value, x[i]: score * sympy.log(2)}
        return e.xreplace({key: sympy.sympify(number) for key, number in known.items()}).doit().evalf(digits)

    def _references(self, scores: Sequence[Expr], tile: int) -> list[Expr]:
        """m[0], m[1], ..."""
        found = [-sympy.oo]
        for first in range(0, len(scores), tile):
            top = sympy.Max(found[-1], *scores[first : first + tile])
            found.append(found[-1] if self.lazy and top <= found[-1] + THRESHOLD else top)
        return found


def latex(e: Expr) -> str:
    """An expression as LaTeX."""
    return str(sympy.latex(e))


class _MathML(MathMLPresentationPrinter):  # type: ignore[misc]  # sympy has no types
    """Cases as cases; sympy prints them as a call."""

    def _print_Piecewise(self, e: Expr) -> Expr:  # noqa: N802
        rows = []
        for value, condition in e.args:
            when = element(self, "mtext", self.dom.createTextNode("otherwise" if condition == sympy.true else "if\u00a0"))
            told = [when] if condition == sympy.true else [when, self._print(condition)]
            rows.append(element(self, "mtr", element(self, "mtd", self._print(value)), element(self, "mtd", *told)))
        return element(self, "mrow", element(self, "mo", self.dom.createTextNode("{")), element(self, "mtable", *rows))


def mathml(e: Expr) -> str:
    """An expression as presentation MathML, which browsers draw without a library."""
    return str(_MathML().doprint(e))


def _text(e: Expr) -> str:
    return f"{sympy.sstr(e.lhs)} = {sympy.sstr(e.rhs)}"


class Trail:
    """The expression that a word stands for, rewritten step by step."""

    def __init__(self, left: Expr, start: Expr):
        self.left, self.now, self.steps = left, start, list[Step]()

    def by(self, rule: Callable[[Expr], Expr], why: str) -> "Trail":
        """Rewrites the expression by a rule, and keeps the step; `why` names the rule."""
        before, self.now = self.now, rule(self.now)
        self.steps.append(Step(left=self.left, before=before, after=self.now, why=why))
        return self

    @property
    def recurrence(self) -> Expr:
        """The equation that the steps have led to."""
        return sympy.Eq(self.left, self.now, evaluate=False)
