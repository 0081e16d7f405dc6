"""Gradients on a GPU, beside the float64 reference: every kind of mask, score and softmax, arrays of CuPy, PyTorch and NumPy."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.interpret import Given
from flashgen.plan.geometry import Sizes
from flashgen.runtime import arrays as runtime_arrays
from flashgen.spec import Spec
from tests.gpu.judge import cupy, down, replayed, up
from tests.plan import gradients
from tests.plan.agreement import judge_of
from tests.plan.backward_memory import stated

CAUSAL = Spec(head_dim=64, dtype="bfloat16", mask="causal", backward=True)
C = {"c": {"default": 5.0, "grad": True}}


def tensor(*shape: Any, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype} | ({"grad": True} if dtype == "float32" else {})


SPECS: dict[str, dict[str, Any]] = {
    "full": {"head_dim": 64, "dtype": "float16"},
    "causal": {"head_dim": 128, "mask": "causal"},
    "window": {"head_dim": 64, "mask": "window(70, 0)"},
    "chunk": {"head_dim": 96, "mask": "causal & chunk(100)", "layout": "bhsd"},
    "other columns": {"head_dim": {"qk": 128, "v": 64}, "mask": "causal"},
    "256": {"head_dim": 256, "mask": "causal"},
    "256 full": {"head_dim": 256, "dtype": "float16"},
    "256 softcap": {"head_dim": 256, "mask": "causal", "score": "c * tanh(s / c)", "params": {"c": 5.0}},
    "192 and 128": {"head_dim": {"qk": 192, "v": 128}, "mask": "causal"},
    "64 and 136": {"head_dim": {"qk": 64, "v": 136}, "mask": "window(70, 0)", "dtype": "float16"},
    "documents": {"head_dim": 64, "mask": "causal & document(ids)", "tensors": {"ids": tensor("b", "kv_len", dtype="int32")}},
    "softcap": {"head_dim": 128, "mask": "causal", "score": "c * tanh(s / c)", "params": C},
    "alibi": {"head_dim": 64, "mask": "causal", "score": "s + x[h] * (kv_idx - q_idx) * 0.01", "tensors": {"x": tensor("hq")}},
    "bias": {
        "head_dim": 64,
        "dtype": "float16",
        "score": "s + x[b, h, q_idx, kv_idx]",
        "tensors": {"x": tensor("b", "hq", "q_len", "kv_len")},
    },
    "keys": {"head_dim": 64, "score": "s * sigmoid(x[b, h, kv_idx])", "tensors": {"x": tensor("b", "hq", "kv_len")}},
    "sink": {"head_dim": 64, "mask": "causal", "softmax": {"sink": "x[h]"}, "tensors": {"x": tensor("hq")}},
    "sigmoid": {"head_dim": 64, "score": "sigmoid(s)", "softmax": "none"},
    "scale": {"head_dim": 72, "dtype": "float16", "scale": "c / sqrt(d)", "params": C},
    "weight": {"head_dim": 64, "mask": "causal", "weight": "x[b, h, kv_idx]", "tensors": {"x": tensor("b", "hq", "kv_len")}},
    "weight alone": {"head_dim": 128, "weight": "exp(-0.01 * abs(q_idx - kv_idx))", "score": "c * tanh(s / c)", "params": {"c": 5.0}},
    "weight of 256": {"head_dim": 256, "mask": "causal", "weight": "x[h, kv_idx]", "tensors": {"x": tensor("hq", "kv_len")}},
    "weighed scores": {
        "head_dim": 128,
        "score": "sigmoid(s)",
        "softmax": "none",
        "weight": "x[h, kv_idx]",
        "tensors": {"x": tensor("hq", "kv_len")},
    },
    "gate": {
        "head_dim": 64,
        "mask": "causal",
        "output": "o * sigmoid(x[b, q_idx, h, v_idx])",
        "tensors": {"x": tensor("b", "q_len", "hq", 64)},
    },
    "output": {"head_dim": 128, "output": "c * tanh(o / c) + x[h, v_idx]", "tensors": {"x": tensor("hq", 128)}, "params": C},
    "output of 256": {"head_dim": 256, "output": "o * x[h, q_idx]", "tensors": {"x": tensor("hq", "q_len")}},
    "output and weight": {
        "head_dim": 72,
        "dtype": "float16",
        "softmax": {"sink": "x[h]"},
        "weight": "1.0 + x[h] * x[h]",
        "output": "o * silu(x[h])",
        "tensors": {"x": tensor("hq")},
    },
    "o of float32": {"head_dim": 64, "mask": "causal", "out_dtype": "float32"},
    "o of float32, 256": {"head_dim": 256, "mask": "causal", "out_dtype": "float32", "layout": "bhsd"},
    "o of 16 other bits": {"head_dim": 128, "dtype": "float16", "out_dtype": "bfloat16"},
    "gate of float32 o": {"head_dim": 64, "output": "o * x[h, v_idx]", "tensors": {"x": tensor("hq", 64)}, "out_dtype": "float32"},
    "deterministic": {"head_dim": 64, "mask": "causal", "deterministic": True},
    "norm and rotary": {
        "head_dim": 128,
        "mask": "causal",
        "norm": {"query": "x", "key": "x"},
        "rotary": {"kind": "halves", "base": 10000.0},
        "tensors": {"x": tensor(128)},
    },
}


def values_of(spec: Spec, sizes: dict[str, int]) -> dict[str, Any]:
    """Tensors of a call; of a bias over all pairs the sequences share one."""
    random, found = np.random.default_rng(7), {}
    for t in spec.tensors:
        shape = [1 if n == "b" and len(t.shape) == 4 else sizes[n] if isinstance(n, str) else n for n in t.shape]
        found[t.name] = (
            np.sort(random.integers(0, 4, shape), -1).astype(np.int32) if t.dtype == "int32" else np.float32(random.normal(size=shape))
        )
    return found


def named(spec: Spec, found: Any) -> dict[str, Any]:
    return dict(zip(("dq", "dk", "dv", *(one.name for one in spec.with_grad)), found, strict=True))


def called(attention: Any, given: Given, values: dict[str, Any]) -> Any:
    """The gradients of CuPy's arrays, as NumPy's."""
    sent = {name: up(x)[0] for name, x in vars(given).items() if x is not None}
    lse, dlse = sent.pop("lse", None), sent.pop("dlse", None)
    sent[attention.spec.kept] = sent.pop("o")
    return down(attention.backward(**sent, lse=lse, dlse=dlse, **{name: up(x)[0] for name, x in values.items()}))


@pytest.mark.parametrize("name", SPECS)
def test_gradients(name: str) -> None:
    spec = Spec(**{"dtype": "bfloat16", "backward": True, **SPECS[name]})
    attention = flashgen.compile(spec)
    for batch, heads, kv_heads, q_len, kv_len in ((2, 4, 2, 300, 333), (1, 2, 2, 1, 130)):
        values = values_of(spec, {"b": batch, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len})
        given = gradients.given(spec, batch, heads, kv_heads, q_len, kv_len, dlse=True, **values)
        gradients.judge(spec, named(spec, called(attention, given, values)), given, **values)


@pytest.mark.parametrize("name", ["gate", "output", "output of 256", "output and weight"])
def test_the_forward_gives_o_raw(name: str) -> None:
    """Beside o, which a kernel of its own makes of it; some queries, and few."""
    spec = Spec(**{"dtype": "bfloat16", "backward": True, **SPECS[name]})
    attention = flashgen.compile(spec)
    for batch, heads, kv_heads, q_len, kv_len in ((2, 4, 2, 300, 333), (1, 8, 2, 1, 700)):
        values = values_of(spec, {"b": batch, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len})
        given = gradients.given(spec, batch, heads, kv_heads, q_len, kv_len, **values)
        sent = {name: up(x)[0] for name, x in values.items()}
        found = down(attention(*(up(x)[0] for x in (given.q, given.k, given.v)), **sent))
        judge_of(spec, given.q, given.k, given.v, **values)(dict(zip(spec.outputs, found, strict=True)))


@pytest.mark.parametrize("shape", [(2, 2, 1, 0, 20), (1, 2, 1, 20, 0), (1, 2, 1, 200, 100)])
def test_rows_without_keys_and_keys_without_rows(shape: tuple[int, ...]) -> None:
    given = gradients.given(CAUSAL, *shape)
    gradients.judge(CAUSAL, named(CAUSAL, called(flashgen.compile(CAUSAL), given, {})), given)


def test_rows_that_no_tensor_map_takes() -> None:
    """Every second row of an array whose rows are aligned to 8 bytes."""
    given, attention = gradients.given(CAUSAL, 1, 4, 2, 150, 160), flashgen.compile(CAUSAL)
    wide = {name: np.zeros((*x.shape[:-1], 68), x.dtype) for name, x in vars(given).items() if name in ("q", "k", "v", "o", "do")}
    for name, x in wide.items():
        x[..., :64] = getattr(given, name)
    views = {name: up(x)[0][..., :64] for name, x in wide.items()}
    found = down(attention.backward(**views, lse=up(given.lse)[0]))
    gradients.judge(CAUSAL, named(CAUSAL, found), given)


def test_torch_and_numpy() -> None:
    torch = pytest.importorskip("torch")
    given, attention = gradients.given(CAUSAL, 2, 4, 2, 100, 120, dlse=True), flashgen.compile(CAUSAL)
    family = runtime_arrays.FAMILIES[torch.Tensor]
    sent = {name: family.from_numpy(x).cuda() for name, x in vars(given).items()}
    found = attention.backward(**sent)
    assert all(isinstance(x, torch.Tensor) and x.device == sent["q"].device for x in found)
    gradients.judge(CAUSAL, named(CAUSAL, [family.to_numpy(x.cpu()) for x in found]), given)
    gradients.judge(CAUSAL, named(CAUSAL, attention.backward(**vars(given))), given)


IN_ANY_ORDER: dict[str, dict[str, Any]] = {
    "scores": {
        "score": "c * tanh((s + x[h, q_idx - kv_idx + 300] + y[b, kv_idx] + z[b, h, q_idx, kv_idx]) / c)",
        "softmax": {"sink": "x[h, 3]"},
        "tensors": {"x": tensor("hq", 700), "y": tensor("b", "kv_len"), "z": tensor("b", "hq", "q_len", "kv_len")},
        "params": C,
    },
    "buckets": {"score": "s + x[h, min(15, (q_idx - kv_idx) // 4)]", "tensors": {"x": tensor("hq", 16)}},
    "weight and output": {
        "weight": "x[b, h, kv_idx]",
        "output": "o * y[b, q_idx, h, v_idx] + c * z[h, v_idx]",
        "tensors": {"x": tensor("b", "hq", "kv_len"), "y": tensor("b", "q_len", "hq", 64), "z": tensor("hq", 64)},
        "params": C,
    },
    "a norm": {"norm": {"query": "x", "key": "x"}, "head_dim": 64, "tensors": {"x": tensor(64)}},
}


@pytest.mark.parametrize("qk", [64, 192])
@pytest.mark.parametrize("arch", ["sm_90a", "sm_90"])
@pytest.mark.parametrize("name", IN_ANY_ORDER)
def test_the_same_bits_in_five_runs(name: str, arch: str, qk: int) -> None:
    """Gradients of tensors and params too, whatever blocks come first; and as near the reference as others."""
    said = {"dtype": "bfloat16", "head_dim": {"qk": qk, "v": 64}, "mask": "causal", "backward": True, "deterministic": True}
    spec, sizes = Spec(**said | IN_ANY_ORDER[name]), {"b": 2, "hq": 4, "hk": 2, "q_len": 300, "kv_len": 333}
    attention = flashgen.compile(spec, arch=arch)
    random = np.random.default_rng(3)
    shapes = {t.name: [sizes.get(str(n), n) for n in t.shape] for t in spec.tensors}
    values = {name: np.float32(random.normal(size=shape)) for name, shape in shapes.items()}
    given = gradients.given(spec, 2, 4, 2, 300, 333, dlse=True, **values)
    runs = [called(attention, given, values) for _ in range(5)]
    gradients.judge(spec, named(spec, runs[0]), given, **values)
    assert len({tuple(x.tobytes() for x in run) for run in runs}) == 1


def test_sums_take_memory_of_their_elements_alone() -> None:
    cp, heads, n = cupy(), 2, 4096
    spec = Spec(**CAUSAL.to_json() | {"deterministic": True, "score": "s + x[h, kv_idx]", "tensors": {"x": tensor("hq", "kv_len")}})
    attention = flashgen.compile(spec)
    q, k, v, o, do = (cp.zeros((1, n, heads, 64), np.uint16).view(spec.element.numpy) for _ in range(5))
    lse, x = cp.zeros((1, heads, n), np.float32), cp.zeros((heads, n), np.float32)
    attention.backward(do, q, k, v, o, lse, x=x)
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    results = attention.backward(do, q, k, v, o, lse, x=x)
    assert pool.total_bytes() - before < sum(x.nbytes for x in results) + 2 * q.size * 4 + 104 * x.size


MEMORY: dict[str, tuple[dict[str, Any], str | None, tuple[int, int, int]]] = {  # the spec, an arch, heads, key/value heads, length
    "full": ({"mask": "full"}, None, (2, 2, 8192)),
    "causal": ({}, None, (2, 2, 8192)),
    "shared query heads": ({"head_dim": 128}, None, (32, 8, 2048)),
    "one key/value head": ({}, None, (64, 1, 4096)),
    "deterministic": ({"deterministic": True}, None, (8, 2, 4096)),
    "deterministic, mma.sync": ({"deterministic": True}, "sm_90", (8, 2, 4096)),
    "256": ({"head_dim": 256}, None, (16, 4, 2048)),
    "o of float32": ({"out_dtype": "float32"}, None, (8, 8, 4096)),
}


@pytest.mark.parametrize("name", MEMORY)
def test_nothing_of_the_size_of_the_scores_is_kept(name: str) -> None:
    """Besides results: row sums, the gradient of q in float32, and those of k and v where blocks share query heads."""
    said, arch, (heads, kv_heads, n) = MEMORY[name]
    spec = Spec(**(CAUSAL.to_json() | said))
    cp, attention, d = cupy(), flashgen.compile(spec, arch), spec.head_dim.qk
    q, k, v = (cp.zeros((1, n, h, d), np.uint16).view(spec.element.numpy) for h in (heads, kv_heads, kv_heads))
    o, do = (cp.zeros((1, n, heads, d * spec.out_element.bytes // 2), np.uint16).view(spec.out_element.numpy) for _ in range(2))
    lse = cp.zeros((1, heads, n), np.float32)
    attention.backward(do, q, k, v, o, lse)
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    results = attention.backward(do, q, k, v, o, lse)
    (kernels,) = attention._gpu_backward.kernels.values()
    assert (kernels.program.main.head_shares > 1) == (kv_heads < heads and "deterministic, mma" not in name), (
        kernels.program.main.head_shares
    )
    besides = stated(kernels.program, Sizes(batch=1, q_len=n, kv_len=n, heads=heads, kv_heads=kv_heads))
    assert pool.total_bytes() - before <= sum(x.nbytes for x in results) + besides + 16384  # what arrays are rounded up to


@pytest.mark.parametrize("keys", [{}, {"deterministic": True}, {"head_dim": 256}], ids=["plain", "deterministic", "two blocks"])
def test_a_graph_of_cupy_replays(keys: dict[str, Any]) -> None:
    """On contents that arrays have by then."""
    spec = Spec(**(CAUSAL.to_json() | keys))
    calls = [gradients.given(spec, 1, 4, 2, 200, 300, seed=seed) for seed in (1, 2)]
    contents = [{name: x for name, x in vars(given).items() if x is not None} for given in calls]
    for given, found in zip(calls, replayed(flashgen.compile(spec).backward, contents), strict=True):
        gradients.judge(spec, named(spec, found), given)


def test_many_blocks() -> None:
    """More sequences than a second axis of a grid counts; each has one key, of which the weight is 1 whatever the score."""
    attention, cp = flashgen.compile(Spec(head_dim=16, dtype="float16", backward=True)), cupy()
    q, k, v, do = (cp.random.standard_normal((70000, 1, 1, 16)).astype(np.float16) for _ in range(4))
    o, lse = attention(q, k, v)
    out = tuple(cp.full_like(q, np.nan) for _ in range(3))
    dq, dk, dv = down(attention.backward(do, q, k, v, o, lse, out=out))
    assert np.array_equal(dv, do.get())
    assert max(np.abs(x).max() for x in (dq, dk)) < 1e-3
