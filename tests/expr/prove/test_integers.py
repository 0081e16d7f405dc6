"""Integers are exact: what is emitted is what Python's integers give, for any 32-bit numbers and any lengths."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from flashgen.errors import Position, SpecError
from flashgen.expr import analyse, holes, lower, parse
from flashgen.expr.language.nodes import walk
from flashgen.expr.language.read import read as written_as
from flashgen.expr.prove.affine import MAX_LENGTH
from flashgen.expr.prove.integers import Integers, of_language
from flashgen.expr.tiles.ranges import EMPTY, FULL
from flashgen.spec import Spec
from tests.expr import harness
from tests.expr.exact import exact
from tests.expr.grammar import PARAMS, SCOPE, TENSORS, declared
from tests.expr.masks import joined, one_of

TOP = 2**31 - 1
HOSTILE = (-TOP - 1, -TOP, -(2**30) - 1, -(2**30), -1, 0, 1, 2, 2**30 - 1, 2**30, 2**30 + 1, TOP - 1, TOP)
POINTS = 40  # of every expression

LEAVES = one_of("q_idx; kv_idx; q_len; kv_len; n; m; h; lens[b]; lens[h]; 1; 2; 3; 1073741824") | one_of("kv_idx; q_idx; m; lens[b]")
INTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        joined(inner, st.sampled_from("+-"), inner),
        joined(inner, st.sampled_from("+-*"), LEAVES),
        joined(inner, one_of("//; %"), one_of("n; 2; 7; 64; 1073741824; kv_len; max(1, m)")),
        joined(one_of("min; max"), inner, inner, form="{}({}, {})"),
        joined(inner, one_of("<; >=; =="), inner, inner, inner, form="where({} {} {}, {}, {})"),
        inner.map(lambda x: f"abs({x})"),
        inner.map(lambda x: f"(-{x})"),
    ),
    max_leaves=6,
)
CONDITIONS = joined(INTS, one_of("<; <=; >; >=; ==; !="), INTS) | joined(INTS, INTS, form="bit({}, {})")
MASKS = one_of("window(n, m + 1); window(m, n); window(m, m); chunk(n); prefix(lens[b] + 1); prefix(m)") | CONDITIONS
MASKS = MASKS | joined(MASKS, st.sampled_from("&|"), MASKS) | MASKS.map(lambda x: f"(~{x})")
CORNERS = [
    *("window(n, n)", "window(m, m)", "kv_idx < lens[b]", "kv_idx < lens[b] + 1", "kv_idx == lens[b] - m", "abs(kv_idx - q_idx) <= m"),
    *(
        "(kv_idx - q_idx) // n % 2 == 0",
        "(q_idx - kv_idx) % n < 2",
        "kv_idx // n < m",
        "kv_idx // n // max(1, m) == q_idx // n // max(1, m)",
    ),
    *("(q_idx - kv_idx) * (q_idx - kv_idx) < n * n", "m * kv_idx < n * q_idx", "(lens[b] <= lens[h]) & (lens[b] > lens[h] - n)"),
    *("bit(m * n, kv_idx * m)", "bit(lens[b], kv_idx - m)", "-m < abs(lens[b])", "abs(m) // n - abs(lens[b]) < kv_idx"),
]


def spec_of(mask, index):
    """The mask is a choice in the score, too, where it is not solved for kv_idx."""
    score = f"where({mask}, table[{index}, h], 99)"
    return Spec(head_dim=16, dtype="float32", score=score, mask=mask, **declared(score, mask))


def drawn():
    found = {}

    @settings(phases=[Phase.generate], database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(MASKS, INTS)
    def draw(mask, index):
        found[mask, index] = None

    draw()
    for pair in [*((mask, "m - kv_idx") for mask in CORNERS), *found]:
        try:
            spec = spec_of(*pair)
            yield spec, written_as(spec), lower(spec)
        except SpecError as error:
            assert any(why in str(error) for why in ("64 bits", "positive", "entries along this axis")), (pair, error)  # noqa: PT017


def near(rng, top):
    """A position below top."""
    return min(max(rng.choice([0, 1, rng.randrange(top), top - 1, top - rng.randrange(300)]), 0), top - 1)


def draw_place(rng):
    """A query and a key that exist, and values of everything."""
    lengths = {name: rng.choice([1, 77, rng.randrange(1, MAX_LENGTH), MAX_LENGTH]) for name in ("q_len", "kv_len")}
    at = {"q_idx": near(rng, lengths["q_len"]), "kv_idx": near(rng, lengths["kv_len"]), "b": rng.randrange(2), "h": rng.randrange(4)}
    values = {p.name: p.default for p in PARAMS} | {"n": rng.choice([x for x in HOSTILE if x > 0]), "m": rng.choice(HOSTILE)}
    values["lens"] = np.array(rng.choices(HOSTILE, k=2), np.int32)
    values["table"] = np.arange(20, dtype=np.float32).reshape(5, 4)
    empty = {t.name: np.zeros((1,) * len(t.shape), t.dtype) for t in TENSORS}
    return {**empty, **values, **lengths, **at}


def test_emitted_integers_are_exact(tmp_path):
    """With signed overflow trapped."""
    rng = random.Random(5)
    cases = list(drawn())
    assert len(cases) > 50
    trap = "-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error", "-Wno-unused-but-set-variable"
    library = harness.build(tmp_path / "ints", [holes(lowered, spec) for spec, _, lowered in cases], *trap)
    for number, (spec, written, _) in enumerate(cases):
        for _ in range(POINTS):
            values = draw_place(rng)
            record = harness.params(values, 0.25, harness.EXTENTS | {name: values[name] for name in ("q_len", "kv_len")})
            column = rng.randrange(min(128, values["kv_idx"] + 1))
            place = values["b"], values["h"], values["q_idx"], values["kv_idx"] - column, column
            score, kept = harness.at(library, number, record, *place)
            seen = exact(written.mask, values)
            assert (kept, score) == (seen, exact(written.score, values)), f"{spec.mask} {spec.score} {values}"


def read(text):
    return parse(text, SCOPE, Position("<mask>", 1, 1, text))


@given(INTS, st.randoms(use_true_random=False))
def test_intervals_hold_what_they_are_of(text, rng):
    try:
        node = read(text)
    except SpecError:
        return
    integers = Integers(of_language)
    for _ in range(10):
        values = draw_place(rng)
        for part in walk(node):
            if part.type == "int":
                low, high = integers.extent(part)
                assert low <= exact(part, values) <= high, part


SMALL = st.integers(1, 40)


@given(MASKS, SMALL, SMALL, st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
@example("window(m, n)", 20, 30, 8, 8, random.Random(1))
def test_key_ranges_are_sound(text, q_len, kv_len, block_m, block_n, rng):
    """A tile called empty has no pair that is seen, one called full no pair that is not."""
    try:
        mask = read(text)
    except SpecError:
        return
    values = draw_place(rng) | {"q_len": q_len, "kv_len": kv_len, "hk": 0}
    classes = analyse(mask, block_m, block_n, TENSORS).classes(q_len, kv_len, values)
    for i, j in np.ndindex(classes.shape):
        rows, keys = (range(k * n, min((k + 1) * n, top)) for k, n, top in ((i, block_m, q_len), (j, block_n, kv_len)))
        seen = [exact(mask, values | {"q_idx": row, "kv_idx": key}) for row in rows for key in keys]
        assert not (any(seen) and classes[i, j] == EMPTY)
        assert not (classes[i, j] == FULL and (not all(seen) or (j + 1) * block_n > kv_len))


@pytest.mark.parametrize("text", ["n * m * n", "n * q_idx * kv_idx", "(n - m) * (n - m)", "window(n * m * m, 0)", "s + n * n * n"])
def test_what_may_pass_64_bits_is_refused_where_it_is_written(text):
    with pytest.raises(SpecError, match=r"may pass 64 bits.*\n.*\n.*\^\n*.*min\(max\(x, -1000\), 1000\)"):
        read(text)
