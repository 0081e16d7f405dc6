"""Masks as ranges of key tiles: sound against the predicate on every pair, exact for the masks in use, the same as CUDA text."""

import doctest
import os
import random
import re
import subprocess
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashgen.errors import Position, SpecError
from flashgen.expr import Scope, parse, range_text, ranges
from flashgen.expr.affine import param
from flashgen.expr.range_text import number
from flashgen.expr.ranges import EMPTY, FULL, PARTIAL, analyse
from flashgen.expr.strips import MAX_STRIPS
from flashgen.spec import Tensor

EXAMPLES = int(os.environ.get("EXAMPLES", "400"))
SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
FEWER = settings(SETTINGS, max_examples=max(20, EXAMPLES // 10))

PARAMS = ("left", "right", "n", "stride", "c")
TENSORS = (
    Tensor("lens", ("b",), "int32"),
    Tensor("starts", ("hq", 3), "int32"),
    Tensor("ids", ("b", "kv_len"), "int32"),
    Tensor("bits", ("b", "kv_len"), "bool"),
    Tensor("flags", ("hq",), "bool"),
    Tensor("bias", ("hq",), "float32"),
)
TYPES = {"int32": "int", "bool": "bool", "float32": "float"}
SCOPE = Scope(params={**dict.fromkeys(PARAMS, "int"), "slope": "float"}, tensors={t.name: (TYPES[t.dtype], len(t.shape)) for t in TENSORS})


def mask_of(text):
    return parse(text, SCOPE, Position("<mask>", 1, 1, text))


def ranges_of(text, block_m=128, block_n=128):
    return analyse(mask_of(text), block_m, block_n, TENSORS)


# ----------------------------------------------------------------------------------------------- the predicate, by Python itself


class Clamped:
    def __init__(self, array):
        self.array = array

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        return self.array[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, self.array.shape, strict=True))]


def visible(text, q_len, kv_len, values):
    """The mask, pair by pair: [q_len, kv_len]."""
    rows, keys = np.arange(q_len, dtype=np.int64)[:, None], np.arange(kv_len, dtype=np.int64)[None]
    position = rows + kv_len - q_len
    words = {"q_idx": rows, "kv_idx": keys, "q_len": q_len, "kv_len": kv_len, "where": np.where, "min": np.minimum, "max": np.maximum}
    words |= {"abs": np.abs, "full": np.True_, "causal": keys <= position, "causal_top_left": keys <= rows, "prefix": lambda n: keys < n}
    words |= {"chunk": lambda n: keys // n == position // n, "document": lambda ids: ids[values["b"], keys] == ids[values["b"], position]}
    words["window"] = lambda left, right: ((left < 0) | (keys >= position - left)) & ((right < 0) | (keys <= position + right))
    words |= {name: Clamped(x) if np.ndim(x) else np.int64(x) if isinstance(x, int) else x for name, x in values.items()}
    text = re.sub(r"(?<![\w.])\d+(?![\w.])", r"int64(\g<0>)", text)  # ~(0 < 1) is not a condition to Python
    return np.broadcast_to(np.asarray(eval(text, {"int64": np.int64}, words), bool), (q_len, kv_len))


def true_classes(text, block_m, block_n, q_len, kv_len, values):
    """A tile that hangs over the last key needs its mask; over the last row, not."""
    pairs = visible(text, q_len, kv_len, values)
    classes = np.zeros((-(-q_len // block_m), -(-kv_len // block_n)), np.int8)
    for i, j in np.ndindex(classes.shape):
        tile = pairs[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]
        classes[i, j] = FULL if tile.all() and tile.shape[1] == block_n else PARTIAL if tile.any() else EMPTY
    return classes


# ------------------------------------------------------------------------------------------------------------------- strategies


def joined(*strategies, form="({} {} {})"):
    return st.tuples(*strategies).map(lambda t: form.format(*t))


CONSTANTS = st.integers(-9, 40).map(lambda x: f"({x})" if x < 0 else str(x))
NAMES = st.sampled_from(
    [
        *["q_idx", "kv_idx"] * 2,
        "q_len",
        "kv_len",
        "left",
        "right",
        "n",
        "c",
        "b",
        "h",
        "lens[b]",
        "lens[h]",
        "starts[h, c]",
        "lens[b - 1] + hk",
    ]
)
DIVISORS = st.sampled_from(["n", "stride", "1", "2", "3", "7", "16"])
ORDERS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
INTEGERS = st.recursive(
    NAMES | CONSTANTS,
    lambda inner: st.one_of(
        joined(inner, st.sampled_from("+-*"), inner),
        joined(inner, st.sampled_from(["//", "%"]), DIVISORS),
        joined(st.sampled_from(["min", "max"]), inner, inner, form="{}({}, {})"),
        joined(inner, ORDERS, inner, inner, inner, form="where({} {} {}, {}, {})"),
        inner.map(lambda x: f"abs({x})"),
        inner.map(lambda x: f"(-{x})"),
    ),
    max_leaves=5,
)
AFFINES = joined(st.integers(-3, 3), st.integers(-3, 3), NAMES | CONSTANTS, form="{} * q_idx + {} * kv_idx + {}")
COMPARISONS = joined(AFFINES | INTEGERS, ORDERS, AFFINES | INTEGERS)
NAMED = st.sampled_from(
    [
        "full",
        "causal",
        "causal_top_left",
        "window(left, right)",
        "window(c, 0)",
        "window(9, 3)",
        "prefix(n)",
        "chunk(n)",
        "chunk(16)",
        "prefix(lens[b])",
    ]
)
UNKNOWN = st.sampled_from(
    [
        "document(ids)",
        "bits[b, kv_idx]",
        "flags[h]",
        "(slope * q_idx < 3.5)",
        "(bias[h] > 0.5)",
        "(ids[b, kv_idx] <= q_idx)",
        "(ids[b, q_idx] > 1)",
    ]
)
MASKS = st.recursive(
    COMPARISONS | NAMED | UNKNOWN,
    lambda inner: st.one_of(
        joined(inner, st.sampled_from("&|"), inner), inner.map(lambda x: f"~{x}"), joined(inner, inner, inner, form="where({}, {}, {})")
    ),
    max_leaves=6,
)
LENGTHS, TILES = st.integers(0, 100), st.integers(1, 24)


class Values(dict):
    def __or__(self, other):
        return Values({**self, **other})

    def __repr__(self):
        return repr({key: value.tolist() if np.ndim(value) == 1 else value for key, value in self.items() if np.ndim(value) < 2})


@st.composite
def values(draw):
    found = {key: draw(st.integers(-12, 90)) for key in ("left", "right", "c")} | {key: draw(st.integers(1, 40)) for key in ("n", "stride")}
    found |= {"slope": draw(st.floats(-1, 1)), "b": draw(st.integers(0, 1)), "h": draw(st.integers(0, 3)), "hk": draw(st.integers(0, 1))}
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found |= {"lens": rng.integers(-3, 120, 2), "starts": rng.integers(0, 99, (4, 3)), "bias": rng.random(4), "flags": rng.random(4) < 0.5}
    return Values(found | {"ids": np.sort(rng.integers(0, 4, (2, 150)), axis=1), "bits": rng.random((2, 150)) < 0.7})


# -------------------------------------------------------------------------------------------------------------------- soundness


def check_sound(text, q_len, kv_len, block_m, block_n, given_values):
    found = ranges_of(text, block_m, block_n)
    begin, end = found.evaluate(q_len, kv_len, given_values)
    assert len(found.loops) <= 3 * MAX_STRIPS
    assert (begin >= 0).all()
    assert (begin <= end).all()
    assert (end[begin < end] <= -(-kv_len // block_n)).all()
    assert (begin[1:] >= end[:-1]).all()
    ours, truth = found.classes(q_len, kv_len, given_values), true_classes(text, block_m, block_n, q_len, kv_len, given_values)
    assert (truth[ours == EMPTY] == EMPTY).all(), "a tile called empty has a visible pair"
    assert (truth[ours == FULL] == FULL).all(), "a tile called full has a hidden pair"
    counts = (end - begin).sum(0)
    assert not found.uniform or len(set(counts.tolist())) <= 1
    return found, ours, truth


@SETTINGS
@given(MASKS, LENGTHS, LENGTHS, TILES, TILES, values())
def test_random_masks_are_sound(text, q_len, kv_len, block_m, block_n, given_values):
    try:
        mask_of(text)
    except SpecError:  # a divisor folded to 0, a text too long
        return
    check_sound(text, q_len, kv_len, block_m, block_n, given_values)


@FEWER
@given(
    st.sampled_from(["kv_idx", "(q_idx - kv_idx)", "q_idx"]),
    ORDERS,
    st.integers(-2, 7),
    st.integers(1, 6),
    LENGTHS,
    TILES,
    st.integers(1, 4),
)
def test_remainders_are_sound(inner, op, bound, n, length, block_m, block_n):
    check_sound(f"{inner} % n {op} {bound}", length, length, block_m, block_n, {"n": n})
    check_sound(f"{inner} % {n} {op} {bound} + q_idx", length, length, block_m, block_n, {})


@FEWER
@given(st.lists(AFFINES, min_size=1, max_size=3), st.sampled_from(["<", "<=", ">", ">=", "=="]), LENGTHS, LENGTHS, TILES, TILES, values())
def test_of_affine_comparisons_all_full_tiles_are_found(terms, op, q_len, kv_len, block_m, block_n, given_values):
    text = " & ".join(f"({term} {op} 0)" for term in terms)
    _, ours, truth = check_sound(text, q_len, kv_len, block_m, block_n, given_values)
    assert (ours[truth == FULL] == FULL).all()


# -------------------------------------------------------------------------------------------------------------------- tightness

EXACT = [
    *[
        "full",
        "causal",
        "causal_top_left",
        "window(left, right)",
        "window(17, 0)",
        "window(left, -1)",
        "prefix(n)",
        "chunk(n)",
        "chunk(16)",
    ],
    *["~full", "~causal", "~chunk(n)", "~prefix(n)", "~window(left, right)", "~(~window(left, right))", "kv_idx < lens[b]"],
    *[
        "causal & (kv_idx < lens[b])",
        "(q_idx < lens[b]) & (kv_idx < lens[b])",
        "prefix(n) | causal",
        "prefix(n) | (causal & (kv_idx < lens[b]))",
    ],
    *[
        "causal & window(left, 0)",
        "causal_top_left & (kv_idx > q_idx - n)",
        "prefix(n) | window(left, right)",
        "(kv_idx < 4) | window(left, right)",
    ],
    *[
        "(kv_idx < 4) | window(9, 3)",
        "causal & ((kv_idx < 4) | window(left, 0))",
        "causal & chunk(n)",
        "causal & (kv_idx >= n)",
        "kv_idx >= 5",
    ],
    *["(kv_idx < 3) | (kv_idx >= 9)", "q_idx // n == kv_idx // n"],
    *[
        "2 * kv_idx <= q_idx",
        "kv_idx // 3 <= q_idx // 5",
        "kv_idx // n * n <= q_idx * 2 + c",
        "abs(q_idx - kv_idx) <= n",
        "where(h < 2, causal, full)",
    ],
    *[
        "where(flags[h], window(left, 0), causal)",
        "kv_idx < starts[h, c]",
        "kv_idx <= where(h < 2, q_idx, q_idx // 2)",
    ],
]


@pytest.mark.parametrize("text", EXACT)
@FEWER
@given(LENGTHS, LENGTHS, TILES, TILES, values())
def test_masks_in_use_are_exact(text, q_len, kv_len, block_m, block_n, given_values):
    given_values = given_values | {key: abs(given_values[key]) for key in ("left", "right")}
    found, ours, truth = check_sound(text, q_len, kv_len, block_m, block_n, given_values)
    assert not found.reasons
    assert (ours == truth).all(), f"\n{ours}\n\n{truth}"


@FEWER
@given(LENGTHS, LENGTHS, TILES, TILES, values())
def test_what_has_no_range_is_partial_over_the_rest(q_len, kv_len, block_m, block_n, given_values):
    causal = np.minimum(ranges_of("causal", block_m, block_n).classes(q_len, kv_len, {}), PARTIAL)
    for text, reason in (("document(ids)", "ids is read at kv_idx"), ("(kv_idx % stride == 0)", "repeats"), ("(bias[h] > 0.5)", "floats")):
        found, ours, _ = check_sound(f"causal & {text}", q_len, kv_len, block_m, block_n, given_values | {"stride": 5})
        assert (ours == causal).all()
        assert reason in found.reasons[0]


def test_loops_stay_few():
    counts = {
        "~full": 0,
        "causal & document(ids)": 1,
        "full": 2,
        "causal": 2,
        "prefix(n) | causal": 2,
        "kv_idx < lens[b]": 2,
        "window(300, 0)": 3,
    }
    counts |= {"window(left, right)": 3, "window(9, 0)": 2, "(kv_idx < 4) | window(300, 0)": 5}
    assert {text: len(ranges_of(text).loops) for text in counts} == counts


def test_beyond_three_ranges_the_last_are_one():
    text = " | ".join(f"((kv_idx >= {100 * i} + left) & (kv_idx < {100 * i + 20} + right))" for i in range(9))
    found, _, _ = check_sound(text, 90, 100, 16, 16, {"left": 0, "right": 0})
    assert "too many ranges" in found.reasons[0]


def test_uniform():
    same = ["full", "kv_idx < n", "~full", "kv_idx < lens[0]"]
    assert [text for text in [*same, "causal", "window(3, 0)", "kv_idx < lens[b]", "kv_idx < h"] if ranges_of(text).uniform] == same


def test_shares_json_and_text():
    found = ranges_of("causal", 2, 2)
    assert found.share(6, 6, {}) == {"empty": 3 / 9, "partial": 3 / 9, "full": 3 / 9}
    assert found.share(0, 6, {}) == {"empty": 0, "partial": 0, "full": 0}
    assert found.to_json()["loops"] == [{"begin": "0", "end": "tail", "masked": False}, {"begin": "tail", "end": "last", "masked": True}]
    assert found.to_json()["steps"]["keys_end"] == "max(0, kv_len - q_len + q_last + 1)".replace(
        "kv_len - q_len + q_last + 1", "kv_len + q_last - q_len + 1"
    )
    assert found.cuda().lines == (
        "const int q_last = min(q_begin + BLOCK_M, p.q_len) - 1;",
        "const int keys_end = max(0, p.kv_len - p.q_len + q_last + 1);",
        "const int full_end = max(0, p.kv_len - p.q_len + q_begin + 1);",
        "const int last = (keys_end + BLOCK_N - 1) / BLOCK_N;",
        "const int tail = full_end / BLOCK_N;",
    )
    assert found.cuda().loops == (("0", "tail", False), ("tail", "last", True))


def test_a_divisor_is_checked():
    found = ranges_of("chunk(n)")
    assert found.requires == ("n",)
    with pytest.raises(ValueError, match="n is 0, but it divides: give at least 1"):
        found.evaluate(8, 8, {"n": 0})


def test_equal_masks_give_equal_ranges():
    assert ranges_of("causal & window(left, 0)") == ranges_of("causal & window(left, 0)")
    assert len({ranges_of("causal"), ranges_of("causal"), ranges_of("full")}) == 2


# ------------------------------------------------------------------------------------------------------------------------- CUDA

HEADER = """\
#include <algorithm>
#include <cstdio>
using std::max; using std::min;
template <class T, int RANK> struct Array {
  const T* data; long long strides[RANK];
  template <class... Index> T operator()(Index... index) const {
    long long at = 0, axis = 0;
    ((at += index * strides[axis++]), ...);
    return data[at];
  }
};
struct Params {
  int q_len, kv_len, heads, batch, group, arg_left, arg_right, arg_n, arg_stride, arg_c;
  Array<int, 1> arg_lens; Array<int, 2> arg_starts; Array<bool, 1> arg_flags;
};
int floor_div(int a, int n) { return a / n - (a % n < 0); }
long long floor_div(long long a, long long n) { return a / n - (a % n < 0); }
"""
MAIN = """\
int main() {
  int which, q_begin, batch, head, kv_head, lens[2], starts[12], flags[4]; bool bits[4]; Params p;
  while (scanf("%d %d %d %d %d", &which, &q_begin, &batch, &head, &kv_head) == 5) {
    for (int* x : {&p.q_len, &p.kv_len, &p.arg_left, &p.arg_right, &p.arg_n, &p.arg_stride, &p.arg_c}) scanf("%d", x);
    for (int& x : lens) scanf("%d", &x);
    for (int& x : starts) scanf("%d", &x);
    for (int i = 0; i < 4; ++i) { scanf("%d", flags + i); bits[i] = flags[i]; }
    p.heads = 4, p.batch = 2, p.group = 2;
    p.arg_lens = {lens, {1}}, p.arg_starts = {starts, {3, 1}}, p.arg_flags = {bits, {1}};
    KERNELS[which](p, batch, head, kv_head, q_begin);
    puts("");
  }
}
"""


def function(i, found):
    text = found.cuda()
    body = [*text.lines, *(f'printf("%d %d ", {begin}, {end});' for begin, end, _ in text.loops)]
    sizes = f"constexpr int BLOCK_M = {found.block_m}, BLOCK_N = {found.block_n};"
    return "\n  ".join([f"void k{i}(const Params& p, int batch, int head, int kv_head, int q_begin) {{", sizes, *body]) + "\n}\n"


def at_tile(found, q_begin, q_len, kv_len, given_values):
    """The loops of one query tile; evaluate() would hold all of them."""
    known = {key if key in ("b", "h", "hk") else param(key): x for key, x in given_values.items()}
    known |= {"q_begin": q_begin, "q_len": q_len, "kv_len": kv_len, "BLOCK_M": found.block_m, "BLOCK_N": found.block_n}
    with np.errstate(over="raise"):
        for name, value in found.steps:
            known[name] = number(value, known)
            assert -(2**31) <= known[name] < 2**31
        return " ".join(f"{number(loop.begin, known)} {number(loop.end, known)}" for loop in found.loops)


def random_values(rng, top):
    big = 2**31 - 1
    given_values = {key: rng.choice([rng.randint(-9, 99), rng.randint(-big - 1, big)]) for key in ("left", "right", "c")}
    given_values |= {key: rng.choice([rng.randint(1, 99), rng.randint(1, big)]) for key in ("n", "stride")}
    given_values |= {"b": rng.randint(0, 1), "h": rng.randint(0, 3), "hk": rng.randint(0, 1)}
    reads = lambda count: np.array([rng.choice([rng.randint(-5, top), -big - 1, big]) for _ in range(count)])  # noqa: E731
    return given_values | {"lens": reads(2), "starts": reads(12).reshape(4, 3), "flags": np.array([rng.random() < 0.5 for _ in range(4)])}


def test_cuda_text_agrees_with_numpy(tmp_path):
    """Also at the longest lengths and any 32-bit values, with signed overflow trapped."""
    rng = random.Random(7)
    texts = [
        *EXACT,
        "kv_idx % n < q_len % stride",
        "kv_idx * left <= q_idx * right",
        "kv_idx * 5 < q_idx * kv_len",
        "kv_idx * n < c * q_idx",
    ]

    @settings(FEWER, max_examples=60, database=None, derandomize=True)
    @given(MASKS)
    def collect(text):
        texts.append(text)

    collect()
    found = []
    for text in texts:
        try:
            found.append(ranges_of(text, rng.choice([1, 5, 64, 128]), rng.choice([1, 7, 64, 96, 128])))
        except SpecError:
            continue
    table = f"void (*const KERNELS[])(const Params&, int, int, int, int) = {{{', '.join(f'k{i}' for i in range(len(found)))}}};\n"
    (tmp_path / "keys.cpp").write_text("".join([HEADER, *(function(i, x) for i, x in enumerate(found)), table, MAIN]))
    options = ["-std=c++17", "-O1", "-w", "-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error"]
    subprocess.run(["g++", *options, "-o", tmp_path / "keys", tmp_path / "keys.cpp"], check=True)
    lines, expected = [], []
    for i, x in enumerate(found):
        for trial in range(60):
            top = [70, 5000, 2**30][trial % 3]
            q_len, kv_len = rng.choice([rng.randint(1, top), top]), rng.choice([0, rng.randint(0, top), top])
            q_begin, given_values = rng.randrange(-(-q_len // x.block_m)) * x.block_m, random_values(rng, top)
            sent = [i, q_begin, *(given_values[key] for key in ("b", "h", "hk")), q_len, kv_len, *(given_values[key] for key in PARAMS)]
            sent += [int(value) for key in ("lens", "starts", "flags") for value in given_values[key].ravel()]
            lines.append(" ".join(map(str, sent)))
            expected.append(at_tile(x, q_begin, q_len, kv_len, given_values))
    output = subprocess.run([tmp_path / "keys"], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    assert len(found) > 80
    assert [line.strip() for line in output.splitlines()] == expected


# ------------------------------------------------------------------------------------------------------------------ hostile text

SUM = "(q_idx + kv_idx + b + h + hk + q_len + kv_len + n + c)"
HOSTILE = {
    "abs of abs": "abs(" * 25 + "kv_idx - n" + ")" * 25 + " < 3",
    "products of sums": " * ".join([SUM] * 40) + " < 1",
    "products of small quotients": " * ".join(f"((q_idx - c) // {2**29 + i})" for i in range(30)) + " < kv_idx",
    "where in where": "where(h < 1, " * 20 + "kv_idx" + ", q_idx)" * 20 + " < 3",
    "sums of where": " + ".join(f"where(h < {i}, kv_idx, {i})" for i in range(30)) + " < 3",
    "sums of max": " + ".join(f"max(h, {i} * b)" for i in range(30)) + " < kv_idx",
    "differences of max": " + ".join(f"max(h, {i} * b) - max(q_idx, {i} * n)" for i in range(15)) + " < kv_idx",
    "many ranges": " | ".join(f"((kv_idx > {i} * left) & (kv_idx < {i} * right))" for i in range(40)),
    "many unlike bounds": " & ".join(f"(kv_idx < {i} * left + {40 - i} * right)" for i in range(50)),
    "many unequal": " & ".join(f"(kv_idx != {i} * left + {i * i} * right)" for i in range(50)),
    "ors of ands": " & ".join(f"((kv_idx < left * {i}) | (kv_idx > right * {i}))" for i in range(1, 40)),
    "choices": "where(left < kv_idx, " * 12 + "causal" + ", kv_idx > n)" * 12,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_analysis_takes_bounded_time(text):
    mask = mask_of(text)
    start = time.process_time()
    found = analyse(mask, 64, 64, TENSORS)
    found.cuda()
    assert time.process_time() - start < 5
    assert len(found.loops) <= 3 * MAX_STRIPS


@pytest.mark.parametrize("module", [ranges, range_text], ids=lambda m: m.__name__)
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0
