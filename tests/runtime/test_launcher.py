"""Launchers: what they launch is what a call launches, in memory that was there before, whatever lengths come.

CuPy arrays at made-up addresses stand for those on a GPU, and instead of a launch its record, grids and stream are kept.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashgen
from flashgen.errors import BackendError, CallError
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.params import record_dtype
from flashgen.plan.shares import Demands
from flashgen.runtime import device, launcher
from flashgen.runtime.arguments import checked_bounds
from flashgen.runtime.gpu import Gpu
from flashgen.runtime.launcher import Launcher
from flashgen.runtime.scratch import Scratch, largest
from flashgen.spec import Spec
from tests.runtime.launches import CARD, Launches, launches
from tests.runtime.test_arrays import on_gpu

pytest.importorskip("cupy")
driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

__all__ = ["launches"]
COUNTER = 77 << 40
MEMORY = launcher._memory
WORKSPACE = COUNTER + launcher._COUNTER_BYTES
BASE = {"head_dim": 64, "dtype": "bfloat16", "mask": "causal"}
EMBEDDED = {"norm": {}, "rotary": {"kind": "halves", "base": 100.0}}
SPECS = {
    "dense": Spec(**BASE, outputs=["o", "lse"], params={"c": 2.0}, score="c * s"),
    "whole": Spec(**BASE, split=1),
    "auto": Spec(**BASE, split="auto"),
    "cached": Spec(**BASE, cache="contiguous"),
    "paged": Spec(**BASE, cache={"page": 16}),
    "thd": Spec(**BASE, layout="thd"),
    "thd auto": Spec(**BASE, layout="thd", split="auto"),
    "thd paged": Spec(**BASE, layout="thd", cache={"page": 16}),
    "embedded": Spec(**BASE, outputs=["o", "lse"], **EMBEDDED),
    "embedded, float32": Spec(**BASE | {"dtype": "float32"}, **EMBEDDED),
    "embedded, thd": Spec(**BASE, layout="thd", **EMBEDDED),
    "embedded, thd, auto": Spec(**BASE, layout="thd", split="auto", **EMBEDDED),
    "embedded, paged": Spec(**BASE, cache={"page": 16}, norm={"of": ["q"]}, rotary=EMBEDDED["rotary"] | {"of": ["q"]}),
    "bias": Spec(**BASE | {"score": "s + bias[h, kv_idx]"}, tensors={"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}}),
}
MOST = {"batch": 4, "q_len": 40, "kv_len": 4096, "heads": 8, "kv_heads": 2}


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_memory", lambda *_: COUNTER)


def prepared(spec: Spec, **most: int) -> Launcher:
    return Launcher(Gpu(spec, None), CARD, checked_bounds(spec, MOST | most), {"c": 3.0} if spec.params else {})


def call(spec: Spec, batch: int, q_len: int, kv_len: int, heads: int = 8, first: int = 1) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """q, k and v, the tensors, and outputs, at addresses from a number of terabytes on."""
    element, addresses = spec.element.numpy, iter(range(first, 99))

    def array(*shape: int, dtype: Any = np.int32) -> Any:
        return on_gpu(shape, dtype, address=next(addresses) << 40)

    q = array(*([] if spec.geometry.packed else [batch]), q_len, heads, 64, dtype=element)
    keys = (90, 16) if spec.page else (kv_len,) if spec.geometry.packed else (batch, kv_len)
    k, v = (array(*keys, heads // 4, 64, dtype=element) for _ in range(2))
    shapes = {"cu_seqlens_q": (batch + 1,), "cu_seqlens_k": (batch + 1,), "kv_lens": (batch,), "block_table": (batch, kv_len // 16)}
    tensors = {t.name: array(*shapes[t.name]) if t.name in shapes else array(heads, kv_len, dtype=np.float32) for t in spec.arrays}
    o = array(*q.shape, dtype=element)
    return (q, k, v), tensors, (o, array(batch, heads, q_len, dtype=np.float32)) if len(spec.outputs) > 1 else o


@pytest.mark.parametrize("name", SPECS)
def test_it_launches_what_a_call_launches(launches: Launches, name: str) -> None:
    """Up to memory of its own; a sequence of calls that patch, prepare anew, and come back."""
    spec = SPECS[name]
    run = prepared(spec)
    for batch, q_len, kv_len in [(4, 1, 2048), (4, 1, 2064), (4, 1, 2064), (2, 1, 2080), (2, 5, 2096), (4, 40, 4096), (1, 1, 16)]:
        qkv, tensors, out = call(spec, batch, q_len, kv_len)
        launches.clear()
        launches.made = 0
        assert run(*qkv, **tensors, out=out) is out
        assert not launches.made
        alone = Gpu(spec, None, choice=run._gpu.choice)
        alone((*qkv, *tensors.values()), out if isinstance(out, tuple) else (out,), run._params)
        ours, theirs = launches
        assert ours[1] == theirs[1]
        arguments = record_dtype(run.program.arguments)
        mine, other = (np.frombuffer(record, arguments)[0] for record, _ in launches)
        scratch = [s.name for s in run.program.scratch]
        for argument in run.program.arguments:
            ours_here, theirs_here = mine[argument.name], other[argument.name]
            if argument.of in scratch and argument.kind == "pointer":
                assert WORKSPACE <= ours_here < WORKSPACE + run.workspace_bytes
            elif argument.of in scratch and argument.kind == "tensor_map":
                (ours_map, at), (theirs_map, _) = (x.tobytes().strip(b") ").rsplit(b", ", 1) for x in (ours_here, theirs_here))
                assert ours_map == theirs_map
                assert WORKSPACE <= int(at) < WORKSPACE + run.workspace_bytes
            elif argument.of == "counter":
                assert ours_here == COUNTER
            elif argument.of in scratch and argument.kind in ("array", "sums"):
                assert (ours_here["strides"] == theirs_here["strides"]).all()
            else:
                assert ours_here.tobytes() == theirs_here.tobytes(), argument.name


@given(
    st.sampled_from([name for name in SPECS if name not in ("whole", "bias")]),
    st.integers(1, 6),
    st.integers(1, 200),
    st.integers(1, 9000),
    st.data(),
)
def test_no_call_needs_more_memory_than_there_is(name: str, batch: int, q_len: int, kv_len: int, data: st.DataObject) -> None:
    spec = SPECS[name]
    most = Sizes(batch=batch, q_len=q_len, kv_len=kv_len, heads=8, kv_heads=2)
    program = plan(spec, "sm_90a", demand=Demands(spec, CARD.arch).of(most))
    room = largest(program, most)
    sizes = [data.draw(st.integers(1, n)) for n in (batch, q_len, kv_len)]
    some = Sizes(batch=sizes[0], q_len=sizes[1], kv_len=sizes[2], heads=8, kv_heads=2)
    assert 4 * Scratch.of(program, some).words <= room


@pytest.mark.usefixtures("launches")
def test_later_calls_are_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    run, spec, made = prepared(SPECS["dense"]), SPECS["dense"], []
    prepare = Gpu.prepare
    monkeypatch.setattr(Gpu, "prepare", lambda *given: made.append(given) or prepare(*given))
    for kv_len in range(1000, 1400):
        qkv, tensors, out = call(spec, 4 - kv_len % 3, 1, kv_len)  # sequences come and go
        run(*qkv, **tensors, out=out)
    assert len(made) == 2 * 3  # of each batch in either class of lengths


def test_its_memory_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    monkeypatch.setattr(driver, "cuMemAlloc", lambda _: (0, COUNTER))
    monkeypatch.setattr(driver, "cuMemsetD8Async", lambda *_: (0,))
    monkeypatch.setattr(driver, "cuMemFree", lambda address: freed.append(address) or (0,))
    target = SimpleNamespace(aside=lambda: nullcontext(5), active=nullcontext)
    owner = type("Owner", (), {})()
    assert MEMORY(owner, target, 1000) == COUNTER
    assert not freed
    del owner
    assert freed == [COUNTER]


def test_streams_and_captures_share_its_counter(launches: Launches) -> None:
    run, (qkv, tensors, out) = prepared(SPECS["dense"]), call(SPECS["dense"], 4, 1, 1000)
    for stream in (0, 5, 5, 0):
        launches.stream = stream
        run(*qkv, **tensors, out=out)
        assert {at for _, at in launches[-1][1]} == {stream}
    launches.stream = 0


@pytest.mark.parametrize("of", ["k", "qk"])
def test_without_keys_that_would_become_others(launches: Launches, of: str) -> None:
    """All of the scratch may be empty then."""
    spec = Spec(**BASE, split=1, norm={"of": list(of)})
    run, (qkv, _, out) = prepared(spec), call(spec, 4, 1, 0)
    run(*qkv, out=out)
    Gpu(spec, None, choice=run._gpu.choice)(qkv, (out,), run._params)
    for record, grids in launches[-2:]:
        found = np.frombuffer(record, record_dtype(run.program.arguments))[0]
        assert (found["q_len"], found["kv_len"], found["batch"]) == (1, 0, 4)
        assert dict(zip([kernel.entry for kernel in run.program.kernels], grids, strict=True))["embed_k"][0] == 0


def test_without_queries_or_keys(launches: Launches) -> None:
    spec = SPECS["whole"]
    run = prepared(spec)
    launches.clear()
    qkv, _, out = call(spec, 4, 1, 0)
    run(*qkv, out=out)
    (record, _) = launches[0]
    assert np.frombuffer(record, record_dtype(run.program.arguments))[0]["kv_len"] == 0
    qkv, _, out = call(spec, 4, 1, 100)
    run(*qkv, out=out)
    assert len(launches) == 2


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((5, 1, 100), "^batch is 5, and the launcher is for max_batch=4: prepare a launcher with larger bounds"),
        ((4, 41, 100), "^q_len is 41, and the launcher is for max_q_len=40"),
        ((4, 1, 4097), "^kv_len is 4097, and the launcher is for max_kv_len=4096"),
        ((4, 1, 100, 16), "^q has 16 heads and k 4, and the launcher is for heads and kv_heads of 8 and 2"),
    ],
)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.usefixtures("launches")
def test_calls_beyond_the_bounds(sizes: tuple[int, ...], message: str, before: bool) -> None:
    spec = SPECS["whole"]
    run = prepared(spec)
    if before:
        qkv, _, out = call(spec, 4, 1, 4096)
        run(*qkv, out=out)
    qkv, _, out = call(spec, *sizes)
    with pytest.raises(CallError, match=message):
        run(*qkv, out=out)


@pytest.mark.usefixtures("launches")
def test_mistakes() -> None:
    spec = SPECS["dense"]
    run, (qkv, _, out) = prepared(spec), call(spec, 4, 1, 1000)
    with pytest.raises(CallError, match=r"^c is a number that a launcher keeps: give it to prepare, c=1.5"):
        run(*qkv, out=out, c=1.5)
    with pytest.raises(CallError, match=r"^out holds 1 arrays: expected 2, o, lse"):
        run(*qkv, out=out[0])
    with pytest.raises(CallError, match=r"^unknown argument 'softmax_scale'"):
        run(*qkv, out=out, softmax_scale=1.0)
    with pytest.raises(CallError, match=r"^out for o shares memory with q"):
        run(*qkv, out=(qkv[0], out[1]))
    with pytest.raises(CallError, match=r"^q lies on the host: a launcher takes arrays on GPU 0"):
        run(np.zeros((4, 1, 8, 64), spec.element.numpy), *qkv[1:], out=out)
    with pytest.raises(CallError, match=r"^an argument is a list"):
        run([1], *qkv[1:], out=out)
    other = on_gpu((4, 1, 8, 64), spec.element.numpy, device=1)
    with pytest.raises(CallError, match=r"^q lies on GPU 1: the launcher was prepared on GPU 0"):
        run(other, *qkv[1:], out=out)
    cached, (qkv, _, out) = prepared(SPECS["cached"]), call(SPECS["cached"], 4, 1, 1000)
    with pytest.raises(CallError, match=r"^kv_lens, int32 of shape"):
        cached(*qkv, out=out)
    with pytest.raises(CallError, match=r"^kv_lens is int64: lengths are int32"):
        cached(*qkv, kv_lens=on_gpu((4,), np.int64), out=out)


@pytest.mark.usefixtures("launches")
def test_arrays_that_the_kernel_cannot_address() -> None:
    spec = SPECS["whole"]
    run, (qkv, _, out) = prepared(spec), call(spec, 4, 1, 1000)
    odd = on_gpu((4, 1000, 2, 65), spec.element.numpy, address=50 << 40)[..., :64]
    with pytest.raises(CallError, match=r"^k: .*: the launcher's kernel cannot address that. Pass a copy, or call the attention itself"):
        run(qkv[0], odd, qkv[2], out=out)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_batch": 0}, r"^max_batch is 0: expected an integer from 1 to \d+"),
        ({"max_kv_len": 2**31}, "^max_kv_len is 2147483648: expected an integer from 1"),
        ({"heads": 2.0}, "^heads is 2.0: expected an integer"),
        ({"heads": 5}, "^q has 5 heads and k has 2:"),
        ({"softcap": 3.0}, "^unknown argument 'softcap'"),
    ],
)
def test_bounds(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], message: str) -> None:
    attn = flashgen.compile(SPECS["dense"], "host")
    monkeypatch.setattr(device, "missing", lambda: None)
    bounds = {"max_batch": 1, "max_q_len": 1, "max_kv_len": 100, "heads": 8, "kv_heads": 2}
    with pytest.raises(CallError, match=message):
        attn.prepare(**bounds | wrong)


def test_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "missing", lambda: "no GPU here")
    with pytest.raises(BackendError, match="no GPU here"):
        flashgen.compile(SPECS["dense"], "host").prepare(max_batch=1, max_q_len=1, max_kv_len=1, heads=1, kv_heads=1)
