"""Specs made in Python: the same checks, frozen, equal by what they compute."""

import dataclasses
import json
import keyword
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.dtypes import ATTENTION_DTYPES, TENSOR_DTYPES
from flashgen.errors import Position, SpecError
from flashgen.spec import Block, HeadDim, Param, Schedule, Spec, Tensor
from flashgen.spec.words import CALL_WORDS, CPP_WORDS, EXPRESSION_WORDS, name_fault, value_name_fault

SIZES = st.integers(1, 512)
AUTO = st.just("auto")
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not (value_name_fault(name) or name_fault(name)))
NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.floats(width=32, allow_nan=False, allow_infinity=False)
TENSORS = st.fixed_dictionaries(
    {
        "shape": st.lists(st.sampled_from(["b", "hq", "hk", "q_len", "kv_len"]) | SIZES, min_size=1, max_size=8),
        "dtype": st.sampled_from(TENSOR_DTYPES),
    }
)
SCHEDULES = st.sampled_from(["auto", "standard", "three_pass", "two_pass", "one_pass"]) | st.fixed_dictionaries(
    {},
    optional={
        "passes": st.sampled_from([1, 2, 3]),
        "normalize": st.sampled_from(["end", "each_step"]),
        "rescale": st.sampled_from(["always", "lazy"]) | st.builds(lambda t: {"lazy": t}, st.floats(0, 16, width=32)),
        "outer": st.sampled_from(["q", "kv"]),
    },
)


@st.composite
def given_specs(draw: st.DrawFn) -> dict[str, object]:
    """Valid keywords, in the forms of YAML."""
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    params, tensors = names[: len(names) // 2], names[len(names) // 2 :]
    optional = {
        "name": NAMES,
        "group": SIZES,
        "layout": st.sampled_from(["bshd", "bhsd"]),
        "scale": NUMBERS | st.just("1 / sqrt(d)"),
        "score": st.sampled_from(["s", "2.0 * s", "s +  1"]),
        "mask": st.sampled_from(["full", "causal", "kv_idx\n<  3"]),
        "params": st.fixed_dictionaries(dict.fromkeys(params, NUMBERS)),
        "tensors": st.fixed_dictionaries(dict.fromkeys(tensors, TENSORS)),
        "outputs": st.permutations(["o", "lse"]) | st.just(["o"]),
        "block": AUTO | st.fixed_dictionaries({}, optional={"m": SIZES | AUTO, "n": SIZES}),
        "stages": AUTO | SIZES,
        "warps": AUTO | SIZES,
        "schedule": SCHEDULES,
    }
    if draw(st.booleans()):
        asked = NUMBERS.flatmap(
            lambda default: st.fixed_dictionaries({"default": st.just(default), "grad": st.just(isinstance(default, float))})
        )
        optional |= {"backward": st.just(True), "deterministic": st.booleans()}
        optional["params"] = st.fixed_dictionaries(dict.fromkeys(params, NUMBERS | asked))
        optional["tensors"] = st.fixed_dictionaries(dict.fromkeys(tensors, TENSORS.map(lambda t: t | {"grad": t["dtype"] == "float32"})))
    head_dim = SIZES | st.fixed_dictionaries({"qk": SIZES, "v": SIZES})
    required = {"dtype": st.sampled_from(ATTENTION_DTYPES), "head_dim": head_dim}
    if "backward" in optional:  # what asks for gradients is drawn with it
        required["backward"] = optional.pop("backward")
    return draw(st.fixed_dictionaries(required, optional=optional))


@given(given_specs())
def test_round_trip(keywords: dict[str, object]) -> None:
    spec = Spec(**keywords)
    again = Spec(**json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert hash(again) == hash(spec)
    assert [type(p.default) for p in again.params] == [type(p.default) for p in spec.params]
    assert dataclasses.replace(spec) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_fields() -> None:
    spec = Spec(
        dtype="bfloat16",
        head_dim={"qk": 192, "v": 128},
        scale=0.125,
        score="softcap * tanh(s /\n   softcap)",
        params={"softcap": 50.0, "n": 3},
        tensors={"slopes": {"shape": ["hq", 2], "dtype": "float32"}},
        outputs=["lse", "o"],
        block={"m": 128},
        schedule={"passes": 1, "rescale": {"lazy": 8}},
    )
    assert spec.head_dim == HeadDim(192, 128)
    assert spec.scale == "0.125"
    assert spec.score == "softcap * tanh(s / softcap)"
    assert spec.params == (Param("softcap", 50.0), Param("n", 3))
    assert [p.type for p in spec.params] == ["float", "int"]
    assert spec.tensors == (Tensor("slopes", ("hq", 2), "float32"),)
    assert spec.outputs == ("o", "lse")
    assert spec.block == Block(128, None)
    assert spec.schedule == Schedule(passes=1, rescale="lazy", threshold=8.0)
    assert spec.element.name == "bfloat16"


def test_defaults() -> None:
    spec = Spec(dtype="float16", head_dim=64)
    assert (spec.name, spec.layout, spec.score, spec.mask, spec.outputs) == ("attention", "bshd", "s", "full", ("o",))
    assert (spec.group, spec.scale, spec.stages, spec.warps, spec.params, spec.tensors) == (None, None, None, None, (), ())
    assert (spec.block, spec.schedule) == (Block(), Schedule())
    assert spec == Spec(dtype="float16", head_dim=64, block="auto", stages="auto", warps="auto", schedule="auto", group=None)


def test_integer_and_float_params_differ() -> None:
    whole, real = (Spec(dtype="float16", head_dim=64, params={"n": n}) for n in (1, 1.0))
    assert whole != real
    assert len({whole, real}) == 2


def test_frozen() -> None:
    spec = Spec(dtype="float16", head_dim=64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.mask = "causal"  # type: ignore[misc]
    assert dataclasses.replace(spec, mask="causal", params=(Param("n", 1),)) == Spec(
        dtype="float16", head_dim=64, mask="causal", params={"n": 1}
    )


def test_position_without_a_file_is_the_expression() -> None:
    spec = Spec(dtype="float16", head_dim=64, mask="causal  & x")
    assert spec.position("mask") == Position("<mask>", 1, 1, "causal & x")


@pytest.mark.parametrize(
    ("keywords", "message", "hint"),
    [
        ({"head_dims": 64}, "unknown key 'head_dims'", "did you mean 'head_dim'?"),
        ({"head_dim": None}, "missing key 'head_dim'", "for example head_dim: 128"),
        (
            {"head_dim": "64"},
            "head_dim: expected an integer or {qk: 192, v: 128}, got the text '64'",
            "write the number without quotes: 64",
        ),
        ({"head_dim": {"qk": 64, "v": 64.0}}, "head_dim.v: expected an integer, got the number 64.0", ""),
        ({"mask": True}, "mask: expected an expression as text, got the boolean true", "a mask that hides nothing is mask: full"),
        ({"params": [1]}, "params: expected a mapping, got the list [1]", ""),
        ({"params": {"n": True}}, "params.n: expected a number, got the boolean true", ""),
        ({"params": {"n": float("nan")}}, "params.n: expected a finite number of float32, got the number nan", ""),
        ({"params": {"n": 1e39}}, "params.n: expected a finite number of float32, got the number 1e+39", ""),
        ({"params": {"n": 1e-50}}, "params.n: 1e-50: it is 0 in float32, whose least number is 1.4e-45", "write 0, or a larger number"),
        ({"scale": 1e-50}, "scale: 1e-50: it is 0 in float32, whose least number is 1.4e-45", "write 0, or a larger number"),
        ({"group": 0}, "group: expected an integer from 1 to 2147483647, got the number 0", ""),
        ({"dtype": object()}, "dtype: expected float16, bfloat16 or float32, got a object", ""),
    ],
)
def test_refusals(keywords: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        Spec(**{"dtype": "float16", "head_dim": 64, **keywords})
    assert (caught.value.message, caught.value.hint, caught.value.position) == (message, hint, None)


@pytest.mark.parametrize("n", [2**31 - 1, -(2**31)])
def test_integer_params_have_32_bits(n: int) -> None:
    keys = {"dtype": "float16", "head_dim": 64, "mask": "(kv_idx <= q_idx + n) & (kv_idx // 2 <= n // 3)"}
    assert Spec(**keys, params={"n": {"default": n, "min": n, "max": n}}).params[0].interval == (n, n)
    with pytest.raises(SpecError, match="from -2147483648 to 2147483647"):
        Spec(**keys, params={"n": n + (1 if n > 0 else -1)})


def test_the_dtype_of_o() -> None:
    spec = Spec(dtype="bfloat16", out_dtype="float32", head_dim=64)
    assert Spec(**spec.to_json()) == spec
    assert (spec.element.name, spec.out_element.name) == ("bfloat16", "float32")
    assert Spec(dtype="float16", out_dtype="float16", head_dim=64) == Spec(dtype="float16", head_dim=64)
    assert "out_dtype" not in Spec(dtype="float16", head_dim=64).to_json()
    with pytest.raises(SpecError, match="out_dtype: expected float16, bfloat16 or float32"):
        Spec(dtype="float16", out_dtype="float8", head_dim=64)


GRAD = {"default": 50.0, "grad": True}


def test_backward() -> None:
    plain = Spec(dtype="float16", head_dim=64)
    assert (plain.backward, plain.deterministic, plain.with_grad) == (False, False, ())
    assert not {"backward", "deterministic"} & plain.to_json().keys()
    table = {"shape": ["hq"], "dtype": "float32"}
    spec = Spec(
        dtype="float16",
        head_dim=64,
        score="c * s + x[h] + y[h]",
        params={"c": GRAD},
        tensors={"x": {**table, "grad": True}, "y": table},
        outputs=["o", "max"],
        backward=True,
        deterministic=True,
    )
    assert spec.outputs == ("o", "lse", "max")
    assert [one.name for one in spec.with_grad] == ["x", "c"]
    assert Spec(**spec.to_json()) == spec
    assert Spec(dtype="float16", head_dim=64, backward=True).outputs == ("o", "lse")
    assert Spec(dtype="float16", head_dim=64, backward=True, softmax="none").outputs == ("o",)
    assert Spec(dtype="float16", head_dim=64, params={"c": {"default": 50.0}}) == Spec(dtype="float16", head_dim=64, params={"c": 50.0})


def test_a_comment_in_an_expression_is_pointed_at() -> None:
    with pytest.raises(SpecError) as caught:
        Spec(dtype="float16", head_dim=64, mask="causal  # lower")
    assert caught.value.position == Position("<mask>", 1, 8, "causal # lower")


@pytest.mark.parametrize(("key", "value"), [("params", 1.0), ("tensors", {"shape": ["hq"], "dtype": "float32"})])
def test_names_that_values_cannot_take(key: str, value: object) -> None:
    others = {"lambda", "None", "__import__", "1x", "a-b", "ä", "", "x" * 64}
    for word in sorted(EXPRESSION_WORDS | CALL_WORDS | others):
        with pytest.raises(SpecError) as caught:
            Spec(dtype="float16", head_dim=64, **{key: {word: value}})
        assert caught.value.message.startswith(f"{key}.{word}"[:64])
        free = caught.value.hint.removeprefix("for example ")
        Spec(dtype="float16", head_dim=64, **{key: {free: value}})


def test_words_of_cpp_are_free_for_values() -> None:
    free = [word for word in CPP_WORDS - EXPRESSION_WORDS - CALL_WORDS if not keyword.iskeyword(word)]
    assert [p.name for p in Spec(dtype="float16", head_dim=64, params=dict.fromkeys(free, 1.0)).params] == free


def test_importing_the_spec_is_cheap() -> None:
    code = "import sys, flashgen.spec; print([m for m in ('pydantic', 'sympy', 'cupy', 'jinja2') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
