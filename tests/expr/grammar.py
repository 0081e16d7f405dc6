"""Random expressions of the language, as text."""

import re
from typing import Any

from hypothesis import strategies as st

from flashgen.expr import Scope
from flashgen.expr.language.scope import INDICES
from flashgen.spec import Param, Tensor

PARAMS = (Param("n", 3), Param("m", -2), Param("c", 2.5), Param("e", -0.25))
TENSORS = (
    Tensor("slopes", ("hq",), "float32"),
    Tensor("lens", ("b",), "int32"),
    Tensor("ids", ("b", "kv_len"), "int32"),
    Tensor("bias", ("hk", "q_len", "kv_len"), "float32"),
    Tensor("table", (5, "hq"), "float32"),
    Tensor("flags", ("hq", "kv_len"), "bool"),
)
TYPES = {"int32": "int", "float32": "float", "bool": "bool"}
SCOPE = Scope({p.name: p.type for p in PARAMS}, {t.name: (TYPES[t.dtype], t.shape) for t in TENSORS}, {**INDICES, "s": "float"})


def declared(*texts: str) -> dict[str, dict[str, Any]]:
    """The params and tensors that some of the texts name, as a spec has them."""
    named = {name for text in texts for name in re.findall(r"[A-Za-z]\w*", text)}
    tensors = {t.name: {"shape": list(t.shape), "dtype": t.dtype} for t in TENSORS if t.name in named}
    return {"params": {p.name: p.default for p in PARAMS if p.name in named}, "tensors": tensors}


INT_NAMES = ["b", "h", "hk", "q_idx", "kv_idx", "q_len", "kv_len", "n", "m"]
MASKS = ["causal", "causal_top_left", "window(n, 0)", "window(2, -1)", "prefix(n)", "chunk(3)", "chunk(n)", "document(ids)"]

# One for each rule of solving, clamping, folding and printing: what chance may miss.
CORNER_MASKS = [
    "2 * kv_idx >= q_idx",
    "3 * kv_idx > n - q_idx",
    "q_idx - 2 * kv_idx >= m",
    "5 <= 3 * kv_idx + 1",
    "2 * kv_idx == q_idx",
    "2 * kv_idx != q_idx",
    "kv_idx != q_idx - 1",
    "(kv_idx - 3) // 2 == (q_idx - n) // 2",
    "(kv_idx - q_idx) // n >= m",
    "(kv_idx - q_idx) % n == 1",
    "(q_idx - 2 * kv_idx) % 3 != 2",
    "kv_idx % n == q_idx % 2",
    "(kv_idx + q_idx) % 3 == 5",
    "(kv_idx // 2 + q_idx // 3) % n < 2",
    "(q_idx - kv_idx // 3) % n == h",
    "(q_idx - kv_idx) // n % 2 == 0",
    "kv_idx % kv_len % (q_idx + 1) == 0",
    "abs(kv_idx - q_idx) > 2",
    "~(abs(2 * kv_idx - q_idx) <= n)",
    "max(kv_idx, q_idx) < 5",
    "max(kv_idx, q_idx) >= 4",
    "min(kv_idx, q_idx) <= 2",
    "min(kv_idx - 1, q_idx) > 2",
    "(q_idx == 0) | causal",
    "(q_idx == 0) | (kv_idx >= q_idx)",
    "(q_idx < lens[b]) & (kv_idx < lens[b])",
    "(h < 2) & (kv_idx >= 3)",
    "(h < 2) & flags[h, kv_idx]",
    "(h < 2) | flags[h, kv_idx] & causal",
    "where(h < 2, causal, window(n, 0))",
    "(kv_idx < 2) | window(n, 0) | (kv_idx > 8)",
    "h * kv_idx < q_idx",
    "ids[b, kv_idx - 4] == ids[b, kv_idx + 4]",
    "0.5 * kv_idx < e + q_idx",
    "kv_idx < q_idx + int(c * h)",
    "int(e * kv_idx) == round(e * q_idx)",
    "full & ~full",
    "(kv_idx < kv_len - q_len) | bit(ids[b, q_idx], kv_idx - kv_len + q_len)",
    "~bit(ids[b, kv_idx], q_idx - 2) & causal",
    "causal & ((q_idx + kv_len - q_len - kv_idx) % n == 0)",
    "causal & (window(2, 0) | (kv_idx % 4 == 3))",
]
CORNER_SCORES = [
    "s * (c - (e - slopes[h])) + c / (e * 2) / (c / slopes[h])",
    "-(-s - (-e - (s - kv_idx)))",
    "table[q_idx - kv_idx, h] + s * table[kv_len - (q_len - h), h - 2] - table[4, h + 9]",
    "bias[h, kv_idx - 3, q_idx + 3] * (s - floor(s / c) * c)",
    "where((s > 0) & ~(s > c) | (h < 1), s, where(s > c, c, 0))",
    "where(s > 0, where(causal, 1, s), 2) * 2 - where(causal, s, -s)",
    "log(1 + exp(s)) - log(sqrt(abs(e))) + exp2(e * s) * exp(e)",
    "sigmoid(s) * sigmoid(e) + sigmoid(bias[hk, q_idx, 0]) * tanh(q_idx * 0.1)",
    "min(s, max(e, s * s)) + max(q_idx, kv_idx) * min(e, c)",
    "(s + 1) * (s - 1) / (1 + s * s) + (kv_idx * kv_idx - q_idx * q_idx) // 3",
    "c * tanh(s / c) + c * tanh(s / c) * e",
    "gelu(s) - silu(e * s) + softplus(s) * erf(c)",
    "sin(s) * cos(0.25 * kv_idx) + (1 + s ** 2) ** -0.5 + c ** e",
    "table[int(4 * sigmoid(s)), h] + round(e * kv_idx) + round(c * s)",
    "s + (kv_idx - q_idx) * (kv_idx + q_idx) * e",
    "s * (kv_idx + 1) / (q_idx + 1)",
    "s + slopes[h] * (kv_idx - q_idx) + table[q_idx, h]",
    "c * (tanh(s) + e * (kv_idx - q_idx)) - n",
    "abs(s) + abs(kv_idx - q_idx) + floor(-e * kv_idx)",
    "s + (kv_idx - q_idx) // 3 * e + (kv_idx * 3 + 1) // n - (q_idx - kv_idx) % n",
    "c",
    "0 * s",
]


def ints(depth: int) -> st.SearchStrategy[str]:
    leaves = st.one_of(st.sampled_from(INT_NAMES), st.sampled_from(["kv_idx", "q_idx"]), st.integers(0, 5).map(str))
    if depth == 0:
        return leaves
    x = ints(depth - 1)
    return st.one_of(
        leaves,
        st.builds("({} {} {})".format, x, st.sampled_from("+-"), x),
        st.builds("({} * {})".format, leaves, st.sampled_from(["2", "3", "h", "n", "kv_idx", "(0-1)"])),
        st.builds("({} {} {})".format, x, st.sampled_from(["//", "%"]), st.sampled_from(["1", "2", "3", "n", "kv_len", "max(1, m)"])),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), x, x),
        st.builds("abs({})".format, x),
        st.builds("(-{})".format, x),
        st.builds("where({}, {}, {})".format, conditions(depth - 1, s=False), x, x),
        st.builds("ids[{}, {} + 1]".format, st.sampled_from(["b", "h % 2"]), x),  # no index alone: an axis would have to be its extent
        st.just("lens[b]"),
        st.builds("int({})".format, st.sampled_from(["c * kv_idx", "e * q_idx", "c * n - h", "round(c * h) / 2"])),
    )


def floats(depth: int, s: bool = True) -> st.SearchStrategy[str]:
    leaves = st.sampled_from([*(["s"] * 4 if s else []), "c", "e", "0.5", "-1.5", "slopes[h]", "bias[hk, q_idx, kv_idx]", "2", "kv_idx"])
    if depth == 0:
        return leaves
    x = floats(depth - 1, s)
    return st.one_of(
        leaves,
        st.builds("({} {} {})".format, x, st.sampled_from("+-*"), x),
        st.builds("({} / {})".format, x, st.sampled_from(["c", "e", "4", "kv_len", "(1 + abs(s))" if s else "2"])),
        st.builds("(e * ({}))".format, ints(depth - 1)),
        st.builds(
            "{}({})".format, st.sampled_from(["tanh", "sigmoid", "floor", "abs", "-", "erf", "round", "silu", "gelu", "softplus"]), x
        ),
        st.builds("{}({})".format, st.sampled_from(["sin", "cos"]), floats(0, s)),
        st.builds("({}) ** 2".format, floats(0, s)),
        st.builds("(1.0 + abs({})) ** {}".format, floats(0, s), st.sampled_from(["c", "-1.5", "n"])),
        st.builds("{}(-abs({}))".format, st.sampled_from(["exp", "exp2"]), x),
        st.builds("{}(1 + abs({}))".format, st.sampled_from(["log", "sqrt"]), x),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), x, x),
        st.builds("where({}, {}, {})".format, conditions(depth - 1, s), x, x),
        st.builds("table[{} + hk, h]".format, ints(depth - 1)),
    )


def conditions(depth: int, s: bool = False) -> st.SearchStrategy[str]:
    compared = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    leaves = st.one_of(st.builds("({} {} {})".format, ints(0), compared, ints(0)), st.sampled_from(["True", "flags[h, kv_idx]", *MASKS]))
    if depth == 0:
        return leaves
    x = conditions(depth - 1, s)
    return st.one_of(
        leaves,
        st.builds("({} {} {})".format, ints(depth - 1), compared, ints(depth - 1)),
        st.builds("({} {} {})".format, x, st.sampled_from("&|"), x),
        st.builds("(~{})".format, x),
        st.builds("bit({}, {})".format, ints(depth - 1), ints(depth - 1)),
        st.builds("where({}, {}, {})".format, x, x, x),
        *([st.builds("({} > {})".format, floats(0), st.sampled_from(["0.25", "c"]))] if s else []),
    )
