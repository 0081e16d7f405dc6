"""New keys and values in a cache: NumPy's and the kernel's are those of a loop over tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen import appending
from flashgen.arch import by_name
from flashgen.bench.cases import rounded
from flashgen.bench.paged import table
from flashgen.emulate import HostKernel
from flashgen.emulate.memory import Watched, fence
from flashgen.errors import CallError
from flashgen.plan.alone import record
from flashgen.render.source import render_alone

HEADS, ROOM = 3, 24


@st.composite
def calls(draw):
    """Arrays of a call, by name, and what else it says."""
    rng = np.random.RandomState(draw(st.integers(0, 99)))
    dtype, layout = draw(st.sampled_from(["float16", "bfloat16", "float32"])), draw(st.sampled_from(["bshd", "bhsd", "thd"]))
    batch, page = draw(st.integers(1, 3)), draw(st.sampled_from([0, 1, 4, 8]))
    news = [draw(st.sampled_from([0, 1, 5])) for _ in range(batch)] if layout == "thd" else [draw(st.sampled_from([1, 4]))] * batch

    def array(*shape):
        return rounded(rng.standard_normal(shape), dtype)

    turned, rows = (lambda x: x.swapaxes(1, 2)) if layout == "bhsd" else (lambda x: x), page or ROOM
    before, behind = draw(st.sampled_from([(0, 0), (2, 3)]))  # tokens of no sequence
    new = (before + sum(news) + behind,) if layout == "thd" else (batch, news[0])
    found = {name: array(*new, HEADS, d) if layout == "thd" else turned(array(*new, HEADS, d)) for name, d in (("k", 10), ("v", 6))}
    pages = batch * (ROOM // page) + 2 if page else batch
    found |= {f"{name}_cache": turned(array(pages, rows, HEADS, d)) for name, d in (("k", 10), ("v", 6))}
    found["kv_lens"] = np.array([draw(st.sampled_from([n, n + 7, ROOM, 0, -5])) for n in news], np.int32)
    if page:
        found["block_table"] = table(batch, ROOM // page, rng)
        found["block_table"][0, -1] = draw(st.sampled_from([-1, 2**31 - 1, found["block_table"][0, -1]]))
    if layout == "thd":
        found["cu_seqlens"] = before + np.cumsum([0, *news], dtype=np.int32)
    half = draw(st.sampled_from([0, 2, 5]))
    angles = rng.standard_normal((ROOM, half))
    rotary = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)) if half else None
    return found, {"layout": layout, "rotary": rotary, "interleaved": draw(st.booleans())}


def expected(arrays, layout, rotary, interleaved):
    """Both caches after the call, token by token, in float64 where keys are turned."""
    rows = (lambda x: x.swapaxes(1, 2)) if layout == "bhsd" else (lambda x: x)
    caches = [rows(arrays[name]).copy() for name in ("k_cache", "v_cache")]
    table, page = arrays.get("block_table"), caches[0].shape[1]
    for b, n in enumerate(arrays["kv_lens"].tolist()):
        if layout == "thd":
            k, v = (arrays[name][slice(*arrays["cu_seqlens"][b : b + 2])] for name in ("k", "v"))
        else:
            k, v = rows(arrays["k"])[b], rows(arrays["v"])[b]
        for i in range(len(k)):
            at = max(n, 0) - len(k) + i
            where = b if table is None else int(table[b, at // page]) if at >= 0 else -1
            if at < 0 or not 0 <= where < len(caches[0]):
                continue
            caches[0][where, at % page], caches[1][where, at % page] = turn(k[i], at, rotary, interleaved), v[i]
    return [rows(x) for x in caches]


def turn(k, at, rotary, interleaved):
    if rotary is None:
        return k
    k, half = k.astype(np.float64), rotary[0].shape[1]
    for i, (cos, sin) in enumerate(zip(rotary[0][at].astype(np.float64), rotary[1][at].astype(np.float64), strict=True)):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        k[:, a], k[:, b] = k[:, a] * cos - k[:, b] * sin, k[:, b] * cos + k[:, a] * sin
    return k


def judge(found, arrays, said):
    for name, x, wanted in zip(("k_cache", "v_cache"), found, expected(arrays, **said), strict=True):
        step = {2: 1e-2, 4: 1e-5}[x.itemsize] if name == "k_cache" and said["rotary"] else 0.0
        np.testing.assert_allclose(x.astype(np.float64), wanted.astype(np.float64), rtol=step, atol=step)


@given(calls())
@settings(max_examples=40)
def test_in_numpy(call):
    arrays, said = call
    written = {name: x.copy(order="K") for name, x in arrays.items()}
    flashgen.append(**written, **said)
    judge((written["k_cache"], written["v_cache"]), arrays, said)
    assert all(written[name].tobytes() == arrays[name].tobytes() for name in arrays if "cache" not in name)


@given(calls(), st.integers(0, 3))
@settings(max_examples=5)
def test_the_kernel_on_the_emulator(call, seed):
    arrays, said = call
    given_to = {name: fence(x) for name, x in {**arrays, **dict(zip(("cos", "sin"), said["rotary"] or (), strict=False))}.items()}
    plan, strides, scalars, _ = appending.planned(given_to, said["layout"], said["interleaved"])
    if scalars["tokens"]:
        watched = {name: Watched(x, "update" if "cache" in name else "constant") for name, x in given_to.items()}
        held = record(plan, {name: x.ctypes.data for name, x in given_to.items()}, strides, scalars)
        kernel = HostKernel(render_alone(plan).text, "append", "append.cu")
        kernel.launch(scalars["tokens"], plan.threads, 0, held, seed, arrays=watched, arch=by_name(plan.arch))
    judge((given_to["k_cache"], given_to["v_cache"]), arrays, said)


def changed(**arrays):
    """Arguments of a call that fits, some of which do not."""
    cache, new = np.zeros((5, 4, 2, 8), np.float16), np.zeros((2, 1, 2, 8), np.float16)
    table = np.zeros((2, 2), np.int32)
    return {"k_cache": cache, "v_cache": cache.copy(), "k": new, "v": new, "kv_lens": table[0], "block_table": table} | arrays


@pytest.mark.parametrize(
    ("given_to", "message"),
    [
        (
            changed(v=np.zeros((2, 1, 1, 8), np.float16)),
            r"v has shape \[2, 1, 1, 8\], as \[B, S, H, D\], beside k .*: expected \[2, 1, 2, 8\]",
        ),
        (changed(k_cache=np.zeros((5, 4, 2, 8), np.float32)), "k_cache is float32: expected float16"),
        (changed(kv_lens=np.zeros(3, np.int32)), r"kv_lens has shape \[3\] beside k .*: expected \[2\]"),
        (changed(kv_lens=np.zeros(2, np.int64)), "kv_lens is int64: expected int32"),
        (changed(block_table=None), r"k_cache has shape \[5, 4, 2, 8\], as .*: expected \[2, 4, 2, 8\]"),
        (changed(block_table=np.zeros(2, np.int32)), r"block_table has 1 axes, shape \[2\]: expected 2"),
        (changed(rotary=(np.zeros((9, 5), np.float32),) * 2), r"cos has shape \[9, 5\] beside k .*: expected \[9, 4\]"),
        (changed(layout="thd"), "layout is thd, and cu_seqlens is missing"),
        (changed(layout="sbhd"), "unknown layout 'sbhd'"),
        (changed(layout=None), "unknown layout None: known: bshd, bhsd, thd"),
        (changed(layout=["bshd"]), "unknown layout"),
        (changed(k=np.zeros((2, 1, 2, 8), np.int32)), "k is int32: expected float16, bfloat16, float32"),
        (changed(rotary=np.zeros((9, 4), np.float32)), r"rotary is a ndarray: expected two arrays, \(cos, sin\)"),
        (changed(rotary=(np.zeros((9, 4), np.float32), None)), r"rotary is \['ndarray', 'NoneType'\]: expected two arrays"),
        (changed(rotary=(np.zeros((9, 4), np.float32),)), r"rotary is \['ndarray'\]: expected two arrays"),
        (
            changed(layout="thd", k=np.zeros((0, 2, 8), np.float16), v=np.zeros((0, 2, 8), np.float16), cu_seqlens=np.zeros(0, np.int32)),
            r"cu_seqlens has shape \[0\]: expected \[B \+ 1\]",
        ),
        (changed(k_cache=[1]), "k_cache is a list: append takes arrays of NumPy, CuPy and PyTorch"),
        (changed(v_cache=np.broadcast_to(np.float16(0), (5, 4, 2, 8))), "v_cache is read-only"),
    ],
)
def test_what_does_not_fit_is_told(given_to, message):
    with pytest.raises(CallError, match=message):
        flashgen.append(**given_to)


def test_what_attention_then_sees():
    rng = np.random.RandomState(0)
    attention = flashgen.compile({"dtype": "float32", "head_dim": 8, "mask": "causal", "cache": {"page": 4}}, backend="interpreter")
    q, k, v = (rng.standard_normal((1, 6, 1, 8)).astype(np.float32) for _ in range(3))
    k_pages, v_pages, block_table = np.zeros((3, 4, 1, 8), np.float32), np.zeros((3, 4, 1, 8), np.float32), np.int32([[2, 0]])
    for i in range(6):
        lens, one = np.int32([i + 1]), slice(i, i + 1)
        flashgen.append(k_pages, v_pages, k[:, one], v[:, one], lens, block_table=block_table)
        o = attention(q[:, one], k_pages, v_pages, kv_lens=lens, block_table=block_table)
    whole = flashgen.compile({"dtype": "float32", "head_dim": 8, "mask": "causal"}, backend="interpreter")(q, k, v)
    np.testing.assert_allclose(o, whole[:, -1:], atol=1e-6)
