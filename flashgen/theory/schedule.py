"""The rescale schedules: how a row's softmax is put together from tiles of keys.

The state of a row is (m, l, o): a reference for the exponents, the sum of exponentials, the output before division,

    l = sum_j 2^(s_j - m)    o = sum_j 2^(s_j - m) v_j

over the keys j seen so far, with scores s in log2 units. What it stands for, (m + log2 l, o / l), does not depend on m; a schedule
chooses m so that nothing overflows. States merge associatively, with identity (-inf, 0, 0), so tiles may come in any order and grouping.
An output may need a further sum over keys (flashgen.spec.outputs.Statistic), as the entropy needs t = sum_j 2^(s_j - m) (s_j - m), whose
merge rule follows m as that of l and o does: with x = m - m', t becomes 2^x (t + x l).

A schedule is one function a pass over the keys. The functions are written once, over a namespace `xp` of four elementwise functions: NumPy,
where the interpreter runs them, or `symbolic()`, where the tests prove that they give softmax.
Sources: FlashAttention (2205.14135) for each_step, FlashAttention 2 (2307.08691) for end, FlashAttention 4 for lazy.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from flashgen.errors import PlanError
from flashgen.spec import Schedule
from flashgen.spec.outputs import Output, Statistic, statistics

Array = Any  # of NumPy, float32 or float64, or of sympy expressions
Product = Callable[[Array], Array]  # p -> p v: [..., block_m, block_n] -> [..., block_m, D]

THRESHOLD = 8.0  # of `lazy` where the spec gives none, log2 units
MAX_THRESHOLD = 15.0  # 2^15 is the largest power of two in float16, the narrowest type that holds p


@dataclass(frozen=True)
class SoftmaxPlan:
    """The rescale schedule; the module says what its words mean."""

    passes: int = 1
    normalize: Literal["end", "each_step"] = "end"
    rescale: Literal["always", "lazy"] = "always"
    threshold: float = 0.0  # log2 units that the maximum may grow without a rescale
    outer: Literal["q", "kv"] = "q"  # which loop is outside
    materialize: bool = False  # `standard`: s and p in memory
    normalized: bool = True  # else the scores are the weights: no maximum, no sum
    sink: bool = False  # one more term in the sum of a row

    @property
    def phase(self) -> str:
        """The template that turns products into weights."""
        return "softmax" if self.normalized else "weights"

    @property
    def exponentials(self) -> int:
        """The exponentials of an element, besides those of its score."""
        return 1 if self.normalized else 0

    @property
    def steps(self) -> tuple[str, ...]:
        """The purpose of each pass over the keys, in order."""
        if self.passes > 1:
            return ("maximum_and_sum", "output") if self.passes == 2 else ("maximum", "sum", "output")
        return ("normalized",) if self.normalize == "each_step" else ("online",)


class State(NamedTuple):
    """The state of rows: m, l: [..., block_m], o: [..., block_m, D]; m in log2 units."""

    m: Array
    l: Array  # noqa: E741
    o: Array
    sums: Mapping[Statistic, Array] = MappingProxyType({})  # each like l


Pass = Callable[[State, Array, Product], State]  # one tile: the state before, its scores [..., block_m, block_n], its product with v


def merge_states(x: State, y: State, xp: Any = np) -> State:
    """The state over the keys of both: the one merge rule.

    >>> x, y = State(np.float32([1]), np.float32([1]), np.float32([[4]])), State(np.float32([2]), np.float32([1]), np.float32([[6]]))
    >>> merge_states(x, y).l
    array([1.5], dtype=float32)

    A normalised o with its lse is the state (lse / ln 2, 1, o).
    """
    m = xp.maximum(x.m, y.m)
    a, b = _power(x.m, m, xp), _power(y.m, m, xp)
    sums = {statistic: _moved(statistic, x, m, xp) + _moved(statistic, y, m, xp) for statistic in x.sums}
    return State(m, a * x.l + b * y.l, a[..., None] * x.o + b[..., None] * y.o, sums)


def _moved(statistic: Statistic, state: State, m: Array, xp: Any) -> Array:
    """A statistic of a state, where the reference becomes m."""
    exponent = _exponent(state.m, m, xp)
    return statistic.moved(xp, state.sums[statistic], state.l, xp.exp2(exponent), exponent)


def _exponent(s: Array, m: Array, xp: Any) -> Array:
    """s - m; -inf where both are -inf: no key, no weight."""
    return s - xp.where(xp.equal(m, -math.inf), 0, m)


def _power(s: Array, m: Array, xp: Any) -> Array:
    """2^(s - m)."""
    return xp.exp2(_exponent(s, m, xp))


def _top(state: State, s: Array, xp: Any) -> Array:
    return xp.maximum(state.m, xp.maximum.reduce(s, axis=-1, initial=-math.inf))


def _tile(s: Array, m: Array, product: Product, xp: Any, statistics: Iterable[Statistic] = ()) -> State:
    """The state of one tile's keys, relative to m."""
    exponent = _exponent(s, m[..., None], xp)
    p = xp.exp2(exponent)
    return State(m, p.sum(axis=-1), product(p), {each: each.term(xp, p, exponent).sum(axis=-1) for each in statistics})


def _maximum(state: State, s: Array, _: Product, xp: Any) -> State:
    m = _top(state, s, xp)
    return State(m, state.l * _power(state.m, m, xp), state.o, {each: _moved(each, state, m, xp) for each in state.sums})


def _sum(state: State, s: Array, _: Product, xp: Any) -> State:
    """The sums alone: m moves until a pass for the maximum has settled it."""
    return merge_states(state, _tile(s, _top(state, s, xp), lambda _: 0, xp, state.sums), xp)


def _output(state: State, s: Array, product: Product, xp: Any) -> State:
    """The output alone: m is the maximum of the row."""
    return state._replace(o=state.o + _tile(s, state.m, product, xp).o)


def _online(state: State, s: Array, product: Product, xp: Any, threshold: float = 0.0) -> State:
    """Maximum, sum and output at once. m stays where it is until a score passes it by more than `threshold`."""
    top = _top(state, s, xp)
    m = xp.where(xp.less_equal(top, state.m + threshold), state.m, top) if threshold else top
    return merge_states(state, _tile(s, m, product, xp, state.sums), xp)


def _normalized(state: State, s: Array, product: Product, xp: Any) -> State:
    """The online step with o divided by l after every tile, and multiplied by it before the next."""
    after = _online(state._replace(o=state.o * state.l[..., None]), s, product, xp)
    return after._replace(o=_divide(after, xp))


def _whole(state: State, s: Array, product: Product, xp: Any) -> State:
    """All keys at once, each p divided before its product with v."""
    m = _top(state, s, xp)
    after = _sum(state, s, product, xp)
    return after._replace(o=product(_power(s, m[..., None], xp) / _nonzero(after.l, xp)[..., None]))


def _nonzero(l: Array, xp: Any) -> Array:  # noqa: E741
    return xp.where(xp.equal(l, 0), 1, l)


def _divide(state: State, xp: Any) -> Array:
    return state.o / _nonzero(state.l, xp)[..., None]


def passes(softmax: SoftmaxPlan, xp: Any = np) -> tuple[Pass, ...]:
    """The schedule: for each pass over the keys, what a tile does to the state.

    It starts from (-inf, 0, 0), or with a sink from (sink, 1, 0).
    """
    if softmax.materialize:
        steps: tuple[Callable[..., State], ...] = (_whole,)
    elif softmax.passes > 1:
        steps = (_sum, _output) if softmax.passes == 2 else (_maximum, _sum, _output)
    elif softmax.normalize == "each_step":
        steps = (_normalized,)
    else:
        steps = (partial(_online, threshold=softmax.threshold),)
    return tuple(cast(Pass, partial(step, xp=xp)) for step in steps)


def finish(softmax: SoftmaxPlan, state: State, xp: Any = np) -> tuple[Array, Array]:
    """The result that a state stands for: o [..., block_m, D] and its log-sum-exp [..., block_m] in log2 units; 0 and -inf without keys."""
    divided = softmax.materialize or softmax.normalize == "each_step"
    return state.o if divided else _divide(state, xp), state.m + xp.log2(_nonzero(state.l, xp))


def start_of_sums(outputs: Sequence[str], like: Array, xp: Any = np, *, sink: bool = False) -> dict[Statistic, Array]:
    """The statistics that outputs are made of before the first key, each like l: 0, or a sink's, whose weight is 1 and exponent 0."""
    one = np.ones_like(like)
    return {each: each.term(xp, one, 0 * one) if sink else 0 * one for each in statistics(outputs)}


def finish_output(output: Output, state: State, sink: Array | None = None, xp: Any = np) -> Array:
    """An output [..., block_m] that is made of a statistic, in the units of exponents if it is logarithmic; its `empty` without keys.

    `sink`: the logit of each row that began with one, in log2 units.
    """
    assert output.statistic
    assert output.finish
    total = _nonzero(state.l, xp)
    share = None if sink is None else _power(sink, state.m, xp) / total
    return xp.where(xp.equal(state.l, 0), output.empty, output.finish(xp, total, state.sums[output.statistic], share))


@lru_cache(1)
def natural() -> SimpleNamespace:
    """NumPy's functions with e in the place of 2: scores, m, lse and thresholds are natural, so no finite score overflows as log2 units."""
    same = {name: getattr(np, name) for name in ("maximum", "equal", "less_equal", "where", "divide")}
    return SimpleNamespace(**same, exp2=np.exp, log2=np.log)


@lru_cache(1)
def symbolic() -> SimpleNamespace:
    """The functions that schedules are made of, over arrays of sympy expressions."""
    import sympy

    def ufunc(f: Callable[..., Any], arguments: int) -> Any:
        return np.frompyfunc(lambda *args: f(*map(sympy.sympify, args)), arguments, 1)

    return SimpleNamespace(
        maximum=ufunc(sympy.Max, 2),
        equal=ufunc(sympy.Eq, 2),
        less_equal=ufunc(sympy.Le, 2),
        where=ufunc(lambda condition, x, y: sympy.Piecewise((x, condition), (y, True)), 3),
        exp2=ufunc(lambda x: 2**x, 1),
        log2=ufunc(lambda x: sympy.log(x, 2), 1),
    )


def schedules() -> Mapping[str, SoftmaxPlan]:
    """Every schedule by name.

    >>> schedule_text(schedules()["three_pass"])
    'three passes (maximum, sum, output), log2 units; nothing rescaled, divided once at the end; no key: o = 0, lse = -inf'
    """
    return {
        "standard": SoftmaxPlan(materialize=True),
        "three_pass": SoftmaxPlan(passes=3),
        "two_pass": SoftmaxPlan(passes=2),
        "one_pass": SoftmaxPlan(),
        "each_step": SoftmaxPlan(normalize="each_step"),
        "each_step_kv_outer": SoftmaxPlan(normalize="each_step", outer="kv"),
        "lazy": SoftmaxPlan(rescale="lazy", threshold=THRESHOLD),
    }


def resolve(schedule: Schedule, rescale: str = "always") -> SoftmaxPlan:
    """The softmax that a spec pins, the rest filled in: one pass, divided at the end, rescaled as given where that is free.

    >>> resolve(Schedule(passes=1), "lazy").rescale
    'lazy'

    Raises PlanError for what contradicts itself, and for a threshold beyond 15 log2 units.
    """
    pinned = {key: value for key, value in vars(schedule).items() if value is not None and key != "threshold"}
    softmax = SoftmaxPlan(**pinned)
    if softmax.passes > 1 and softmax.normalize == "each_step":
        raise PlanError(f"schedule: normalize is each_step with passes: {softmax.passes}; each_step takes passes: 1")
    if can_wait := softmax.passes == 1 and softmax.normalize == "end" and not softmax.materialize:
        softmax = SoftmaxPlan(**{"rescale": rescale, **pinned})
    if softmax.rescale == "always":
        return softmax
    if not can_wait:
        raise PlanError("schedule: rescale is lazy, which takes passes: 1 and normalize: end; every other schedule rescales always")
    wait = THRESHOLD if schedule.threshold is None else schedule.threshold
    if wait > MAX_THRESHOLD:
        raise PlanError(f"schedule: lazy is {wait:g}, which lets exponentials reach 2^{wait:g}; the most is {MAX_THRESHOLD:g}, for float16")
    return replace(softmax, threshold=wait)


def schedule_text(softmax: SoftmaxPlan) -> str:
    """A line for banners.

    >>> schedule_text(SoftmaxPlan())
    'one pass, log2 units; o and l rescaled at every key tile, divided once at the end; no key: o = 0, lse = -inf'
    """
    if not softmax.normalized:
        return "none: the scores are the weights; no maximum, no sum, nothing rescaled; no key: o = 0"
    over = {1: "one pass", 2: "two passes (maximum and sum, output)", 3: "three passes (maximum, sum, output)"}[softmax.passes]
    rescaled = {1: "o and l rescaled", 2: "l rescaled", 3: "nothing rescaled"}[softmax.passes]
    if softmax.passes < 3:
        rescaled += f" where a maximum grew by more than {softmax.threshold:g}" if softmax.rescale == "lazy" else " at every key tile"
    divided = "o divided by l after each" if softmax.normalize == "each_step" else "divided once at the end"
    if softmax.materialize:
        over, rescaled, divided = "scores in memory", "nothing rescaled", "exponentials divided before their product with v"
    order = ", key tiles in the outer loop" if softmax.outer == "kv" else ""
    edge = "exp(sink) one more term of the sum; no key: o = 0, lse = sink" if softmax.sink else "no key: o = 0, lse = -inf"
    return f"{over}{order}, log2 units; {rescaled}, {divided}; {edge}"
