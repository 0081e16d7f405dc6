"""Specs composed from the grammar of the language: any mask with any score, softmax, shape, dtype and outputs; and calls of them."""

import re
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from flashgen.bench import hostile
from flashgen.errors import SpecError
from flashgen.expr import lower
from flashgen.plan.geometry import Sizes
from flashgen.plan.shares import refusal
from flashgen.spec import Spec
from tests.expr.grammar import conditions, ints

PARAMS = {"n": 3, "m": -2, "c": 2.5, "e": -0.25}
BOUNDED = {"n": {"default": 3, "min": 0, "max": 7}, "m": {"default": -2, "max": 5}, "c": {"default": 2.5, "min": 0.5}}
TENSORS = {
    "slopes": {"shape": ["hq"], "dtype": "float32"},
    "lens": {"shape": ["b"], "dtype": "int32"},
    "ids": {"shape": ["b", "kv_len"], "dtype": "int32"},
    "bias": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": "float32"},  # its axes may be broadcast: stride 0
    "table": {"shape": [5, "hq"], "dtype": "float32"},
    "flags": {"shape": ["hq", "kv_len"], "dtype": "bool"},
    "relative": {"shape": ["hq", "2 * kv_len - 1"], "dtype": "float16"},
    "free": {"shape": ["entries", 1], "dtype": "float32"},
    "gate": {"shape": ["b", "hk", "kv_len"], "dtype": "float32"},
    "stamps": {"shape": ["b", "kv_len"], "dtype": "int64"},
    "now": {"shape": ["b"], "dtype": "int64"},
    "gates": {"shape": ["b", "q_len", "hq"], "dtype": "float16"},
    "half": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": "bfloat16"},
}
LOOSE = 5e-3  # of logarithms: a score may be a multiple of what is approximated
LENGTHS = (0, 1, 2, 31, 33, 63, 64, 65, 127, 128, 129)
NUMBERS = [
    "c",
    "e",
    "slopes[h]",
    "0.1",
    "3.0",
    "0.1 * kv_idx",
    "(kv_idx / 3.0)",
    "(q_idx / c)",
    "(e * q_idx + c)",
    "(kv_len / 7.0)",
    "lens[b]",
]
NUMBERS += ["(0.7 * (q_idx - kv_idx) - 0.1)", "sqrt(kv_idx)", "bias[b, h, q_idx, kv_idx]", "table[b % 5, h]", "floor(kv_idx / 10.0)"]
NUMBERS += ["sum(i, 3, table[i, h] * e)"]
READS = ["slopes[h]", "bias[b, h, q_idx, kv_idx]", "0.1 * (kv_idx - q_idx)", "c", "-1.5", "log(1.0 + kv_len)"]
READS += [
    "relative[h, q_idx - kv_idx + kv_len - 1]",
    "free[(kv_idx - q_idx) // 3, h]",
    "half[b, h, q_idx, kv_idx]",
    "sum(i, 4, table[i, h] * (kv_idx - i))",
]
PLACES: list[dict[str, Any]] = [  # where sequences lie, and which blocks of keys are listed
    {"cache": "contiguous"},
    *[{"layout": "thd"}, {"layout": "thd", "cache": {"page": 4}}] * 3,  # often: many a spec is refused then
    {"cache": {"page": 16}},
    {"blocks": {"m": 32, "n": 16, "lists": "idx"}},
    {"blocks": {"m": 128, "n": 64, "lists": "idx", "kind": "bitmap"}, "cache": "contiguous"},
    {"blocks": {"m": 16, "n": 32, "lists": "idx", "heads": "hk"}, "cache": {"page": 32}},
    {"cache": {"page": 8}, "split": "auto"},
    {"cache": "contiguous", "split": 3},
]
TURNS = 8  # columns that tensors of angles turn
EMBEDDING = {
    "wq": {"shape": ["dim"], "dtype": "float32"},  # dim: head_dim.qk
    "wk": {"shape": ["dim"], "dtype": "float16"},
    "tq": {"shape": ["b", "q_len", TURNS // 2], "dtype": "float32"},
    "tk": {"shape": ["kv_len", TURNS // 2], "dtype": "float32"},
}
LONG = ["stamps[b, kv_idx] <= now[b]", "stamps[b, kv_idx] != now[b]", "bit(stamps[b, kv_idx], 40 - q_idx % 9)"]
OUTPUTS = ["o * slopes[h]", "o * sigmoid(gates[b, q_idx, h]) + c", "where(q_idx < n, o, 0.1 * v_idx)"]
WEIGHTS = ["gate[b, hk, kv_idx]", "1 - c * gate[b, hk, kv_idx] / (1 + kv_idx)", "where(kv_idx < q_idx, 0.5, slopes[h])"]


def read(declared: dict[str, Any], *texts: object) -> dict[str, Any]:
    """The params or tensors that some of the texts name."""
    named = {name for text in texts for name in re.findall(r"[A-Za-z]\w*", str(text))}
    return {name: how for name, how in declared.items() if name in named}


def numbers(depth: int) -> st.SearchStrategy[str]:
    """Floats without s, exact in float32 step by step."""
    leaves = st.sampled_from(NUMBERS)
    if depth == 0:
        return leaves
    x = numbers(depth - 1)
    return st.one_of(
        leaves,
        st.builds("({} {} {})".format, x, st.sampled_from("+-*/"), x),
        st.builds("{}({})".format, st.sampled_from(["floor", "abs", "-", "sqrt"]), x),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), x, x),
        st.builds("where({} > {}, {}, {})".format, leaves, leaves, x, x),
    )


DECIDED = st.builds("({} {} {})".format, numbers(2), st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), numbers(2))


def scores(depth: int, deciding: bool) -> st.SearchStrategy[str]:
    """Continuous in s, so that what rounds differently differs little."""
    if depth == 0:
        return st.just("s")
    x = scores(depth - 1, deciding)
    floors = st.builds("({} + 0.25 * min(max(floor({}), -40.0), 40.0))".format, x, numbers(2))
    return st.one_of(
        *([floors, st.builds("where({}, {}, {})".format, DECIDED, x, x)] if deciding else []),
        st.just("s"),
        st.builds("({} + {})".format, x, st.sampled_from(READS)),
        st.builds("({} * {})".format, x, st.sampled_from(["e", "0.5", "(1 + abs(slopes[h]))", "max(c, 1)"])),
        st.builds("c * tanh({} / c)".format, x),
        st.builds("{}({})".format, st.sampled_from(["sigmoid", "abs", "-"]), x),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), x, x),
        st.builds("where({}, {}, {})".format, conditions(1), x, x),
        st.builds("({} + table[{} + hk, h])".format, x, ints(1)),
    )


@st.composite
def embeddings(draw, columns, of):
    """A norm, a rotary embedding, both or none, of these roles, and their tensors."""
    sides = {"q": "query", "k": "key"}
    learned, angles = ({sides[role]: letter + role for role in of} for letter in "wt")
    turned = [{"kind": "interleaved", "base": 100.0}, {"kind": "halves", "columns": TURNS, "base": 10.0}]
    turned += [{"kind": "halves", "columns": TURNS, "angles": angles}]
    norm, rotary = draw(st.sampled_from([None, {}, {"eps": 1e-5} | learned])), draw(st.sampled_from([None, *turned]))
    said = {key: value | {"of": of} for key, value in {"norm": norm, "rotary": rotary}.items() if value is not None}
    tensors = read(EMBEDDING, said)
    return said, {name: how | {"shape": [columns if axis == "dim" else axis for axis in how["shape"]]} for name, how in tensors.items()}


@st.composite
def specs(draw, dtypes=("float32", "float16", "bfloat16"), step=1, deciding=True, words=False):
    """Head dims are multiples of `step`. `deciding`: floats may decide what a key weighs. `words`: places of sequences, lists of blocks,
    weights, embeddings, lets, int64 and a dtype of o too, which not every kernel serves."""
    dims = st.integers(1, 12).map(lambda n: step * n)
    softmax = draw(st.sampled_from([None, None, "off_by_one", {"sink": "slopes[h] + e"}, "none"]))
    score = draw(scores(2, deciding))
    others = draw(st.sets(st.sampled_from(["lse", "max", "max_logit", "entropy"]))) if softmax != "none" else ()
    mask = draw(conditions(2) | DECIDED if deciding else conditions(2))
    said = {
        "head_dim": {"qk": draw(dims), "v": draw(dims)},
        "dtype": draw(st.sampled_from(dtypes)),
        "layout": draw(st.sampled_from(["bshd", "bhsd"])),
        "cache": draw(st.sampled_from([None, None, "contiguous"])),
        "scale": draw(st.sampled_from([None, "0.3", "-0.5", "0", "1/sqrt(d)"])),
        "score": f"sigmoid({score})" if softmax == "none" else score,
        "mask": mask,
        "softmax": softmax,
        "outputs": ["o", *sorted(others)],
    }
    more = {}
    if words:
        mask = draw(st.sampled_from([mask, mask, *(f"({mask}) & ({long})" for long in LONG)]))
        said |= {"mask": mask} | draw(st.just({}) | st.sampled_from(PLACES))
        of = ["q"] if said["cache"] else draw(st.sampled_from([["q"], ["k"], ["q", "k"]]))
        embedding, more = draw(st.just(({}, {})) | embeddings(said["head_dim"]["qk"], of))
        said |= embedding | draw(st.sampled_from([{}, {}, {"let": {"seen": mask}, "mask": "seen"}]))
        said |= draw(st.sampled_from([{}, {}, *({"weight": weight} for weight in WEIGHTS)]))
        said |= draw(st.sampled_from([{}, {}, *({"output": output} for output in OUTPUTS)]))
        said |= draw(st.sampled_from([{}, {"outputs": [*said["outputs"], "o_raw"]}])) if "output" in said else {}
        said |= draw(st.sampled_from([{}, {}, {"out_dtype": "float32"}]))
    texts = score, mask, softmax, said.get("weight", ""), said.get("output", "")
    said |= {"params": read(PARAMS | draw(st.sampled_from([{}, BOUNDED])), *texts), "tensors": read(TENSORS, *texts) | more}
    try:
        lower(spec := Spec(**said))
    except SpecError:
        if words:  # as of packed sequences a tensor has one length
            reject()
        raise
    if isinstance(spec.split, int) and refusal(spec):
        reject()
    return spec


def sizes_of(spec, batch, q_len, kv_len, heads, kv_heads):
    """Sizes of a call; of keys in pages, those that whole pages have place for."""
    if not spec.page:
        return Sizes(batch, q_len, kv_len, heads, kv_heads)
    columns = -(-kv_len // spec.page)
    return Sizes(batch, q_len, columns * spec.page, heads, kv_heads, pages=batch * columns, page=spec.page)


@st.composite
def calls(draw, spec, longest, aligned=True):
    """q, k, v, and the params and tensors by name, hostile in some ways."""
    lengths = st.integers(0, longest) | st.sampled_from([n for n in LENGTHS if n <= longest])
    batch, kv_heads, group = (draw(st.integers(1, 2)) for _ in range(3))
    sizes = sizes_of(spec, batch, draw(lengths), draw(lengths), kv_heads * group, kv_heads)
    ways = draw(st.sets(st.sampled_from(list(hostile.KINDS))))
    q, k, v, values = hostile.draw(spec, sizes, ways, np.random.RandomState(draw(st.integers(0, 999))), aligned)
    return (q, k, v), values
