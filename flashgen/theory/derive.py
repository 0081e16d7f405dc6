"""Derives a schedule from softmax's definition: the recurrences that kernels execute, reached one rewriting rule at a time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import sympy

from flashgen.errors import PlanError, did_you_mean
from flashgen.theory.derivation import Derivation, Step, Trail, mathml
from flashgen.theory.derive_backward import backward
from flashgen.theory.rewrite import (
    TAU,
    Expr,
    Largest,
    T,
    a,
    in_tile,
    inside,
    j,
    l,
    last_tile_separated,
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

__all__ = ["Derivation", "Step", "derive", "mathml"]


def _quotient(safe: str) -> Trail:
    """The definition, in log2 units, with exponents that refer to m."""
    quotient = over(sympy.exp(x[j]) * v[j]) / over(sympy.exp(x[j]))
    return (
        Trail(y, quotient)
        .by(lambda e: e, "softmax by its definition, over n = bT keys of scores x and values v")
        .by(to_log2, "with s = x log2(e), exp(x) = 2^s: the hardware has 2^s, and the factor joins the scale of the scores")
        .by(partial(shift, reference=m[T]), f"both sums take the factor 2^-m, which cancels; {safe}")
    )


MAXIMUM = "with m the maximum no exponent is above 0, so nothing overflows, and one is 0, so the divisor is at least 1"
NEAR = f"any m will do; one that lies at most tau = {THRESHOLD:g} below the maximum keeps every exponential at most 2^tau"


def _named() -> Trail:
    return (
        _quotient(MAXIMUM)
        .by(partial(name, meaning=over(power(m[T])), word=l[T]), "l names the sum of exponentials")
        .by(partial(name, meaning=over(power(m[T]) * v[j]), word=o[T]), "o names the sum of exponentials times values")
    )


def _maximum() -> Trail:
    before = so_far(s[j], Largest).subs(t, t - 1)
    return (
        Trail(m[t], so_far(s[j], Largest))
        .by(last_tile_separated, "the maximum of the first t tiles is that of t - 1 tiles and of tile t")
        .by(partial(name, meaning=before, word=m[t - 1]), "and what the first t - 1 tiles have is m[t - 1]")
    )


def _fixed(word: Expr, term: Expr) -> Trail:
    """A sum whose m is known beforehand."""
    meaning = so_far(term)
    return (
        Trail(word[t], meaning)
        .by(last_tile_separated, "a sum over t tiles is one over t - 1 tiles and one over tile t")
        .by(partial(name, meaning=meaning.subs(t, t - 1), word=word[t - 1]), "m is that of the whole row, so the first is as it was")
    )


def _online(word: Expr, term: Expr) -> Trail:
    """A sum whose m moves."""
    meaning = so_far(term)
    return (
        Trail(word[t], meaning)
        .by(last_tile_separated, "a sum over t tiles is one over t - 1 tiles and one over tile t")
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


def _one_pass(schedule: str, *more: Trail) -> Derivation:
    return _derivation(schedule, (_named(), _maximum(), _online(l, power(m[t])), _online(o, power(m[t]) * v[j]), *more), _ONLINE)


_ONLINE = {a: o[t] / l[t], l: so_far(power(m[t])), o: so_far(power(m[t]) * v[j])}


def _derivation(schedule: str, trails: Sequence[Trail], definitions: Mapping[Expr, Expr]) -> Derivation:
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
        Trail(a[t], o[t] / l[t])
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
    chosen = Trail(m[t], m[t]).by(lambda _: stays, "m stays until the maximum passes it by more than tau: till then 2^(m[t-1] - m[t]) = 1")
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
    "backward": backward,
}
assert _MAKERS.keys() == schedules().keys() | {"backward"}


def derive(schedule: str) -> Derivation:
    """The derivation of a schedule, by its name, or of the gradients: `backward`.

    >>> print(derive("two_pass").recurrences[1])
    Eq(l[t], 2**(m[t - 1] - m[t])*l[t - 1] + Sum(2**(-m[t] + s[j]), (j, b*(t - 1) + 1, b*t)))

    Names: standard, three_pass, two_pass, one_pass, each_step, each_step_kv_outer, lazy, backward. Raises PlanError for another.
    """
    if schedule not in _MAKERS:
        raise PlanError(f"unknown schedule {schedule!r}: {did_you_mean(schedule, _MAKERS)}")
    return _MAKERS[schedule]()
