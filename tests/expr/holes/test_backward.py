"""Holes of a backward: what is emitted for slopes and gradients, and that what is emitted computes the derivatives."""

import ctypes
import subprocess
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from flashgen.errors import SpecError
from flashgen.expr import evaluate, holes, lower
from flashgen.expr.language.nodes import Name
from flashgen.expr.meaning.gradient import derivatives
from flashgen.spec import Spec
from tests.expr import harness
from tests.expr.errors import bounded
from tests.expr.grammar import CORNER_SCORES, PARAMS, TENSORS, declared, floats
from tests.expr.holes.test_holes import draw_values, place

SHAPES = {"slopes": ["hq"], "bias": ["hk", "q_len", "kv_len"], "gate": ["b", "hq", "kv_len"], "table": [5, "hq"]}


def emitted(score="s", c=None, tensor=None, **given):
    params = {} if c is None else {"c": {"default": c, "grad": True}}
    tensors = {tensor: {"shape": SHAPES[tensor], "dtype": "float32", "grad": True}} if tensor else {}
    spec = Spec(head_dim=64, dtype="bfloat16", score=score, params=params, tensors=tensors, backward=True, **given)
    return holes(lower(spec), spec, backward=True)


@pytest.mark.parametrize(("score", "c", "scale"), [
    ("s", None, "p.softmax_scale"),
    ("2.0 * s", None, "p.softmax_scale * 2.0f"),
    ("c * s + kv_idx", 2.0, "p.softmax_scale * p.arg_c"),
])  # fmt: skip
def test_a_slope_that_is_alike_in_all_of_a_call_is_a_factor_at_the_end(score, c, scale):
    slope = emitted(score, c).backward.slope
    assert (slope.body, slope.scale, slope.bounded) == (None, scale, True)


@pytest.mark.parametrize(("score", "c", "text", "bounded"), [
    ("c * tanh(s / c)", 50.0, ("const float x = ptx::tanh(inner * s);", "derivative = 1.0f - x * x;", "return x;"), True),
    ("exp(s)", None, ("derivative = ptx::exp2(inner * s);", "return derivative;"), False),
])  # fmt: skip
def test_a_slope_is_simplified_against_the_value(score, c, text, bounded):
    slope = emitted(score, c).backward.slope
    assert (slope.body.lines, slope.scale, slope.bounded) == (text, "p.softmax_scale", bounded)


def test_the_slope_of_a_head_stays_with_the_elements():
    slope = emitted("slopes[h] * s", tensor="slopes").backward.slope
    assert slope.body.lines == ("const float x = inner * s;", "derivative = slopes_h;", "return x;")
    assert slope.scale == "p.softmax_scale"


@pytest.mark.parametrize(("given", "value", "address", "along", "reads_s"), [
    ({"score": "s + slopes[h] * (kv_idx - q_idx)", "tensor": "slopes"}, "row.bias_2 + float(column)", "slopes.address(h)", "", False),
    ({"score": "s + bias[hk, q_idx, kv_idx]", "tensor": "bias"}, "1.0f",
     "bias.address(hk, row.query, min(column + row.kv_begin, last_key))", "own", False),
    ({"score": "s + bias[hk, q_idx, kv_len - 1 - kv_idx]", "tensor": "bias"}, "1.0f",
     "bias.address(hk, row.query, max(min(row.offset - column, last_key), 0))", "both", False),
    ({"score": "s * gate[b, h, kv_idx]", "tensor": "gate"}, "p.softmax_scale * s",
     "gate.address(b, h, min(column + row.kv_begin, last_key))", "keys", True),
    ({"score": "s + gate[b, h, q_idx]", "tensor": "gate"}, "1.0f", "gate.address(b, h, row.query)", "rows", False),
    ({"score": "s + table[int(s), h]", "tensor": "table"}, "1.0f",
     "table.address(max(min(__float2int_rz(p.softmax_scale * s), 4), 0), h)", "both", True),
    ({"score": "c * s", "c": 2.0}, "p.softmax_scale * s", "c", "", True),
    ({"score": "s + c", "scale": "c / sqrt(d)", "c": 2.0}, "fmaf(0.125f, s, 1.0f)", "c", "", True),
])  # fmt: skip
def test_gradients(given, value, address, along, reads_s):
    (gradient,) = emitted(**given).backward.gradients
    assert (gradient.value.lines, gradient.address.lines) == ((f"return {value};",), (f"return p.grad_{address};",))
    assert (gradient.along, gradient.reads_s) == (along, reads_s)


def test_of_a_sink_and_of_what_is_read_twice():
    found = emitted("s + slopes[h] * kv_idx + slopes[hk]", tensor="slopes", softmax={"sink": "2.0 * slopes[h]"}).backward
    assert [(g.name, g.text) for g in found.gradients] == [("slopes", "slopes[h]: kv_idx"), ("slopes_2", "slopes[hk]: 1.0")]
    assert [(g.name, g.value.lines, g.address.lines) for g in found.sinks] == [
        ("slopes_3", ("return 2.0f;",), ("return p.grad_slopes.address(h);",))
    ]


def test_a_deterministic_sum_is_of_integers():
    (gradient,) = emitted("s + slopes[h] * kv_idx", tensor="slopes", deterministic=True).backward.gradients
    at = "p.exact_slopes + (p.grad_slopes.address(h) - p.grad_slopes.data), p.count_slopes"
    assert (gradient.exact, gradient.address.lines) == (True, (f"return {{{at}}};",))
    (gradient,) = emitted("c * s", 2.0, deterministic=True).backward.gradients
    assert (gradient.exact, gradient.address.lines) == (True, ("return {p.exact_c, 1};",))


def test_only_what_asks_has_a_gradient():
    tensors = {"slopes": {"shape": ["hq"], "dtype": "float32"}}
    spec = Spec(head_dim=64, dtype="bfloat16", score="s + slopes[h]", tensors=tensors, backward=True)
    assert holes(lower(spec), spec, backward=True).backward.gradients == ()
    assert holes(lower(spec), spec).backward is None


# ------------------------------------------------------------------------------------------------------------------ run

FLOATS = [x for x in (*PARAMS, *TENSORS) if getattr(x, "type", getattr(x, "dtype", "")) in ("float", "float32")]
SUMS = """
template <int RANK> struct Sums {
  float* data; int extents[RANK];
  template <class... Index> float* address(Index... index) const {
    int at = 0, axis = 0;
    for (int i : {index...}) { if (i < 0 || i >= extents[axis]) abort(); at = at * extents[axis++] + i; }
    return data + at;
  }
};
"""
CASE = """
namespace case_%(number)d {
struct Variant {
  const Params& p; %(uniform)s
  Variant(const Params& p, int batch, int head, int kv_head) : p(p) { %(set_uniform)s }
  struct Row { %(row)s };
  Row row(int q_idx, int kv_begin) const { Row row; %(set_row)s return row; }
  float score(float s, const Row& row, int column, float& derivative) const { %(score)s }
  %(gradients)s
};
void run(const Params& p, const float* s, const float* d, float* slope) {
  for (int batch = 0; batch < p.batch; ++batch) for (int head = 0; head < p.heads; ++head) {
    const Variant variant(p, batch, head, head / p.group);
    for (int q = 0; q < p.q_len; ++q) for (int key = 0; key < p.kv_len; ++key, ++s, ++d, ++slope) {
      const int column = key %% TILE;
      const Variant::Row row = variant.row(q, key - column);
      variant.score(*s, row, column, *slope);
      %(add)s
    }
  }
}
}
"""
KNOWN = "float s, const Row& row, int column"
GRADIENT = f"float slope_of_{{0}}({KNOWN}) const {{{{ {{1}} }}}} float* sum_of_{{0}}({KNOWN}) const {{{{ {{2}} }}}}"


def case(number, found):
    whole = harness.text(found)
    slope, gradients = found.backward.slope, found.backward.gradients
    uniform = f"derivative = ({slope.scale}) / p.softmax_scale; return 0.0f;"
    return CASE % {
        "number": number,
        **{name: whole[name] for name in ("uniform", "set_uniform", "row", "set_row")},
        "score": " ".join(slope.body.lines) if slope.body else uniform,
        "gradients": " ".join(GRADIENT.format(g.name, " ".join(g.value.lines), " ".join(g.address.lines)) for g in gradients),
        "add": " ".join(
            f"*variant.sum_of_{g.name}(*s, row, column) += *d * variant.slope_of_{g.name}(*s, row, column);" for g in gradients
        ),
    }


def source(every):
    members = [f"int arg_{p.name};" if p.type == "int" else f"float arg_{p.name};" for p in PARAMS]
    members += [f"Array<{harness.CTYPES[t.dtype]}, {len(t.shape)}> arg_{t.name};" for t in TENSORS]
    members += [f"Sums<{len(x.shape)}> grad_{x.name};" if hasattr(x, "shape") else f"float* grad_{x.name};" for x in FLOATS]
    params = "struct Params { float softmax_scale; int q_len, kv_len, heads, batch, group; " + " ".join(members) + " };"
    calls = " ".join(f"case {i}: case_{i}::run(*p, s, d, slope); break;" for i in range(len(every)))
    given = "int number, const Params* p, const float* s, const float* d, float* slope"
    run = f'extern "C" void run({given}) {{ switch (number) {{ {calls} }} }}'
    cases = [case(number, found) for number, found in enumerate(every)]
    preamble = harness.PREAMBLE % {"division": harness.DIVISION}
    inverse = "namespace ptx { inline float inverse(float x) { return 1 / x; } }"
    return "\n".join([preamble, inverse, SUMS, f"constexpr int TILE = {harness.TILE};", params, *cases, run])


def build(folder, every):
    folder.mkdir(exist_ok=True)
    (folder / "backward.cpp").write_text(source(every))
    options = ["-std=c++17", "-O0", "-ffp-contract=off", "-Wno-parentheses", "-shared", "-fPIC"]
    made = subprocess.run(["g++", *options, "-o", "backward.so", "backward.cpp"], cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:4000]
    return ctypes.CDLL(str(folder / "backward.so"))


def record(values, sums):
    """Params as harness.params makes them, and after those the places of the gradients."""
    base = harness.params(values, 0.25)
    kinds = [(x.name, harness.array_type(len(x.shape)) if hasattr(x, "shape") else ctypes.c_void_p) for x in FLOATS]
    whole = type("Whole", (ctypes.Structure,), {"_fields_": [("base", type(base)), *kinds]})(base)
    for x in FLOATS:
        if hasattr(x, "shape"):
            array = getattr(whole, x.name)
            array.data, array.extents[:] = sums[x.name].ctypes.data, sums[x.name].shape
        else:
            setattr(whole, x.name, sums[x.name].ctypes.data)
    return whole


def asking(score):
    """The spec with this score, in which all that has a gradient asks for it; None where it is none."""
    given = declared(score)
    spec = Spec(head_dim=16, dtype="float32", score=score, backward=True, **given)
    try:
        lower(spec)
    except SpecError:
        return None
    found = derivatives(spec)
    named = {by.name if isinstance(by, Name) else by.tensor for by in found.score}
    params = {name: {"default": default, "grad": name in named} for name, default in given["params"].items()}
    tensors = {name: {**keys, "grad": name in named} for name, keys in given["tensors"].items()}
    return Spec(head_dim=16, dtype="float32", score=score, backward=True, params=params, tensors=tensors)


def drawn():
    found = dict.fromkeys(CORNER_SCORES)

    @settings(phases=[Phase.generate], database=None, max_examples=40, suppress_health_check=list(HealthCheck))
    @given(floats(3))
    def draw(score):
        found[score] = None

    draw()
    return [spec for spec in map(asking, found) if spec]


def where_read(load, at):
    return tuple(np.clip(evaluate(i, at), 0, size - 1) for i, size in zip(load.indices, at[load.tensor].shape, strict=True))


def check(library, number, spec, values, s, d):
    """Compares the slopes and gradients of a case with the derivatives; the share of slopes that could be compared in value."""
    sums = {x.name: np.zeros(getattr(values[x.name], "shape", ()), np.float32) for x in FLOATS}
    slope = np.full(s.shape, np.nan, np.float32)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (s, d, slope)]
    library.run(number, ctypes.byref(record(values, sums)), *pointers)
    found = derivatives(spec)
    at = {**place(values), "s": s.astype(np.float64) * 0.25}
    at |= {"q_idx": at["q_idx"][:, :, : at["q_len"]], "kv_idx": at["kv_idx"][..., : at["kv_len"]]}
    expected, bound = (np.broadcast_to(x, s.shape) for x in bounded(found.s, at))
    finite = np.isfinite(expected) & np.isfinite(bound)
    np.testing.assert_array_less(np.abs(slope[finite] - expected[finite]), bound[finite] * 1.5 + 1e-6)
    totals = {x.name: [np.zeros(sums[x.name].shape) for _ in range(2)] for x in FLOATS}
    for by, node in found.score.items():
        terms = [np.broadcast_to(x, s.shape) for x in bounded(node, at)]
        name, where = (by.name, ()) if isinstance(by, Name) else (by.tensor, where_read(by, at))
        for total, part in zip(totals[name], (terms[0] * d, terms[1] * np.abs(d) + np.abs(terms[0] * d) * 1e-5), strict=True):
            np.add.at(total, tuple(np.broadcast_to(i, s.shape) for i in where), part) if where else total.__iadd__(part.sum())
    for name, (total, allowed) in totals.items():
        sure = np.isfinite(total) & np.isfinite(allowed)
        np.testing.assert_array_less(np.abs(sums[name] - total)[sure], allowed[sure] * 1.5 + 1e-5, err_msg=f"{name} of {spec.score}")
    return finite.mean()


def test_emitted_text_computes_the_derivatives(tmp_path):
    rng = np.random.default_rng(5)
    shape = [harness.EXTENTS[axis] for axis in ("b", "hq", "q_len", "kv_len")]
    s, d = (rng.standard_normal(shape).astype(np.float32) * size for size in (6, 1))
    values, specs = draw_values(rng), drawn()
    library = build(tmp_path, [holes(lower(spec), spec, backward=True) for spec in specs])
    compared = [check(library, number, spec, values, s, d) for number, spec in zip(count(), specs)]
    assert np.mean(compared) > 0.5
