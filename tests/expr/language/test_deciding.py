"""Floats that decide are those of float32, bit by bit: what `floor` is of and what is compared."""

import random

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from flashgen.errors import SpecError
from flashgen.expr import evaluate, holes, lower
from flashgen.expr.language.read import read
from flashgen.spec import Spec
from tests.expr import harness
from tests.expr.exact import exact
from tests.expr.grammar import declared
from tests.expr.masks import joined, one_of
from tests.expr.prove.test_integers import HOSTILE, draw_place

LARGEST = float(np.finfo(np.float32).max)
NUMBERS = (LARGEST, -LARGEST, 1e-45, -1e-38, 3.0, 0.1, -0.25, 1 / 3, 1e9, 16777217.0, 0.7)
POINTS = 30  # of every expression

LEAVES = one_of("c; e; slopes[h]; table[m, h]; 0.1; 3.0; 16777217; q_idx; kv_idx; (kv_idx - q_idx); n; (kv_idx * kv_idx - m); q_len")
FLOATS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        joined(inner, st.sampled_from("+-*/"), inner),
        joined(inner, st.sampled_from("+*/"), LEAVES),
        joined(one_of("min; max"), inner, inner, form="{}({}, {})"),
        joined(inner, one_of("<; >=; =="), inner, inner, inner, form="where({} {} {}, {}, {})"),
        joined(one_of("abs; floor; -"), inner, form="{}({})"),
        inner.map(lambda x: f"sqrt(abs({x}))"),
    ),
    max_leaves=5,
)
CONDITIONS = joined(FLOATS, one_of("<; <=; >; >=; ==; !="), FLOATS)
CONDITIONS = CONDITIONS | joined(CONDITIONS, st.sampled_from("&|"), CONDITIONS) | CONDITIONS.map(lambda x: f"(~{x})")
CORNERS = [
    *("floor(kv_idx / c) == floor(q_idx / c)", "floor(c * kv_idx + e) != floor(q_idx / 3.0)", "c * kv_idx + e > c * q_idx - 0.1"),
    *("0.1 * kv_idx < q_idx / 10.0", "~(slopes[h] < 3.0)", "min(slopes[h], c) >= e", "sqrt(kv_idx * c) <= sqrt(abs(e))"),
    *("floor((kv_idx - q_idx) * (kv_idx - q_idx) / 3.0) < 16777217", "where(slopes[h] > 0.0, kv_idx, q_idx) < 7"),
]


def spec_of(mask, number):
    score = f"where({mask}, floor({number}), 0.5)"
    return Spec(head_dim=16, dtype="float32", score=score, mask=mask, **declared(score, mask))


def drawn():
    found = {}

    @settings(phases=[Phase.generate], database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(CONDITIONS, FLOATS)
    def draw(mask, number):
        found[mask, number] = None

    draw()
    for pair in [*((mask, "kv_idx / c") for mask in CORNERS), *found]:
        try:
            spec = spec_of(*pair)
            yield spec, read(spec), lower(spec)
        except SpecError as error:
            assert any(why in str(error) for why in ("64 bits", "float32")), (pair, error)  # noqa: PT017


def draw_values(rng):
    values = draw_place(rng) | {"c": rng.choice(NUMBERS), "e": rng.choice(NUMBERS), "m": rng.choice([*HOSTILE, 3, -7])}
    any_float = (*NUMBERS, np.inf, -np.inf, np.nan, 0.0)
    values["slopes"] = np.array(rng.choices(any_float, k=4), np.float32)
    return values | {"table": np.array(rng.choices(any_float, k=20), np.float32).reshape(5, 4)}


@np.errstate(all="ignore")
def test_emitted_floats_that_decide_are_exact(tmp_path):
    rng = random.Random(6)
    cases = list(drawn())
    assert len(cases) > 50
    library = harness.build(tmp_path / "floats", [holes(lowered, spec) for spec, _, lowered in cases])
    for number, (spec, written, lowered) in enumerate(cases):
        for _ in range(POINTS):
            values = draw_values(rng)
            record = harness.params(values, 0.25, harness.EXTENTS | {name: values[name] for name in ("q_len", "kv_len")})
            column = rng.randrange(min(128, values["kv_idx"] + 1))
            place = values["b"], values["h"], values["q_idx"], values["kv_idx"] - column, column
            found = harness.at(library, number, record, *place)
            want = exact(written.score, values), exact(written.mask, values)
            np.testing.assert_equal(found, want, f"{spec.mask} {spec.score} {values}")
            np.testing.assert_equal(evaluate(lowered.mask, values), want[1], f"{spec.mask} {values}")
