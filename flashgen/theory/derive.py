"""Derives a schedule from softmax's definition: the recurrences that kernels execute, reached one rewriting rule at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import sympy
from sympy.printing.mathml import MathMLPresentationPrinter

from flashgen.errors import PlanError, did_you_mean
from flashgen.theory.rewrite import (
    TAU,
    Expr,
    Largest,
    T,
    a,
    b,
    element,
    in_tile,
    inside,
    j,
    l,
    last_tile_apart,
    m,
    name,
    o,
    over,
    p,
    power,
    refer,
    s,
    shift,
    so_far,
    t,
    to_log2,
    v,
    x,
    y,
)  # fmt: skip
from flashgen.theory.schedule import THRESHOLD, schedules

__all__ = ["Derivation", "Step", "derive"]


@dataclass(frozen=True)
class Step:
    """One rewriting of what `left` stands for: `before` and `after` have the same value, and `why` says by which rule."""

    left: Expr
    before: Expr
    after: Expr
    why: str

    @property
    def equation(self) -> Expr:
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
        for base, meaning in self.definitions.items():
            e = e.replace(lambda part, base=base: part.is_Indexed and part.base == base, lambda part, m=meaning: m.subs(t, part.indices[0]))
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


class _Trail:
    """The expression that a word stands for, rewritten step by step."""

    def __init__(self, left: Expr, start: Expr):
        self.left, self.now, self.steps = left, start, list[Step]()

    def by(self, rule: Callable[[Expr], Expr], why: str) -> "_Trail":
        before, self.now = self.now, rule(self.now)
        self.steps.append(Step(left=self.left, before=before, after=self.now, why=why))
        return self

    @property
    def recurrence(self) -> Expr:
        return sympy.Eq(self.left, self.now, evaluate=False)


def _quotient(safe: str) -> _Trail:
    """The definition, in log2 units, with exponents that refer to m."""
    quotient = over(sympy.exp(x[j]) * v[j]) / over(sympy.exp(x[j]))
    return (
        _Trail(y, quotient)
        .by(lambda e: e, "softmax by its definition, over n = bT keys of scores x and values v")
        .by(to_log2, "with s = x log2(e), exp(x) = 2^s: the hardware has 2^s, and the factor joins the scale of the scores")
        .by(partial(shift, reference=m[T]), f"both sums take the factor 2^-m, which cancels; {safe}")
    )


MAXIMUM = "with m the maximum no exponent is above 0, so nothing overflows, and one is 0, so the divisor is at least 1"
NEAR = f"any m will do; one that lies at most tau = {THRESHOLD:g} below the maximum keeps every exponential at most 2^tau"


def _named() -> _Trail:
    return (
        _quotient(MAXIMUM)
        .by(partial(name, meaning=over(power(m[T])), word=l[T]), "l names the sum of exponentials")
        .by(partial(name, meaning=over(power(m[T]) * v[j]), word=o[T]), "o names the sum of exponentials times values")
    )


def _maximum() -> _Trail:
    before = so_far(s[j], Largest).subs(t, t - 1)
    return (
        _Trail(m[t], so_far(s[j], Largest))
        .by(last_tile_apart, "the maximum of the first t tiles is that of t - 1 tiles and of tile t")
        .by(partial(name, meaning=before, word=m[t - 1]), "and what the first t - 1 tiles have is m[t - 1]")
    )


def _fixed(word: Expr, term: Expr) -> _Trail:
    """A sum whose m is known beforehand."""
    meaning = so_far(term)
    return (
        _Trail(word[t], meaning)
        .by(last_tile_apart, "a sum over t tiles is one over t - 1 tiles and one over tile t")
        .by(partial(name, meaning=meaning.subs(t, t - 1), word=word[t - 1]), "m is that of the whole row, so the first is as it was")
    )


def _online(word: Expr, term: Expr) -> _Trail:
    """A sum whose m moves."""
    meaning = so_far(term)
    return (
        _Trail(word[t], meaning)
        .by(last_tile_apart, "a sum over t tiles is one over t - 1 tiles and one over tile t")
        .by(refer, "2^(s - m[t]) = 2^(m[t-1] - m[t]) 2^(s - m[t-1]), and the factor depends on no key")
        .by(partial(name, meaning=meaning.subs(t, t - 1), word=word[t - 1]), "what is left under the first sum is the state before tile t")
    )


def _standard() -> Derivation:
    weights = power(m[T]) / l[T]
    whole = (
        _quotient(MAXIMUM)
        .by(partial(name, meaning=over(power(m[T])), word=l[T]), "l names the sum of exponentials")
        .by(inside, "the divisor goes under the sum")
        .by(
            partial(name, meaning=over(weights * v[j]), word=over(p[j] * v[j])),
            "p names a probability, and y = P V",
        )
    )
    equations = [(m[T], over(s[j], of=Largest)), (l[T], over(power(m[T]))), (p[j], weights)]
    recurrences = (*(sympy.Eq(*pair, evaluate=False) for pair in equations), whole.recurrence)
    return Derivation(
        schedule="standard", steps=tuple(whole.steps), recurrences=recurrences, definitions={p: weights.subs(j, t), l: so_far(power(m[t]))}
    )


def _passes(schedule: str) -> Derivation:
    """Three passes or two: a pass that learns m, or m and l, before o."""
    known = power(m[T])
    sum_ = _fixed(l, known) if schedule == "three_pass" else _online(l, power(m[t]))
    trails = _named(), _maximum(), sum_, _fixed(o, known * v[j])
    l_ = so_far(known if schedule == "three_pass" else power(m[t]))
    return _derivation(schedule, trails, {l: l_, o: so_far(known * v[j])})


def _one_pass(schedule: str, *more: _Trail) -> Derivation:
    return _derivation(schedule, (_named(), _maximum(), _online(l, power(m[t])), _online(o, power(m[t]) * v[j]), *more), _ONLINE)


_ONLINE = {a: o[t] / l[t], l: so_far(power(m[t])), o: so_far(power(m[t]) * v[j])}


def _derivation(schedule: str, trails: Sequence[_Trail], definitions: Mapping[Expr, Expr]) -> Derivation:
    steps = tuple(step for trail in trails for step in trail.steps)
    return Derivation(
        schedule=schedule,
        steps=steps,
        recurrences=(*(trail.recurrence for trail in trails[1:]), trails[0].recurrence),
        definitions=definitions,
    )


def _each_step(schedule: str) -> Derivation:
    sums = {word[t]: _online(word, term).now for word, term in ((l, power(m[t])), (o, power(m[t]) * v[j]))}
    divided = (
        _Trail(a[t], o[t] / l[t])
        .by(lambda e: e.xreplace({o[t]: sums[o[t]]}), "o[t] by its recurrence")
        .by(lambda e: e.xreplace({o[t - 1]: a[t - 1] * l[t - 1]}), "what is kept is a = o / l: multiplied by l it is o again")
    )
    if schedule == "each_step_kv_outer":
        divided.by(lambda e: e, "no row reads another row's m, l or a: the loops over tiles of rows and tiles of keys may change places")
    whole = _named().by(lambda e: e.xreplace({o[T] / l[T]: a[T]}), "the quotient is a after the last tile")
    trails = whole, _maximum(), _online(l, power(m[t])), _online(o, power(m[t]) * v[j]), divided
    found = _derivation(schedule, trails, _ONLINE)
    executed = [trail.recurrence for trail in trails if trail.left != o[t]]
    return Derivation(schedule=schedule, steps=found.steps, recurrences=(*executed[1:], executed[0]), definitions=_ONLINE)


def _lazy(schedule: str) -> Derivation:
    top = sympy.Max(m[t - 1], in_tile(s[j], Largest))
    stays = sympy.Piecewise((m[t - 1], top <= m[t - 1] + TAU), (top, True))
    whole = (
        _quotient(NEAR)
        .by(partial(name, meaning=over(power(m[T])), word=l[T]), "l names the sum of exponentials")
        .by(partial(name, meaning=over(power(m[T]) * v[j]), word=o[T]), "o names the sum of exponentials times values")
    )
    chosen = _Trail(m[t], m[t]).by(lambda _: stays, "m stays until the maximum passes it by more than tau: till then 2^(m[t-1] - m[t]) = 1")
    trails = whole, chosen, _online(l, power(m[t])), _online(o, power(m[t]) * v[j])
    found = _derivation(schedule, trails, _ONLINE)
    return Derivation(schedule=schedule, steps=found.steps, recurrences=found.recurrences, definitions=_ONLINE, lazy=True)


_MAKERS: Mapping[str, Callable[[], Derivation]] = {
    "standard": _standard,
    "three_pass": partial(_passes, "three_pass"),
    "two_pass": partial(_passes, "two_pass"),
    "one_pass": partial(_one_pass, "one_pass"),
    "each_step": partial(_each_step, "each_step"),
    "each_step_kv_outer": partial(_each_step, "each_step_kv_outer"),
    "lazy": partial(_lazy, "lazy"),
}
assert _MAKERS.keys() == schedules().keys()


def derive(schedule: str) -> Derivation:
    """The derivation of a schedule, by its name.

    >>> print(derive("two_pass").recurrences[1])
    Eq(l[t], 2**(m[t - 1] - m[t])*l[t - 1] + Sum(2**(-m[t] + s[j]), (j, b*(t - 1) + 1, b*t)))

    Names: standard, three_pass, two_pass, one_pass, each_step, each_step_kv_outer, lazy. Raises PlanError for another.
    """
    if schedule not in _MAKERS:
        raise PlanError(f"unknown schedule {schedule!r}: {did_you_mean(schedule, _MAKERS)}")
    return _MAKERS[schedule]()
