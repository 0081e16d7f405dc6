"""Masks as text for the tests of their ranges: random ones, those in use, and what they mean by Python itself."""

import re

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from flashgen.errors import Position
from flashgen.expr import Scope, analyse, parse
from flashgen.expr.tiles.ranges import EMPTY, FULL, PARTIAL, row_ranges
from flashgen.spec import Tensor

RELAXED = settings(suppress_health_check=list(HealthCheck))
MANY, FEW = (settings(RELAXED, max_examples=int(RELAXED.max_examples * share)) for share in (4, 0.25))

PARAMS = ("left", "right", "n", "stride", "c")
TENSORS = (
    Tensor("lens", ("b",), "int32"),
    Tensor("starts", ("hq", 3), "int32"),
    Tensor("ids", ("b", "kv_len"), "int32"),
    Tensor("stamps", ("b", "kv_len"), "int64"),
    Tensor("bits", ("b", "kv_len"), "bool"),
    Tensor("flags", ("hq",), "bool"),
    Tensor("bias", ("hq",), "float32"),
)
TYPES = {"int32": "int", "int64": "long long", "bool": "bool", "float32": "float"}
SCOPE = Scope({**dict.fromkeys(PARAMS, "int"), "slope": "float"}, {t.name: (TYPES[t.dtype], t.shape) for t in TENSORS})


def split(text):
    """Its phrases, between semicolons."""
    return [phrase.strip() for phrase in text.split(";")]


# Their tiles are classified without loss.
EXACT = split(
    """full; causal; causal_top_left; window(left, right); window(17, 0); window(left, -1); prefix(n); chunk(n); chunk(16); ~full;
    ~causal; kv_idx < lens[b]; ~chunk(n); ~prefix(n); ~window(left, right); ~(~window(left, right)); kv_idx >= 5; causal & (kv_idx >= n);
    causal & (kv_idx < lens[b]); (q_idx < lens[b]) & (kv_idx < lens[b]); prefix(n) | causal; prefix(n) | (causal & (kv_idx < lens[b]));
    causal & window(left, 0); causal_top_left & (kv_idx > q_idx - n); prefix(n) | window(left, right); (kv_idx < 4) | window(left, right);
    (kv_idx < 4) | window(9, 3); causal & ((kv_idx < 4) | window(left, 0)); causal & chunk(n); (kv_idx < 3) | (kv_idx >= 9);
    q_idx // n == kv_idx // n; 2 * kv_idx <= q_idx; kv_idx // 3 <= q_idx // 5; kv_idx // n * n <= q_idx * 2 + c;
    abs(q_idx - kv_idx) <= n; where(h < 2, causal, full); where(flags[h], window(left, 0), causal); kv_idx < starts[h, c];
    kv_idx <= where(h < 2, q_idx, q_idx // 2)"""
)

# Compare what tensors hold at rows and at keys.
PAIRED = split(
    """document(ids); ~document(ids); ids[b, kv_idx] <= ids[b, q_idx]; bits[b, kv_idx]; ~bits[b, q_idx]; ids[b, kv_idx] == lens[b];
    ids[b, kv_idx] <= max(lens[b], ids[b, q_idx]); ids[b, kv_idx] < lens[lens[b]] * c; document(stamps); ~document(stamps);
    stamps[b, kv_idx] <= stamps[b, q_idx]; stamps[b, q_idx] <= stamps[b, kv_idx]; stamps[b, kv_idx] < stamps[b, q_idx];
    stamps[b, kv_idx] > ids[b, q_idx] + c; stamps[b, kv_idx] != -1; stamps[b, 0] >= kv_idx; stamps[b, q_idx] < lens[b]"""
)


def mask_of(text):
    return parse(text, SCOPE, Position("<mask>", 1, 1, text))


def ranges_of(text, block_m=128, block_n=128):
    return analyse(mask_of(text), block_m, block_n, TENSORS)


def rows_of(text, block_m=128, block_n=128):
    return row_ranges(mask_of(text), block_m, block_n, TENSORS)


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
    words = {
        "q_idx": rows,
        "kv_idx": keys,
        "q_len": np.int64(q_len),
        "kv_len": np.int64(kv_len),
        "where": np.where,
        "min": np.minimum,
        "max": np.maximum,
    }
    words |= {"abs": np.abs, "full": np.True_, "causal": keys <= position, "causal_top_left": keys <= rows, "prefix": lambda n: keys < n}
    words |= {"chunk": lambda n: keys // n == position // n, "document": lambda ids: ids[values["b"], keys] == ids[values["b"], position]}
    words["bit"] = lambda x, i: (i >= 0) & (i < 32) & (x >> np.clip(i, 0, 31) & 1 == 1)
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
    stamps = np.sort(rng.choice([-(2**63), -1, 3, 60, 2**32 + 3, 2**63 - 1], (2, 150)), axis=1)
    return Values(found | {"ids": np.sort(rng.integers(0, 4, (2, 150)), axis=1), "stamps": stamps, "bits": rng.random((2, 150)) < 0.7})


def joined(*strategies, form="({} {} {})"):
    return st.tuples(*strategies).map(lambda t: form.format(*t))


def one_of(text):
    return st.sampled_from(split(text))


LENGTHS, TILES = st.integers(0, 100), st.integers(1, 24)
ORDERS = one_of("<; <=; >; >=; ==; !=")
DIVISORS = one_of("n; stride; 1; 2; 3; 7; 16")
NAMES = one_of("q_idx; kv_idx") | one_of("q_len; kv_len; left; right; n; c; b; h; lens[b]; lens[h]; starts[h, c]; lens[b - 1] + hk")
LEAVES = NAMES | st.integers(-9, 40).map(lambda x: f"({x})" if x < 0 else str(x))
INTEGERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        joined(inner, st.sampled_from("+-*"), inner),
        joined(inner, one_of("//; %"), DIVISORS),
        joined(one_of("min; max"), inner, inner, form="{}({}, {})"),
        joined(inner, ORDERS, inner, inner, inner, form="where({} {} {}, {}, {})"),
        inner.map(lambda x: f"abs({x})"),
        inner.map(lambda x: f"(-{x})"),
    ),
    max_leaves=5,
)
AFFINES = joined(st.integers(-3, 3), st.integers(-3, 3), LEAVES, form="{} * q_idx + {} * kv_idx + {}")
COMPARISONS = joined(AFFINES | INTEGERS, ORDERS, AFFINES | INTEGERS)
NAMED = one_of(
    "full; causal; causal_top_left; window(left, right); window(c, 0); window(9, 3); prefix(n); chunk(n); chunk(16); prefix(lens[b])"
)
UNKNOWN = one_of(
    """document(ids); bits[b, kv_idx]; flags[h]; (slope * q_idx < 3.5); (bias[h] > 0.5); (ids[b, kv_idx] <= q_idx); (ids[b, q_idx] > 1);
    ((kv_idx >= c) & (kv_idx < c + 4))"""
)
MASKS = st.recursive(
    COMPARISONS | NAMED | UNKNOWN,
    lambda inner: st.one_of(
        joined(inner, st.sampled_from("&|"), inner),
        inner.map(lambda x: f"~{x}"),
        joined(inner, inner, inner, form="where({}, {}, {})"),
    ),
    max_leaves=6,
)
