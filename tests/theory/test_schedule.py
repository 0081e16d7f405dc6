"""Every schedule is softmax: proved by sympy for a few keys, on the very functions that the interpreter runs."""

import dataclasses
from itertools import product

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Integer, Symbol, oo

from flashgen.errors import PlanError
from flashgen.spec import Schedule
from flashgen.spec.outputs import OUTPUTS
from flashgen.theory.schedule import (
    SoftmaxPlan,
    State,
    finish,
    finish_output,
    merge_states,
    passes,
    resolve,
    schedule_text,
    schedules,
    start_of_sums,
    symbolic,
)

# The outer loop does not change what a row goes through.
SHOWN = {name: softmax for name, softmax in schedules().items() if softmax.outer == "q"}
IDENTITY = State(np.array([-oo]), np.array([Integer(0)]), np.array([[Integer(0)]]))


def objects(values, shape):
    return np.array(values, dtype=object).reshape(shape)


def outcome(program, scores, values, tile):
    """o and 2^lse of one row whose keys come `tile` at a time."""
    state, tile = IDENTITY, len(scores) if program.materialize else tile
    for step in passes(program, symbolic()):
        for j in range(0, len(scores), tile):
            state = step(state, objects(scores[j : j + tile], (1, -1)), lambda p, j=j: p @ objects(values[j : j + tile], (-1, 1)))
    o, lse = finish(program, state, symbolic())
    return o[0, 0], 2 ** lse[0]


def is_zero(difference):
    return sympy.simplify(sympy.together(sympy.expand_power_exp(difference))) == 0


def proves_softmax(program, scores, values, tile):
    visible = [(2**s, v) for s, v in zip(scores, values, strict=True) if s != -oo]
    total = sum((p for p, _ in visible), Integer(0))
    o, weight = outcome(program, scores, values, tile)
    return is_zero(o - sum(p * v for p, v in visible) / total if visible else o) and is_zero(weight - total)


@pytest.mark.parametrize("tile", [1, 2])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", SHOWN)
def test_a_schedule_is_softmax(name, n, tile):
    scores, values = sympy.symbols(f"s:{n}", real=True), sympy.symbols(f"v:{n}", real=True)
    assert proves_softmax(SHOWN[name], scores, values, tile)


@pytest.mark.parametrize("name", SHOWN)
def test_hidden_keys_have_no_weight(name):
    scores, values = sympy.symbols("s:3", real=True), sympy.symbols("v:3", real=True)
    for seen in product((True, False), repeat=3):
        assert proves_softmax(SHOWN[name], [s if see else -oo for s, see in zip(scores, seen, strict=True)], values, 1), seen


@pytest.mark.parametrize("name", SHOWN)
def test_no_key_gives_zero_and_minus_infinity(name):
    state = State(*(np.array(x, np.float32) for x in ([-np.inf], [0], [[0, 0]])))
    for step in passes(SHOWN[name]):
        state = step(state, np.full((1, 3), -np.inf, np.float32), lambda p: p @ np.ones((3, 2), np.float32))
    o, lse = finish(SHOWN[name], state)
    assert (o == 0).all()
    assert (lse == -np.inf).all()


def test_a_wrong_schedule_is_not_proved(monkeypatch):
    """The proof sees a state whose output is left behind when the maximum moves."""
    monkeypatch.setattr("flashgen.theory.schedule.merge_states", lambda x, y, xp: merge_states(x, y, xp)._replace(o=x.o + y.o))
    assert not proves_softmax(schedules()["one_pass"], sympy.symbols("s:2", real=True), sympy.symbols("v:2", real=True), 1)


def symbolic_state(index):
    return State(*(objects([Symbol(f"{name}{index}", real=True)], shape) for name, shape in (("m", 1), ("l", 1), ("o", (1, 1)))))


def test_merging_is_associative_with_identity():
    x, y, z = map(symbolic_state, range(3))

    def merge(a, b):
        return merge_states(a, b, symbolic())

    for left, right in (
        (merge(merge(x, y), z), merge(x, merge(y, z))),
        (merge(x, y), merge(y, x)),
        (merge(IDENTITY, x), x),
        (merge(x, IDENTITY), x),
        (merge(IDENTITY, IDENTITY), IDENTITY),
    ):
        for a, b in zip(left[:3], right[:3], strict=True):
            assert a.flat[0] == b.flat[0] or is_zero(a.flat[0] - b.flat[0])


def number_state(m, l, o):  # noqa: E741
    return State(np.array([m]), np.array([l]), np.array([[o]]))


EMPTY = number_state(-np.inf, 0.0, 0.0)
STATES = st.just(EMPTY) | st.builds(number_state, st.floats(-1e5, 1e5), st.floats(1, 100), st.floats(-100, 100))


def meaning(state):
    return finish(SoftmaxPlan(), state)


@given(STATES, STATES, STATES)
def test_merging_states_of_numbers(x, y, z):
    left, right = merge_states(merge_states(x, y), z), merge_states(x, merge_states(y, z))
    for a, b in zip(meaning(left), meaning(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    for a, b in zip(meaning(merge_states(x, EMPTY)), meaning(x), strict=True):
        np.testing.assert_array_equal(a, b)


WEIGHTED = OUTPUTS["entropy"].statistic


def state_of(scores, reference):
    """The state of keys with these scores, in log2 units, against some reference."""
    x = np.array(scores) - reference
    sums = {WEIGHTED: np.array([(2**x * x).sum()])}
    return number_state(reference, (2**x).sum(), 0.0)._replace(sums=sums)


NOTHING = EMPTY._replace(sums={WEIGHTED: np.zeros(1)})
KEYS = st.builds(state_of, st.lists(st.floats(-300, 300), min_size=1, max_size=4), st.floats(-40, 40)) | st.just(NOTHING)


@given(KEYS, KEYS, KEYS)
def test_statistics_merge_associatively_with_identity(x, y, z):
    """With whatever references: what the states stand for is compared."""
    x, y, z = (merge_states(NOTHING, state) for state in (x, y, z))
    left, right = merge_states(merge_states(x, y), z), merge_states(x, merge_states(y, z))
    for a, b in ((left, right), (merge_states(x, y), merge_states(y, x)), (merge_states(x, NOTHING), x)):
        np.testing.assert_allclose(*(finish_output(OUTPUTS["entropy"], state) for state in (a, b)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SHOWN)
@given(scores=st.lists(st.floats(-99, 99) | st.just(-np.inf), min_size=1, max_size=9), sink=st.none() | st.floats(-99, 99))
@settings(max_examples=30)
def test_a_schedule_keeps_statistics(name, scores, sink):
    softmax = SHOWN[name]
    start = (-np.inf, 0.0) if sink is None else (sink, 1.0)
    state = number_state(*start, 0.0)
    state = state._replace(sums=start_of_sums(["entropy"], state.l, sink=sink is not None))
    size = len(scores) if softmax.materialize else 2
    with np.errstate(all="ignore"):
        for step in passes(softmax):
            for j in range(0, len(scores), size):
                state = step(state, np.array([scores[j : j + size]]), lambda p: p.sum(-1, keepdims=True))
        found = finish_output(OUTPUTS["entropy"], state, None if sink is None else np.array([sink]))
        p = np.exp2(np.array([-np.inf if sink is None else sink, *scores]) - max([*scores, -np.inf if sink is None else sink]))
        p = np.nan_to_num(p / p.sum())[1:]
        expected = -np.where(p == 0, 0, p * np.log2(p)).sum()
    np.testing.assert_allclose(found, [expected], atol=1e-9)


def test_lse_and_output_of_two_halves():
    """A normalised o with its lse is a state: 900 keys of +1 and 100 of -1, all with score 0."""
    halves = number_state(np.log2(900), 1.0, 1.0), number_state(np.log2(100), 1.0, -1.0)
    o, lse = meaning(merge_states(*halves))
    assert o.item() == pytest.approx(0.8)
    assert lse.item() * np.log(2) == pytest.approx(np.log(1000))


def test_lazy_leaves_the_reference_until_it_is_passed_by_more():
    (step,) = passes(SoftmaxPlan(rescale="lazy", threshold=8.0))
    state = State(*(np.array(x, np.float32) for x in ([-np.inf], [0], [[0]])))
    references = []
    for score in (3, 11, 11.5, 12, -5):
        state = step(state, np.array([[score]], np.float32), lambda p: p)
        references.append(state.m.item())
    assert references == [3, 3, 11.5, 11.5, 11.5]


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("score", [np.inf, np.nan])
def test_infinite_and_undefined_scores_reach_the_result(name, score):
    state = State(*(np.array(x, np.float32) for x in ([-np.inf], [0], [[0]])))
    with np.errstate(invalid="ignore"):
        for step in passes(SHOWN[name]):
            for s in (0, score, 1) if not SHOWN[name].materialize else ([0, score, 1],):
                state = step(state, np.array([s], np.float32).reshape(1, -1), lambda p: p.sum(-1, keepdims=True))
        o, lse = finish(SHOWN[name], state)
    assert np.isnan(o).all()
    assert np.isnan(lse).all()


def test_resolve_fills_in_what_a_spec_leaves_open():
    assert resolve(Schedule()) == SoftmaxPlan()
    assert resolve(Schedule(), "lazy") == SoftmaxPlan(rescale="lazy", threshold=8.0)
    assert resolve(Schedule(rescale="always"), "lazy") == SoftmaxPlan()
    assert resolve(Schedule(rescale="lazy")).threshold == 8.0
    assert resolve(Schedule(rescale="lazy", threshold=2.0), "lazy").threshold == 2.0
    assert resolve(Schedule(normalize="each_step"), "lazy") == SoftmaxPlan(normalize="each_step")
    assert resolve(Schedule(passes=2), "lazy") == SoftmaxPlan(passes=2)
    assert resolve(Schedule(materialize=True), "lazy") == SoftmaxPlan(materialize=True)
    assert resolve(Schedule(outer="kv"), "lazy") == SoftmaxPlan(outer="kv", rescale="lazy", threshold=8.0)


@pytest.mark.parametrize("name", schedules())
def test_every_schedule_can_be_pinned(name):
    program = schedules()[name]
    keys = [field.name for field in dataclasses.fields(Schedule)]
    pinned = Schedule(**{key: getattr(program, key) for key in keys if key != "threshold"}, threshold=program.threshold or None)
    assert resolve(pinned, "lazy") == resolve(pinned) == program


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(passes=2, normalize="each_step"), "each_step with passes: 2"),
        (Schedule(passes=3, rescale="lazy"), "takes passes: 1"),
        (Schedule(normalize="each_step", rescale="lazy"), "takes passes: 1"),
        (Schedule(rescale="lazy", threshold=20.0), "the most is 15"),
    ],
)
def test_contradictions_are_refused(schedule, words):
    with pytest.raises(PlanError, match=words):
        resolve(schedule)


def test_descriptions():
    lines = {
        "standard": "scores in memory, log2 units; nothing rescaled, exponentials divided before their product with v",
        "three_pass": "three passes (maximum, sum, output), log2 units; nothing rescaled, divided once at the end",
        "two_pass": "two passes (maximum and sum, output), log2 units; l rescaled at every key tile, divided once at the end",
        "one_pass": "one pass, log2 units; o and l rescaled at every key tile, divided once at the end",
        "each_step": "one pass, log2 units; o and l rescaled at every key tile, o divided by l after each",
        "lazy": "one pass, log2 units; o and l rescaled where a maximum grew by more than 8, divided once at the end",
    }
    for name, line in lines.items():
        assert schedule_text(schedules()[name]) == f"{line}; no key: o = 0, lse = -inf"
    assert schedule_text(schedules()["each_step_kv_outer"]).startswith("one pass, key tiles in the outer loop, log2 units; o and l")
