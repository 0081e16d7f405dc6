"""Calls from end to end where there is no GPU: compiling, the interpreter, what comes back, what is refused."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen import api
from flashgen.dtypes import by_name
from flashgen.errors import BackendError, CallError, PlanError, SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.runtime import device
from flashgen.spec import Spec
from flashgen.spec.shipped import spec_root

ROOT = Path(__file__).parents[1]
no_gpu = pytest.mark.skipif(device.missing() is None, reason="there is a GPU")


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(by_name(dtype).numpy)


def qkv(b: int = 2, q_len: int = 33, kv_len: int = 40, heads: int = 4, kv_heads: int = 2, d: int = 16, dtype: str = "float32") -> Any:
    return (
        draw(b, q_len, heads, d, dtype=dtype),
        draw(b, kv_len, kv_heads, d, seed=1, dtype=dtype),
        draw(b, kv_len, kv_heads, d, seed=2, dtype=dtype),
    )


def error(got: Any, expected: Any) -> float:
    assert not np.isnan(np.asarray(got, np.float64)).any()
    return float(np.abs(got.astype(np.float64) - expected).max())


HEAVY = {"numpy", "cupy", "cuda", "sympy", "jinja2", "pydantic", "torch", "jax", "matplotlib"}


def run(code: str) -> list[str]:
    """The lines that a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()


def test_import_is_quick_and_pulls_nothing() -> None:
    code = f"""
import sys, time
start = time.process_time()
import flashgen
print(time.process_time() - start)
flashgen.SpecError
print(*({HEAVY} & set(sys.modules)))
"""
    seconds, pulled = run(code)
    assert pulled == ""
    assert float(seconds) < 0.3


def test_a_call_pulls_neither_cupy_nor_sympy() -> None:
    code = f"""
import sys
import numpy as np
import flashgen
x = np.ones((1, 8, 2, 16), np.float32)
flashgen.compile({{"head_dim": 16, "dtype": "float32"}}, arch="host")(x, x, x)
print(*({HEAVY - {"numpy", "jinja2", "pydantic", "cuda"}} & set(sys.modules)))
"""
    assert run(code) == [""]


def test_public_names() -> None:
    assert set(flashgen.__all__) <= set(dir(flashgen))
    for name in flashgen.__all__:
        assert callable(getattr(flashgen, name))  # no module of the same name, whatever was imported before
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        flashgen.atention  # noqa: B018


@pytest.mark.parametrize("make", [lambda p: p, str, flashgen.load, lambda p: flashgen.load(p).to_json()])
def test_a_spec_comes_as_path_text_value_or_mapping(make: Any) -> None:
    path = ROOT / "specs" / "causal.yaml"
    assert api.compile(make(path), arch="host").spec == flashgen.load(path)


def test_the_interpreter_serves_numpy_and_matches_the_reference() -> None:
    spec = Spec(head_dim=16, dtype="float32", mask="causal", outputs=["o", "lse"])
    q, k, v = qkv()
    o, lse = api.compile(spec, backend="interpreter")(q, k, v)
    expected_o, expected_lse = reference(spec, q, k, v)
    assert (o.dtype, lse.dtype) == (np.float32, np.float32)
    assert error(o, expected_o) < 1e-5
    assert error(lse, expected_lse) < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(dtype: str) -> None:
    spec = Spec(head_dim=16, dtype=dtype, mask="causal")
    q, k, v = qkv(dtype=dtype)
    o = api.compile(spec, arch="host")(q, k, v)
    assert o.dtype == q.dtype
    assert error(o, reference(spec, q, k, v)[0]) < 0.03


@pytest.mark.parametrize(("dtype", "out_dtype"), [("bfloat16", "float32"), ("float32", "float16"), ("float16", "bfloat16")])
def test_o_of_another_dtype(dtype: str, out_dtype: str) -> None:
    q, k, v = qkv(dtype=dtype)
    attn = flashgen.compile({"dtype": dtype, "out_dtype": out_dtype, "head_dim": 16})
    o = attn(q, k, v)
    assert o.dtype == by_name(out_dtype).numpy
    assert error(o, reference(attn.spec, q, k, v)[0]) < 4e-3
    assert attn(q, k, v, out=np.empty_like(o)).dtype == o.dtype
    with pytest.raises(CallError, match=rf"o is {dtype}: the spec says {out_dtype}. Cast it, o.astype\('{out_dtype}'\)"):
        attn(q, k, v, out=np.empty_like(q))


def test_heads_first_and_strange_strides_give_the_same() -> None:
    q, k, v = qkv()
    packed = api.compile(Spec(head_dim=16, dtype="float32", mask="causal"), arch="host")(q, k, v)
    heads_first = api.compile(Spec(head_dim=16, dtype="float32", mask="causal", layout="bhsd"), arch="host")
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    assert np.array_equal(heads_first(*turned).swapaxes(1, 2), packed)
    views = [np.asfortranarray(x)[:, ::-1][:, ::-1] for x in (q, k, v)]
    assert np.array_equal(api.compile(Spec(head_dim=16, dtype="float32", mask="causal"), arch="host")(*views), packed)


def test_params_tensors_and_out() -> None:
    spec = Spec(
        head_dim=16,
        dtype="float32",
        score="softcap * tanh(s / softcap) + slopes[h] * (kv_idx - q_idx)",
        params={"softcap": 5.0},
        tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}},
        outputs=["o", "lse"],
    )
    q, k, v = qkv()
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    attn = api.compile(spec, arch="host")
    for values in ({}, {"softcap": 2.0}, {"softcap": np.float64(9)}):
        expected = reference(spec, q, k, v, slopes=slopes, **values)
        memory = np.full((2, 33, 4, 32), np.nan, np.float32)
        out = (memory[..., ::2], np.full((2, 4, 33), np.nan, np.float32))
        got = attn(q, k, v, slopes=slopes, out=out, **values)
        assert got[0] is out[0]
        assert got[1] is out[1]
        assert error(out[0], expected[0]) < 1e-5
        assert error(out[1], expected[1]) < 1e-5
        assert np.isnan(memory[..., 1::2]).all()


@pytest.mark.parametrize(("b", "q_len", "kv_len"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0), (0, 0, 0)])
def test_nothing_is_not_an_error(b: int, q_len: int, kv_len: int) -> None:
    attn = api.compile(Spec(head_dim=16, dtype="float32", mask="causal", outputs=["o", "lse"]), arch="host")
    o, lse = attn(*qkv(b, q_len, kv_len))
    assert o.shape == (b, q_len, 4, 16)
    assert lse.shape == (b, 4, q_len)
    assert not o.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("travel", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_what_is_public_travels(travel: Any) -> None:
    spec = flashgen.load(ROOT / "specs" / "alibi.yaml")
    assert travel(spec) == spec
    assert travel(spec).position("mask") == spec.position("mask")
    assert travel(flashgen.derive("one_pass")) == flashgen.derive("one_pass")
    with pytest.raises(SpecError) as caught:
        flashgen.loads("dtype: float16\nhead_dim: 64\nmaks: causal")
    again = travel(caught.value)
    assert (str(again), again.position, again.hint) == (str(caught.value), caught.value.position, caught.value.hint)


@pytest.mark.parametrize("given", [{}, {"arch": "host"}, {"backend": "interpreter"}, {"arch": "sm_80", "backend": "emulate"}])
@pytest.mark.parametrize("travel", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_a_compiled_attention_travels(travel: Any, given: dict[str, Any]) -> None:
    q, k, v = qkv()
    attn = api.compile(Spec(head_dim=16, dtype="float32", mask="causal"), **given)
    again = travel(attn)
    assert (again.spec, again.arch, again.backend, again.program) == (attn.spec, attn.arch, attn.backend, attn.program)
    if "sm_80" not in given.values():
        np.testing.assert_array_equal(again(q, k, v), attn(q, k, v))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("causl", "no file 'causl', and no shipped spec of that name\ndid you mean 'causal'"),
        ("nowhere/causal", "no file nowhere/causal\ngive the path of a YAML file, or a mapping with its keys"),
        ({3: 1}, "unknown key 3"),
        (3, "a int is no spec"),
        (None, "a NoneType is no spec"),
    ],
)
def test_what_is_no_spec(given: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        api.compile(given)


def test_a_shipped_spec_by_its_name() -> None:
    assert api.compile("causal", backend="interpreter").spec == api.compile(spec_root() / "causal.yaml", backend="interpreter").spec


def test_numbers_of_numpy_in_a_mapping() -> None:
    plain = {"head_dim": 16, "dtype": "float32", "scale": 0.5, "score": "c * s", "params": {"c": 2.5}, "block": {"m": 64}}
    scalars = {"head_dim": np.int64(16), "dtype": "float32", "scale": np.float32(0.5), "score": "c * s", "params": {"c": np.array(2.5)}}
    assert api.compile(scalars | {"block": {"m": np.int32(64)}}).spec == api.compile(plain).spec


def test_unknown_backends_and_archs() -> None:
    with pytest.raises(BackendError, match="unknown backend 'interpretr': did you mean 'interpreter'"):
        api.compile({"head_dim": 16, "dtype": "float32"}, backend="interpretr")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="unknown arch 'sm_90b'"):
        api.compile({"head_dim": 16, "dtype": "float16"}, arch="sm_90b")


@no_gpu
def test_without_a_gpu_the_default_is_the_interpreter() -> None:
    attn = api.compile({"head_dim": 16, "dtype": "bfloat16"})
    assert attn.arch.name == "host"
    assert attn.kernels == ()
    with pytest.raises(BackendError, match="there is no text"):
        attn.source  # noqa: B018
    with pytest.raises(BackendError, match=r"driver|bindings"):
        api.compile({"head_dim": 16, "dtype": "bfloat16"}, backend="gpu")


@no_gpu
def test_a_kernel_is_compiled_without_a_gpu_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda13 or cuda12 extra")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    attn = api.compile({"head_dim": 64, "dtype": "bfloat16", "mask": "causal"}, arch="sm_90a")
    assert attn.kernels[0].binary.spill_bytes == 0
    text = attn.explain()
    assert "forward_sm90, tile" in text
    assert "compiled: forward_sm90 for sm_90a by NVRTC" in text
    assert "bytes of shared memory" in text
    q, k, v = qkv(d=64, dtype="bfloat16")
    assert attn(q, k, v).shape == q.shape


@pytest.mark.parametrize("name", ["max_batch", "max_q_len", "max_kv_len", "heads", "kv_heads"])
def test_a_param_that_prepare_could_not_tell_from_its_own_arguments_is_refused_there(name: str) -> None:
    attn = flashgen.compile({"head_dim": 16, "dtype": "float32", "score": f"s * {name}", "params": {name: 2.0}})
    with pytest.raises(
        CallError, match=f"^{name} is a param of the spec, and prepare has an argument of that name: call the param my_{name}$"
    ):
        attn.prepare(max_batch=1, max_q_len=1, max_kv_len=64, heads=2, kv_heads=1)
