"""NumPy arrays through the GPU, some heads at a time."""

import numpy as np
import pytest

import flashgen
from flashgen.expr import lower
from flashgen.plan.geometry import Sizes
from flashgen.runtime import staging
from flashgen.spec import Spec
from tests.gpu.judge import judge
from tests.plan.agreement import arrays


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_pieces(dtype, layout, monkeypatch):
    monkeypatch.setattr(staging, "PIECE_BYTES", 64 << 10)
    spec = Spec(head_dim=64, dtype=dtype, mask="causal", layout=layout, outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, 8, 4, 200, 333)
    assert len(staging.pieces(spec, lower(spec), Sizes(2, 200, 333, 8, 4))) == 8
    out = (np.full_like(q, np.nan), np.full((2, 8, 200), np.nan, np.float32))
    got = flashgen.compile(spec)(q, k, v, out=out)
    assert got[0] is out[0]
    judge(spec, got, q, k, v)


def test_heads_that_are_read_by_their_number(monkeypatch):
    monkeypatch.setattr(staging, "PIECE_BYTES", 64 << 10)
    slopes = {"slopes": {"shape": ["hq"], "dtype": "float32"}}
    spec = Spec(head_dim=64, dtype="bfloat16", score="s + slopes[h] * (kv_idx - q_idx)", tensors=slopes, outputs=["o", "lse"])
    q, k, v = arrays(spec, 3, 4, 2, 100, 150)
    given = np.float32([0.5, 0.25, 0.125, 0.0625])
    judge(spec, flashgen.compile(spec)(q, k, v, slopes=given), q, k, v, slopes=given)
