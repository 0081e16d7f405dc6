"""All that is written in YAML is read, and bad input gets one SpecError, at the right line and column, with the fix."""

from pathlib import Path

import pytest

from flashgen.dtypes import float32
from flashgen.errors import SpecError
from flashgen.spec import Block, HeadDim, Param, Schedule, Spec, Tensor, load, loads

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
HEAD = "dtype: float16\nhead_dim: 64\n"
INTEGERS_WITH_GRAD = "tensors: {x: {shape: [hq], dtype: int32, grad: true}}\nbackward: true\n"
BOMB = "".join(f"p{i}: &p{i} [{', '.join([f'*p{i - 1}'] * 10) if i else 1}]\n" for i in range(8))


def refused(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        loads(text, "a.yaml")
    return caught.value


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_specs(path: Path) -> None:
    spec = load(path)
    assert spec.name == path.stem
    assert Spec(**spec.to_json()) == spec


def test_the_shipped_specs_are_these() -> None:
    assert [path.stem for path in SPECS] == [
        "alibi",
        "causal",
        "dilated",
        "document",
        "float32",
        "full",
        "gqa",
        "latent",
        "mla",
        "sigmoid",
        "sinks",
        "softcap",
        "tree",
        "window",
    ]


def test_every_key() -> None:
    spec = loads(
        """
name: everything
dtype: bfloat16
head_dim: {qk: 192, v: 128}
group: 2
layout: bhsd
scale: 1/16
score: >-
  softcap
  * tanh(s / softcap)
mask: causal & window(n, 0)
params: {softcap: 50.0, n: 4095}
tensors:
  slopes: {shape: [hq, 3], dtype: float32}
outputs: [o, lse]
block: {m: 128, n: auto}
stages: 2
warps: auto
schedule: {passes: 1, normalize: end, rescale: {lazy: 8}, outer: q}
"""
    )
    assert spec == Spec(
        name="everything",
        dtype="bfloat16",
        head_dim=HeadDim(192, 128),
        group=2,
        layout="bhsd",
        scale="1/16",
        score="softcap * tanh(s / softcap)",
        mask="causal & window(n, 0)",
        params=(Param("softcap", 50.0), Param("n", 4095)),
        tensors=(Tensor("slopes", ("hq", 3), "float32"),),
        outputs=("o", "lse"),
        block=Block(m=128),
        stages=2,
        schedule=Schedule(passes=1, normalize="end", rescale="lazy", threshold=8.0, outer="q"),
    )


FLOATS = {"1e-3": 0.001, "1e3": 1000.0, "1E+3": 1000.0, "1.0e-3": 0.001, "1.10": 1.1, ".5": 0.5, "5.": 5.0, "0.0": 0.0}
INTEGERS = {"-2": -2, "010": 10, "0x40": 64, "0o10": 8, "1_000": 1000, "+7": 7, "0": 0}
NO_NUMBERS = ["1:30", "on", "off", "no", "y", "~", ".inf", "-.inf", ".nan", "NaN", "2024-01-01", "true", "1e", "1e999"]


@pytest.mark.parametrize(("written", "default"), [*FLOATS.items(), *INTEGERS.items()])
def test_numbers(written: str, default: float) -> None:
    (param,) = loads(f"{HEAD}params: {{n: {written}}}").params
    assert (param.default, type(param.default)) == (float32(default) if written in FLOATS else default, type(default))


@pytest.mark.parametrize("written", [*NO_NUMBERS, ""])
def test_not_numbers(written: str) -> None:
    error = refused(f"{HEAD}params:\n  n: {written}\n")
    assert "params.n: expected a" in error.message
    assert error.position
    assert error.position.line == 4


def test_zero_is_given() -> None:
    assert loads(HEAD + "scale: 0.0").scale == "0.0"


BYTES = ["\ufeff" + HEAD, HEAD.replace("\n", "\r\n"), HEAD.replace("\n", "\r"), "---\n" + HEAD + "...\n", "# hi\n" + HEAD]


@pytest.mark.parametrize("text", BYTES)
def test_harmless_bytes(text: str) -> None:
    assert loads(text) == Spec(dtype="float16", head_dim=64)


def test_anchors_and_merge_keys() -> None:
    spec = loads(
        HEAD
        + "tensors:\n  x: &x {shape: &s [hq, 2], dtype: int32}\n  y: *x\n  z: {dtype: bool, shape: *s}\n  w: {<<: *x, dtype: float32}\n"
    )
    assert spec.tensors == tuple(Tensor(n, ("hq", 2), t) for n, t in (("x", "int32"), ("y", "int32"), ("z", "bool"), ("w", "float32")))


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("", 1, 1, "the file is empty", "at least two lines"),
        ("# nothing\n", 1, 1, "the file is empty", "at least two lines"),
        ("- dtype: float16\n", 1, 1, "expected keys and values", "at least two lines"),
        ("dtype: float16\n", 1, 1, "missing key 'head_dim'", "for example head_dim: 128"),
        ("# one\nname: x\nmask: full\n", 2, 1, "missing key 'dtype'", "for example dtype: bfloat16"),
        ("dtype: float16\nhead_dim: {qk: 64}\n", 2, 11, "missing key 'head_dim.v'", "for example v: 128"),
        (HEAD + "msk: causal\n", 3, 1, "unknown key 'msk'", "did you mean 'mask'?"),
        ("head_dims: 64\n", 1, 1, "unknown key 'head_dims'", "did you mean 'head_dim'?"),
        (HEAD + "schedule: {pases: 1}\n", 3, 12, "unknown key 'schedule.pases'", "did you mean 'passes'?"),
        (HEAD + "tensors: {x: {shape: [hq], dtpye: bool}}\n", 3, 28, "unknown key 'tensors.x.dtpye'", "did you mean 'dtype'?"),
        (HEAD + "mask: causal\nmask: full\n", 4, 1, "duplicate key 'mask'", "on line 3 already"),
        (HEAD + "params: {x: 1, x: 2}\n", 3, 16, "duplicate key 'x'", "on line 3 already"),
        (HEAD + "params:\n\tsoftcap: 50.0\n", 4, 1, "a tab where YAML wants spaces", "indent with spaces"),
        ('dtype: float16\nhead_dim: "128"\n', 2, 11, "head_dim: expected an integer or", "without quotes: 128"),
        ("dtype: float16\nhead_dim: 128.0\n", 2, 11, "head_dim: expected an integer or", ""),
        ("dtype: float16\nhead_dim: true\n", 2, 11, "head_dim: expected an integer or", ""),
        (HEAD + "params: {softcap: '1e-3'}\n", 3, 19, "params.softcap: expected a number, got the text '1e-3'", "without quotes: 1e-3"),
        ("dtype: bfloat\nhead_dim: 64\n", 1, 8, "dtype: expected float16, bfloat16 or float32, got the text 'bfloat'", "did you mean"),
        ("head_dim: 64\ndtype: float64\n", 2, 8, "dtype: expected float16, bfloat16 or", "cast what is passed: x.astype('float32')"),
        (HEAD + "backward: 1\n", 3, 11, "backward: expected true or false, got the number 1", ""),
        (HEAD + "deterministic: true\n", 3, 16, "deterministic: it is of the backward, and this kernel has none", "backward: true, or"),
        (HEAD + "params: {c: {grad: true}}\n", 3, 13, "missing key 'params.c.default'", "for example default: 50.0"),
        (HEAD + "params: {c: {default: 1.0, gard: true}}\n", 3, 28, "unknown key 'params.c.gard'", "did you mean 'grad'?"),
        (HEAD + "params: {c: {default: 1.0, grad: 1}}\n", 3, 34, "params.c.grad: expected true or false", ""),
        (HEAD + "params: {c: {default: 1.0, grad: true}}\n", 3, 34, "params.c.grad: a gradient is of the backward", "backward: true"),
        (HEAD + "params: {c: {default: 1, grad: true}}\nbackward: true\n", 3, 32, "params.c.grad: c is an integer", "with a point, 1.0"),
        (HEAD + INTEGERS_WITH_GRAD, 3, 48, "tensors.x.grad: x is int32, which has no gradient", "dtype: float32, or leave grad out"),
        (HEAD + "tensors: {x: {shape: [hq], dtype: int16}}\n", 3, 35, "tensors.x.dtype: expected", "write int32, and cast"),
        (HEAD + "name: my-spec\n", 3, 7, "name: 'my-spec' is not a name", "for example my_spec"),
        (HEAD + "name: a__b\n", 3, 7, "name: 'a__b' has two _ in a row", "for example a_b"),
        (HEAD + "name: a_\n", 3, 7, "name: 'a_' ends with _", "for example a"),
        (HEAD + "params: {a__b: 1.0}\n", 3, 10, "params.a__b: 'a__b' has two _ in a row", "for example a_b"),
        (HEAD + "params: {class: 1.0}\n", 3, 10, "params.class: 'class' is a word of Python", "for example my_class"),
        (HEAD + "params: {x: 1}\ntensors:\n  x: {shape: [hq], dtype: bool}\n", 5, 3, "tensors.x: 'x' is a param too", "cannot share"),
        (HEAD + "tensors: {x: {shape: [hq, 0], dtype: bool}}\n", 3, 27, "tensors.x.shape.1: expected an integer from 1", ""),
        (HEAD + "tensors: {x: {shape: [], dtype: bool}}\n", 3, 22, "tensors.x.shape: expected a list of 1 to 8 axes", "for example [hq]"),
        (
            HEAD + "tensors: {x: {shape: [hq], dtype: float64}}\n",
            3,
            35,
            "tensors.x.dtype: expected float32, int32, int64, bool, float16",
            "write float32",
        ),
        (HEAD + "mask: true\n", 3, 7, "mask: expected an expression as text, got the boolean true", "mask: full"),
        (HEAD + "mask:\nscore: s\n", 3, 1, "mask: expected an expression as text, got nothing", "mask: full"),
        (HEAD + "mask: ' '\n", 3, 7, "mask: the expression is empty", ""),
        (HEAD + "score: |\n  s  # plain\n  + 1\n", 4, 6, "score: a comment inside an expression", "on a line of its own"),
        (HEAD + "mask: !causal\n", 3, 7, "a tag: !causal", "not is ~"),
        (HEAD + "mask: *causal\n", 3, 7, "no anchor &causal", "wants quotes"),
        (HEAD + "layout: bsdh\n", 3, 9, "layout: expected bshd, bhsd", "did you mean"),
        (HEAD + "outputs: [lse]\n", 3, 10, "outputs: expected o and any of lse, max, max_logit, entropy", ""),
        (HEAD + "schedule: two_passes\n", 3, 11, "schedule: unknown schedule 'two_passes'", "did you mean 'two_pass'?"),
        (HEAD + "schedule: {passes: 4}\n", 3, 20, "schedule.passes: expected 1, 2 or 3", ""),
        (HEAD + "schedule: {rescale: {lazy: -1}}\n", 3, 21, "schedule.rescale: lazy: expected a threshold of 0 or more", "{lazy: 8}"),
        (HEAD + "schedule: {materialize: true}\n", 3, 12, "unknown key 'schedule.materialize'", "did you mean"),
        (HEAD + "block: {m: big}\n", 3, 12, "block.m: expected auto or an integer", ""),
        (HEAD + "group: 2.0\n", 3, 8, "group: expected an integer from 1", ""),
        (HEAD + "scale: .inf\n", 3, 8, "scale: expected a finite number", ""),
        (HEAD + "on: 1\n", 3, 1, "unknown key 'on'", "known: name"),
        (HEAD + "1: 1\n", 3, 1, "expected a name as key", "one word"),
        (HEAD + "? [a]\n: 1\n", 3, 3, "expected a name as key", "one word"),
        (HEAD + "mask: 'causal\n", 3, 7, "found unexpected end of stream", "close the quote"),
        (HEAD + "block: {m: 1\n", 3, 8, "expected ',' or '}'", "close the brace"),
        (HEAD + "  mask: causal\n", 3, 7, "mapping values are not allowed here", "same indentation"),
        (HEAD + "causal\n", 3, 1, "could not find expected ':'", "key: value"),
        (HEAD + "name: \x00\n", 3, 7, "character U+0000 is not allowed", ""),
        (HEAD + 'name: "\\Uffffffff"\n', 3, 5, "not YAML", ""),
        (HEAD + "---\n" + HEAD, 3, 1, "a second document", "one spec a file"),
        ("%YAML 1.1\n---\n" + HEAD, 2, 1, "a YAML directive", "starts with %"),
        (HEAD + "x: !!python/object/apply:os.system [ls]\n", 3, 4, "a tag: tag:yaml.org,2002:python/object/apply:os.system", "remove it"),
        (HEAD + BOMB, 7, 15, "more than 10000 values", "aliases count"),
        (HEAD + "x: &x [*x]\n", 3, 8, "no anchor &x", ""),
        (HEAD + "x: " + "[" * 10_000, 3, 12, "nested deeper than 8", "deepest key"),
        (HEAD + "x:\n" + "".join(" " * i + "a:\n" for i in range(1, 300)), 12, 10, "nested deeper than 8", "deepest key"),
        (HEAD + f"params: {{n: {'1' * 5000}}}\n", 3, 13, "not a number: 1111", ""),
        (HEAD + f"params: {{n: 0x{'1' * 5000}}}\n", 3, 13, "params.n: expected an integer from", "32 bits"),
    ],
)
def test_mistakes(text: str, line: int, column: int, message: str, hint: str) -> None:
    error = refused(text)
    assert error.position
    assert (error.position.line, error.position.column) == (line, column), error
    assert error.position.file == "a.yaml"
    assert error.message.startswith(message)
    assert hint in error.hint
    assert len(str(error)) < 600


def test_the_first_mistake_by_position_is_told() -> None:
    assert refused("group: x\nstages: y\nmsk: z\n").message.startswith("group")
    assert refused("msk: z\nstages: y\ngroup: x\n").message.startswith("unknown key 'msk'")


def test_a_mistake_below_an_alias_is_at_the_alias() -> None:
    error = refused(HEAD + "params: &p {x: 1}\ntensors: *p\n")
    assert error.position
    assert (error.position.line, error.position.column) == (4, 10)


def test_an_error_in_full() -> None:
    assert str(refused(HEAD + "mask: causal\nlayuot: bshd\n")) == (
        "a.yaml:4:1: unknown key 'layuot'\n  4 | layuot: bshd\n    | ^\ndid you mean 'layout'?"
    )
