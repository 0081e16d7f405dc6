"""The pieces of a call on arrays in host memory: each element of each output once, and the same attention as the whole."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.expr import lower
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.runtime import staging
from flashgen.runtime.staging import pieces
from flashgen.spec import Spec
from tests.plan.agreement import arrays

SLOPES = {"shape": ["hq"], "dtype": "float32"}
SPECS = (
    Spec(head_dim=8, dtype="float32", mask="causal"),
    Spec(head_dim={"qk": 16, "v": 8}, dtype="float32", mask="kv_idx <= q_idx + b", layout="bhsd"),
    Spec(head_dim=8, dtype="float32", mask="(kv_idx + h) % 3 < 2", outputs=["o", "lse"]),
    Spec(head_dim=8, dtype="float32", mask="causal", outputs=["o", "max_logit"]),
    Spec(head_dim=8, dtype="float32", score="s * slopes[h]", tensors={"slopes": SLOPES}, layout="bhsd"),
)


@given(
    spec=st.sampled_from(SPECS), batch=st.integers(1, 3), kv_heads=st.integers(1, 5), group=st.integers(1, 3), kibibytes=st.integers(1, 40)
)
@settings(max_examples=settings().max_examples // 4)
def test_pieces_give_the_whole(spec, batch, kv_heads, group, kibibytes):
    q, k, v = arrays(spec, batch, kv_heads * group, kv_heads, 20, 30)
    sizes, chosen = Sizes(batch, 20, 30, kv_heads * group, kv_heads), plan(spec, "host")
    values = {t.name: np.linspace(0.5, 1, sizes.heads, dtype=np.float32) for t in spec.tensors}
    want = {name: x for name, x in interpret(chosen, q, k, v, values).items() if name in spec.outputs}
    got = {name: np.full_like(x, np.nan) for name, x in want.items()}
    before, staging.PIECE_BYTES = staging.PIECE_BYTES, kibibytes << 10
    try:
        found = pieces(spec, chosen.expressions, sizes)
    finally:
        staging.PIECE_BYTES = before
    for piece in found:
        parts = interpret(chosen, *(piece.of(name, x, spec, sizes) for name, x in zip("qkv", (q, k, v), strict=True)), values)
        for name, x in got.items():
            target = piece.of(name, x, spec, sizes)
            assert np.isnan(target).all(), "written twice"
            target[...] = parts[name]
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-5, atol=1e-6)


def test_what_is_read_by_its_number_is_not_divided():
    sizes = Sizes(batch=4, q_len=32768, kv_len=32768, heads=8, kv_heads=8)
    divided = [
        {(len({p.batch.start for p in found}), len({p.kv_heads.start for p in found})) for found in [pieces(s, lower(s), sizes)]}
        for s in SPECS
    ]
    assert divided == [{(2, 8)}, {(1, 8)}, {(4, 1)}, {(1, 8)}, {(4, 1)}]
