"""A layout that is a row of its table alone, and what is made of it: kernels, interpreter, banners, messages."""

import numpy as np
import pytest

import flashgen
from flashgen.bench.cases import case, variant_of
from flashgen.errors import CallError, SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.runtime.arguments import rows_first
from flashgen.runtime.arrays import Layout
from flashgen.runtime.axes import Axes
from flashgen.spec import Spec
from flashgen.spec.layout import LAYOUTS, AxisOrder
from tests.plan.agreement import arrays, error, judge

SAID = {"mask": "causal & window(90, 0)", "score": "s + 0.125 * h", "outputs": ["o", "lse"]}
KERNELS = {
    "interpreter": ("interpreter", "sm_90a", {"dtype": "float16"}),
    "sm_90a": ("emulate", "sm_90a", {"dtype": "float16"}),
    "sm_80": ("emulate", "sm_80", {"dtype": "bfloat16"}),
    "float32": ("emulate", "sm_90a", {"dtype": "float32"}),
    "standard": ("emulate", "sm_80", {"dtype": "float16", "schedule": "standard"}),
}


@pytest.fixture(autouse=True)
def sequences_inside(monkeypatch):
    """As PyTorch's own layers have them: positions, then sequences."""
    monkeypatch.setitem(LAYOUTS, "sbhd", AxisOrder("sbhd", axes="sbhd"))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_layout_is_a_row(kernel):
    backend, arch, said = KERNELS[kernel]
    spec = Spec(head_dim=16, layout="sbhd", **said, **SAID)
    q, k, v = arrays(spec, 2, 4, 2, 70, 150)
    assert q.shape == (70, 2, 4, 16)
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v)
    assert o.shape == q.shape
    judge(spec, {"o": o, "lse": lse}, q, k, v)
    known = reference(Spec(head_dim=16, **said, **SAID), *(x.swapaxes(0, 1) for x in (q, k, v)))
    assert error(reference(spec, q, k, v)[0].swapaxes(0, 1), known[0]) == 0
    assert error(lse, known[1]) < 1e-3


def test_the_banner_names_its_axes():
    attn = flashgen.compile(Spec(head_dim=16, dtype="float16", layout="sbhd"), "sm_90a", "emulate")
    assert "q, o [Sq, B, Hq, 16] float16    k, v [Sk, B, Hq / group, 16]" in attn.source.text


def test_it_is_measured_in_its_own_shapes():
    found = case(Spec(head_dim=16, dtype="float16", layout="sbhd"), 128, batch=3, heads=2)
    assert found.shapes()["q"] == (128, 3, 2, 16)
    assert variant_of(found.spec) == ""


def test_the_front_door_takes_it():
    q, k, v = arrays(Spec(head_dim=8, dtype="float32", layout="sbhd"), 2, 2, 2, 5, 5)
    found = flashgen.attention(q, k, v, layout="sbhd")
    np.testing.assert_allclose(found.swapaxes(0, 1), flashgen.attention(*(x.swapaxes(0, 1) for x in (q, k, v))), atol=1e-6)


def test_kernels_are_given_rows_first():
    given = Layout((70, 2, 4, 16), (128, 64, 16, 1), "float16", None, 0)
    assert rows_first(given, "sbhd") == Layout((2, 70, 4, 16), (64, 128, 16, 1), "float16", None, 0)
    assert Axes(Spec(head_dim=16, dtype="float16", layout="sbhd"), ("q", "k", "v")).lengths == [[(0, 0)], [(0, 1)], [(0, 1)]]


def test_messages():
    attn = flashgen.compile(Spec(head_dim=16, dtype="float16", layout="sbhd"), "host")
    q, k, v = arrays(attn.spec, 2, 4, 2, 7, 9)
    with pytest.raises(CallError, match=r"^v has shape \[9, 2, 2, 8\], .*: expected \[9, 2, 2, 16\], \[Sk, B, Hk, 16\]"):
        attn(q, k, v[..., :8])
    with pytest.raises(SpecError, match="layout: expected bshd, bhsd, thd or sbhd"):
        Spec(head_dim=16, dtype="float16", layout="hsbd")
    with pytest.raises(CallError, match="layout is 'SBHD': did you mean 'sbhd'"):
        flashgen.attention(q, k, v, layout="SBHD")
