"""Any spec's backward, any shape: what is emitted, under the race checker, against the float64 reference."""

from dataclasses import replace

import numpy as np
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from flashgen.bench import hostile
from flashgen.emulate import emulate_backward
from flashgen.errors import CallError, PlanError, SpecError
from flashgen.expr.meaning.bounds import bounds
from flashgen.expr.meaning.reference_backward import UNKNOWN
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_any_spec import MASKS, PARAMS, SCORES, SOFTMAXES, TENSORS
from tests.plan.any_spec import embeddings, read
from tests.plan.gradients import completed, judge

ASKED = {"cap": {"default": 15.0, "grad": True}}
GATES = {"gate": {"shape": ["b", "hk", "kv_len"], "dtype": "float32"}, "gates": {"shape": ["b", "q_len", "hq"], "dtype": "float32"}}
WEIGHTS = ["gate[b, hk, kv_idx]", "1 + 0.1 * slopes[h] * (kv_idx - q_idx)", "where(kv_idx < q_idx, bias[h, q_idx, kv_idx], cap / 20)"]

OUTPUTS = ["o * slopes[h]", "cap * tanh(o / cap)", "o * gates[b, q_idx, h] + 0.1 * v_idx", "where(q_idx % 2 == 0, o * abs(o), o)"]


@st.composite
def backwards(draw):
    """A spec, and what is planned for: an architecture and the alignment of rows."""
    columns = st.integers(1, 12).map(lambda n: 8 * n) | st.sampled_from([128, 136, 256])
    score, mask, softmax, weight = draw(SCORES), draw(MASKS), draw(SOFTMAXES), draw(st.none() | st.sampled_from(WEIGHTS))
    fixed, output = draw(st.booleans()), draw(st.none() | st.sampled_from(OUTPUTS))
    tensors = read(TENSORS | GATES, score, mask, softmax, weight, output)
    asked = {name: how | {"grad": how["dtype"] == "float32"} for name, how in tensors.items()}
    dims = {"qk": draw(columns), "v": draw(columns)}
    embedding, more = draw(st.just(({}, {})) | embeddings(dims["qk"], draw(st.sampled_from([["q"], ["k"], ["q", "k"]]))))
    asked |= {name: how | {"grad": name.startswith("w")} for name, how in more.items()}  # learned columns, not angles
    said = embedding | {
        "head_dim": dims,
        "dtype": draw(st.sampled_from(["float16", "bfloat16"])),
        "layout": draw(st.sampled_from(["bshd", "bhsd", "thd"])),
        "score": score,
        "mask": mask,
        "softmax": softmax,
        "weight": weight,
        "output": output,
        "params": read(PARAMS | ASKED, score, mask, softmax, weight, output),
        "tensors": asked,
        "backward": True,
        "deterministic": fixed,
        "out_dtype": draw(st.sampled_from([None, None, "float16", "bfloat16", "float32"])),
    }
    try:
        spec = Spec(**said)
    except SpecError:  # of packed sequences a tensor has one length
        reject()
    return spec, draw(st.sampled_from(["sm_80", "sm_89", "sm_90", "sm_90a"])), draw(st.sampled_from([0, 0, 2, 4, 8]))


def drawn(spec, sizes, seed, kinds=(), aligned=True):
    """Arrays and values of a call, hostile in the ways of `kinds`. Rows whose lse is so large that they have no part have zeros in do.

    None where others have weights that float32 does not know, as of 1e9 * (kv_idx - q_idx): they may be infinite.
    """
    q, k, v, values = hostile.draw(spec, sizes, kinds, np.random.RandomState(seed), aligned)
    values = {name: _gentle(x) if np.asarray(x).dtype == np.float32 else x for name, x in values.items()}
    given = completed(spec, q, k, v, seed=seed, dlse=True, **values)
    between = bounds(spec, q, k, v, **values)
    if given.lse is None:
        return None if any((low != high).any() for low, high in between.values()) else (given, values)
    far, (low, high) = np.abs(given.lse) >= UNKNOWN, between["lse"]
    if (~far & (low != high)).any():  # those of NaN too
        return None
    rows = spec.order.given(spec.order.expanded(far)[..., None].transpose(spec.order.from_heads_first))
    return replace(given, do=np.where(rows, 0, given.do).astype(given.do.dtype)), values


def _gentle(x):
    """Numbers of a size at which gradients are known, but for hostile ones; none of +inf, which makes a row NaN, and so all keys."""
    with np.errstate(over="ignore"):
        return np.where(x == np.inf, np.float32(1e9), np.where(np.abs(x) < 100, np.float32(0.2) * x, x))


@settings(max_examples=3)
@given(backwards(), st.data())
def test_any_backward(planned, data):
    spec, arch, copy_bytes = planned
    try:
        program = plan_backward(spec, arch, copy_bytes, head_shares=data.draw(st.sampled_from([1, 1, 2])))
    except PlanError:
        reject()
    lengths, seed = st.integers(0, 150), data.draw(st.integers(0, 99))
    sizes = Sizes(batch=2, q_len=data.draw(lengths), kv_len=data.draw(lengths), heads=4, kv_heads=data.draw(st.sampled_from([1, 2, 4])))
    call = drawn(spec, sizes, seed, data.draw(st.lists(st.sampled_from([x for x in hostile.KINDS if x != "views"]), max_size=2)))
    if not call:
        reject()
    arrays, values = call
    try:
        found = emulate_backward(program, render(program), arrays, values, seed=seed)
    except CallError as error:
        if not spec.deterministic or "in any order" not in str(error):  # of a tensor over all pairs that heads or sequences share
            raise
        reject()
    judge(spec, found, arrays, **values)
