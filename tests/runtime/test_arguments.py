"""Bad calls are told the argument, what it is, what it has to be."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import CallError
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.runtime import arguments, arrays
from flashgen.runtime.arrays import Layout
from flashgen.spec import Spec

SPEC = Spec(
    head_dim={"qk": 64, "v": 32},
    dtype="float32",
    score="softcap * tanh(s / softcap) + bias[h, q_idx]",
    mask="causal & window(left, 0)",
    params={"softcap": 50.0, "left": 15},
    tensors={"bias": {"shape": ["hq", "q_len"], "dtype": "float32"}},
    outputs=["o", "lse", "max_logit"],
)


def layouts(spec: Spec = SPEC, **shapes: tuple[int, ...]) -> dict[str, Layout]:
    usual = {"q": (2, 5, 6, 64), "k": (2, 7, 3, 64), "v": (2, 7, 3, 32), "bias": (6, 5)}
    needed = {name: shape for name, shape in usual.items() if name in "qkv" or spec.tensors}
    return {name: arrays.liken(np.zeros(shape, np.float32), name).layout for name, shape in {**needed, **shapes}.items()}


def test_sizes() -> None:
    sizes = arguments.check_arrays(SPEC, layouts())
    assert sizes == Sizes(batch=2, q_len=5, kv_len=7, heads=6, kv_heads=3)
    assert sizes.group == 2
    assert arguments.output_shapes(SPEC, sizes) == {"o": (2, 5, 6, 32), "lse": (2, 6, 5), "max_logit": (6,)}


def test_sizes_with_heads_first() -> None:
    spec = Spec(head_dim=64, dtype="float32", layout="bhsd", outputs=["o", "max"])
    sizes = arguments.check_arrays(spec, layouts(spec, q=(2, 6, 5, 64), k=(2, 3, 7, 64), v=(2, 3, 7, 64)))
    assert sizes == Sizes(batch=2, q_len=5, kv_len=7, heads=6, kv_heads=3)
    assert arguments.output_shapes(spec, sizes) == {"o": (2, 6, 5, 64), "max": (2, 6, 5)}


WRONG_SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "rank": ({"k": (7, 3, 64)}, "k has 3 axes, shape [7, 3, 64]: expected 4, [B, Sk, Hk, 64]"),
    "head dim of q": ({"q": (2, 5, 6, 32)}, "q has shape [2, 5, 6, 32]: expected [2, 5, 6, 64], [B, Sq, Hq, 64]"),
    "batch of k": ({"k": (3, 7, 3, 64)}, "k has shape [3, 7, 3, 64], beside q [2, 5, 6, 64]: expected [2, 7, 3, 64], [B, Sk, Hk, 64]"),
    "head dim of v": (
        {"v": (2, 7, 3, 64)},
        "v has shape [2, 7, 3, 64], beside q [2, 5, 6, 64] and k [2, 7, 3, 64]: expected [2, 7, 3, 32], [B, Sk, Hk, 32]",
    ),
    "length of v": (
        {"v": (2, 8, 3, 32)},
        "v has shape [2, 8, 3, 32], beside q [2, 5, 6, 64] and k [2, 7, 3, 64]: expected [2, 7, 3, 32], [B, Sk, Hk, 32]",
    ),
    "heads": ({"k": (2, 7, 4, 64), "v": (2, 7, 4, 32)}, "q has 6 heads and k has 4: the heads of k and v have to divide those of q"),
    "no heads": ({"k": (2, 7, 0, 64), "v": (2, 7, 0, 32)}, "q has 6 heads and k 0: each takes at least 1"),
    "tensor": (
        {"bias": (5, 6)},
        "bias has shape [5, 6]: axis 0 is indexed by h, of which there are 6; expected 6, or 1 for all alike. The spec says [hq, q_len]",
    ),
    "rank of a tensor": ({"bias": (6,)}, "bias has shape [6]: expected [6, 5], [hq, q_len]"),
    "o": ({"o": (2, 5, 6, 64)}, "o has shape [2, 5, 6, 64]: expected [2, 5, 6, 32]"),
    "lse": ({"lse": (2, 5, 6)}, "lse has shape [2, 5, 6]: expected [2, 6, 5]"),
}


@pytest.mark.parametrize("case", WRONG_SHAPES)
def test_wrong_shapes(case: str) -> None:
    shapes, message = WRONG_SHAPES[case]
    with pytest.raises(CallError, match=f"^{re.escape(message)}$"):
        arguments.check_arrays(SPEC, layouts(**shapes))


def test_a_group_that_the_spec_pins() -> None:
    spec = Spec(head_dim={"qk": 64, "v": 32}, dtype="float32", group=3)
    with pytest.raises(CallError, match="q has 6 heads and k has 3, a group of 2: the spec says group 3"):
        arguments.check_arrays(spec, layouts(spec))


@pytest.mark.parametrize(("name", "dtype"), [("q", "float64"), ("v", "float16"), ("bias", "float64"), ("lse", "float64")])
def test_wrong_dtypes_name_the_cast(name: str, dtype: str) -> None:
    given_layouts = layouts(lse=(2, 6, 5))
    given_layouts[name] = given_layouts[name]._replace(dtype=dtype)
    with pytest.raises(CallError, match=rf"^{name} is {dtype}: the spec says float32. Cast it, {name}.astype\('float32'\)"):
        arguments.check_arrays(SPEC, given_layouts)


def test_mixed_devices() -> None:
    given_layouts = {name: layout._replace(device=0) for name, layout in layouts().items()}
    for other, place in ((1, "GPU 1"), (None, "the host")):
        given_layouts["k"] = given_layouts["k"]._replace(device=other)
        with pytest.raises(CallError, match=f"^k lies on {place} and q on GPU 0: all arrays of a call lie on one device"):
            arguments.check_arrays(SPEC, given_layouts)


@given(st.permutations("bshd"), st.lists(st.integers(0, 9), min_size=4, max_size=4), st.sampled_from(["bshd", "bhsd"]))
def test_any_four_axes_fit_or_are_refused(axes: list[str], shape: list[int], layout: str) -> None:
    spec = Spec(head_dim=4, dtype="float32", layout=layout)
    q = np.zeros(shape, np.float32).transpose(["bshd".index(a) for a in axes])
    try:
        sizes = arguments.check_arrays(spec, layouts(spec, q=q.shape, k=q.shape, v=q.shape))
    except CallError:
        assert q.shape[3] != 4 or 0 in (q.shape["bshd".index("h") if layout == "bshd" else 1],)
    else:
        assert arguments.output_shapes(spec, sizes)["o"] == q.shape


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"softcap": "50"}, "softcap is '50': expected a number"),
        ({"softcap": np.zeros(3)}, "softcap is array.*: expected a number"),
        ({"left": 2.5}, "left is 2.5: expected an integer"),
        ({"left": True}, "left is True: expected a number"),
        ({"left": np.bool_(True)}, "left is .*True.*: expected a number"),
        ({"softcap": np.array(True)}, "softcap is True: expected a number"),
        ({"softcap": float("inf")}, "softcap is inf: expected a finite number of float32, at most 3.4e38"),
        ({"softcap": float("nan")}, "softcap is nan: expected a finite number of float32"),
        ({"softcap": 1e39}, r"softcap is 1e\+39: expected a finite number of float32"),
        ({"softcap": 1e-50}, "softcap is 1e-50: it is 0 in float32, whose least number is 1.4e-45"),
        ({"softcap": 10**400}, "softcap is a number of more than 40 digits: float32 has to hold it"),
        ({"softcap": b"50"}, "softcap is b'50': expected a number"),
        ({"left": 10**5000}, "left is a number of more than 40 digits: an integer of 32 bits has to hold it"),
        ({"left": 2**31}, "left is 2147483648: an integer of 32 bits has to hold it"),
    ],
)
def test_wrong_params(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CallError, match=message):
        arguments.check_values(plan(SPEC, "host"), arguments.numbers(SPEC, values))


@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan")])
def test_a_factor_that_the_plan_takes_as_positive_is(value: float) -> None:
    spec = Spec(head_dim=64, dtype="float32", score="softcap * tanh(s / softcap)", params={"softcap": 50.0})
    with pytest.raises(CallError, match=r"^softcap must be positive.*; softcap = .* breaks softcap > 0$"):
        arguments.check_values(plan(spec, "host"), {"softcap": value})


def test_params_and_their_defaults() -> None:
    given_params = arguments.numbers(SPEC, {"softcap": np.float32(30), "left": np.int64(7)})
    assert given_params == {"softcap": 30.0, "left": 7}
    assert [type(x) for x in given_params.values()] == [float, int]
    assert arguments.check_values(plan(SPEC, "host"), {"left": 7}) == {"softcap": 50.0, "left": 7}


@pytest.mark.parametrize(("m", "why"), [(-1e-30, "it is 0 in float32"), (-3e38, "expected a finite number of float32"), (-2.0, None)])
def test_a_scale_is_a_number_of_float32(m: float, why: str | None) -> None:
    factor = "1e-30" if m > -1 else "1e30"
    spec = Spec(head_dim=64, dtype="float32", scale=f"m * {factor}", params={"m": -1.0})
    if why:
        with pytest.raises(CallError, match=rf"^scale, m \* {factor}, is .* where m = {re.escape(str(m))}: {why}"):
            arguments.check_values(plan(spec, "host"), {"m": m})
    else:
        assert arguments.check_values(plan(spec, "host"), {"m": m}) == {"m": m}


def test_a_param_that_divides_is_at_least_one() -> None:
    spec = Spec(head_dim=64, dtype="float32", mask="q_idx // size == kv_idx // size", params={"size": 16})
    with pytest.raises(CallError, match="size"):
        arguments.check_values(plan(spec, "host"), {"size": 0})


def test_unknown_and_missing_keywords() -> None:
    bias = np.zeros(1)
    with pytest.raises(CallError, match="unknown argument 'sofcap': did you mean 'softcap'"):
        arguments.check_names(SPEC, {"sofcap": 1.0, "bias": bias})
    with pytest.raises(CallError, match=r"the tensor bias, shape \[hq, q_len\], is missing: give it as bias="):
        arguments.check_names(SPEC, {"softcap": 1.0})


def test_a_sequence_too_long_for_32_bit_sums_is_refused():
    spec = Spec(head_dim=64, dtype="float16")
    long = Layout((1, 2**30 + 1, 1, 64), (0, 64, 64, 1), "float16", 0, 0)
    short = Layout((1, 5, 1, 64), (320, 64, 64, 1), "float16", 0, 0)
    with pytest.raises(CallError, match=r"1073741825 positions: at most 1073741824"):
        arguments.check_arrays(spec, {"q": short, "k": long, "v": long})


@pytest.mark.parametrize(("axis", "shape"), [("entries", (0,)), ("kv_len // 64", (0,)), ("hk // 8", (0,))])
@pytest.mark.parametrize("key", ["score", "mask", "weight"])
def test_no_expression_reads_an_axis_without_entries(key: str, axis: str, shape: tuple[int, ...]) -> None:
    text = {"score": "s + x[kv_idx // 64]", "mask": "x[kv_idx // 64] > 0.0", "weight": "x[kv_idx // 64]"}[key]
    spec = Spec(head_dim={"qk": 64, "v": 32}, dtype="float32", tensors={"x": {"shape": [axis], "dtype": "float32"}}, **{key: text})
    named = {name: layout for name, layout in layouts(spec, x=shape).items() if name != "bias"}
    with pytest.raises(CallError, match=r"^x has shape \[0\]: axis 0, .*, has no entry, and an expression reads one: expected 1 or more$"):
        arguments.check_arrays(spec, named)
    nobody = {"q": (2, 0, 6, 64), "k": (2, 0, 3, 64), "v": (2, 0, 3, 32)}
    named |= {name: layout for name, layout in layouts(spec, **nobody).items() if name in nobody}
    assert arguments.check_arrays(spec, named).q_len == 0


def test_an_output_reads_an_entry_where_there_is_no_key() -> None:
    spec = Spec(head_dim=64, dtype="float32", output="o + x[q_idx // 2]", tensors={"x": {"shape": ["n"], "dtype": "float32"}})
    with pytest.raises(CallError, match="has no entry"):
        arguments.check_arrays(spec, layouts(spec, k=(2, 0, 3, 64), v=(2, 0, 3, 64), x=(0,)))
