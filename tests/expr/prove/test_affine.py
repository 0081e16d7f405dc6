"""Linear forms compute what Python computes, equal ones are ==, and intervals and proofs hold for every value."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.expr.prove.affine import Int, grouped, largest, named, operations, select, smallest, substitute
from flashgen.expr.prove.intervals import BLOCK_N, Facts
from flashgen.expr.tiles.cuda import number

EXAMPLES = settings(max_examples=int(os.environ.get("EXAMPLES", "400")), deadline=None)
NAMES = ("q_begin", "q_last", "q_len", "kv_len", "BLOCK_N", "x", "y")
FORMS = st.recursive(
    st.sampled_from(NAMES).map(named) | st.integers(-9, 9).map(Int),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] - t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
        st.tuples(inner, st.integers(1, 5).map(Int) | st.just(BLOCK_N)).map(lambda t: t[0] // t[1]),
        st.tuples(inner, st.integers(1, 5).map(Int) | st.just(BLOCK_N)).map(lambda t: t[0] % t[1]),
        st.tuples(inner, inner).map(lambda t: smallest(*t)),
        st.tuples(inner, inner).map(lambda t: largest(*t)),
        st.tuples(inner, inner, inner).map(lambda t: select(*t)),
    ),
    max_leaves=8,
)


@st.composite
def values(draw):
    """Values of the names, as a query tile may have them."""
    block_m, q_begin, after = draw(st.integers(1, 16)), draw(st.integers(0, 50)), draw(st.integers(1, 50))
    found = {"q_begin": q_begin, "q_len": q_begin + after, "q_last": q_begin + min(after, block_m) - 1, "BLOCK_M": block_m}
    return found | {
        "kv_len": draw(st.integers(0, 50)),
        "BLOCK_N": draw(st.integers(1, 16)),
        "x": draw(st.integers(-9, 9)),
        "y": draw(st.integers(-9, 9)),
    }


@EXAMPLES
@given(FORMS, values())
def test_the_text_of_a_form_is_python_for_its_value(form, known):
    words = {"min": min, "max": max, "select": lambda d, x, y: x if d <= 0 else y}
    assert eval(form.text, words, known) == number(form, known)


@settings(EXAMPLES, max_examples=EXAMPLES.max_examples // 4)
@given(FORMS, FORMS, FORMS, values())
def test_forms_are_a_ring(x, y, z, known):
    assert x + y - y == x
    assert x * (y + z) == x * y + x * z
    assert x * y == y * x
    assert number(x * y - z, known) == number(x, known) * number(y, known) - number(z, known)


@EXAMPLES
@given(FORMS, values())
def test_names_give_way_to_their_meanings(form, known):
    """Also where a meaning reads another such name."""
    meanings = {"x": 2 * named("q_len") - 3, "y": named("x") // Int(3) - named("q_begin")}
    written = substitute(form, meanings)
    assert written.names.isdisjoint(meanings)
    for name, meaning in meanings.items():
        known[name] = number(meaning, known)
    assert number(written, known) == number(form, known)


@EXAMPLES
@given(FORMS, values())
def test_extents_hold(form, known):
    low, high = Facts(known["BLOCK_M"], known["BLOCK_N"]).extent(form)
    assert low <= number(form, known) <= high


@settings(EXAMPLES, max_examples=EXAMPLES.max_examples // 4)
@given(st.lists(FORMS, min_size=1, max_size=3), FORMS, values())
def test_proofs_hold(steps, form, known):
    """Also through names given to values."""
    tile = Facts(known["BLOCK_M"], known["BLOCK_N"])
    for i, step in enumerate(steps):
        clipped = smallest(largest(step, Int(-1000)), Int(1000))
        tile.let(f"step_{i}", clipped)
        known[f"step_{i}"] = number(clipped, known)
        difference = named(f"step_{i}") - form if f"step_{i}" in tile.meanings else clipped - form
        assert not tile.nonnegative(difference) or number(difference, known) >= 0
        assert not tile.nonnegative(-difference) or number(difference, known) <= 0
    assert number(tile.smallest(*steps), known) == min(number(step, known) for step in steps)
    assert number(tile.largest(*steps), known) == max(number(step, known) for step in steps)


def test_what_the_layout_rests_on_is_proved():
    tile = Facts(128, 64)
    words = {name: named(name) for name in ("q_begin", "q_last", "q_len", "kv_len")} | {"max": largest, "min": smallest, "N": BLOCK_N}
    full = tile.let("full", eval("max(Int(0), min(kv_len, kv_len - q_len + q_begin + 9))", {"Int": Int}, words))
    end = tile.let("end", eval("max(Int(0), min(kv_len, kv_len - q_len + q_last + 9))", {"Int": Int}, words))
    assert tile.nonnegative(end - full)
    assert not tile.nonnegative(full - end)
    assert tile.nonnegative((end + BLOCK_N - 1) // BLOCK_N - full // BLOCK_N)
    assert tile.let("again", tile.meanings["end"]) == end


def test_grouped():
    assert [grouped(text) for text in ("a", "a + b", "f(a + b)", "f(a) + g(b)", "(long long)a", "lens[b, h]")] == [
        *("a", "(a + b)", "f(a + b)", "(f(a) + g(b))", "(long long)a", "lens[b, h]")
    ]


def test_one_algebra_serves_proofs_and_ranges():
    """A magnitude is what a range has for it, whoever asks, and is known to be no less than 0."""
    x, facts = named("q_idx") - named("p.arg_n"), Facts(64, 64)
    magnitude = operations()["abs"](x)
    assert magnitude == operations(facts.smallest, facts.largest)["abs"](x) == largest(x, -x)
    assert facts.nonnegative(magnitude)
    assert facts.nonnegative(-operations()["min"](x, -x))
    assert not facts.nonnegative(largest(x, -x - 1))
