"""Any spec's backward, any shape: what is emitted, under the race checker, against the float64 reference."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate_backward
from flashgen.plan import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_any_spec import MASKS, PARAMS, SCORES, SOFTMAXES, TENSORS
from tests.plan.any_spec import read
from tests.plan.gradients import given as arrays_of
from tests.plan.gradients import judge

ASKED = {"cap": {"default": 15.0, "grad": True}}


@st.composite
def backwards(draw):
    """A spec, and what is planned for: an architecture and the alignment of rows."""
    columns = st.integers(1, 12).map(lambda n: 8 * n)
    score, mask, softmax = draw(SCORES), draw(MASKS), draw(SOFTMAXES)
    fixed = draw(st.booleans())
    tensors = read(TENSORS, score, mask, softmax)
    asked = {name: how | {"grad": how["dtype"] == "float32" and not fixed} for name, how in tensors.items()}
    spec = Spec(
        head_dim={"qk": draw(columns), "v": draw(columns)},
        dtype=draw(st.sampled_from(["float16", "bfloat16"])),
        layout=draw(st.sampled_from(["bshd", "bhsd"])),
        score=score,
        mask=mask,
        softmax=softmax,
        params=read(PARAMS if fixed else PARAMS | ASKED, score, mask, softmax),
        tensors=asked,
        backward=True,
        deterministic=fixed,
    )
    return spec, draw(st.sampled_from(["sm_80", "sm_89", "sm_90"])), draw(st.sampled_from([0, 2, 4, 8]))


@settings(max_examples=3)
@given(backwards(), st.data())
def test_any_backward(planned, data):
    spec, arch, copy_bytes = planned
    program = plan_backward(spec, arch, copy_bytes)
    source = render(program)
    lengths, seed = st.integers(0, 150), data.draw(st.integers(0, 99))
    sizes = Sizes(batch=2, q_len=data.draw(lengths), kv_len=data.draw(lengths), heads=4, kv_heads=data.draw(st.sampled_from([1, 2, 4])))
    random = np.random.default_rng(seed)
    drawn = {
        "float32": lambda shape: 0.2 * random.standard_normal(shape).astype(np.float32),
        "int32": lambda shape: np.sort(random.integers(0, 60, shape).astype(np.int32)),
        "bool": lambda shape: random.random(shape) < 0.7,
    }
    values = {t.name: drawn[t.dtype](sizes.shape(t)) for t in spec.tensors}
    arrays = arrays_of(spec, 2, 4, sizes.kv_heads, sizes.q_len, sizes.kv_len, seed=seed, dlse=True, **values)
    judge(spec, emulate_backward(program, source, arrays, values, seed=seed), arrays, **values)
