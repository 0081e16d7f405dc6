"""The functions that XLA calls: an attention and its backward, on the CPU and in the caller's stream on a GPU."""

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from flashgen.dtypes import by_name
from flashgen.jax import frame as xla
from flashgen.jax.frame import Operand
from flashgen.jax.text import Text, text_of
from flashgen.plan.geometry import Sizes
from flashgen.runtime.device import beside_captures, captured, holding
from flashgen.runtime.lent import Lent
from flashgen.runtime.tma import ALIGNMENT

# XLA keeps a name for ever: another meaning is another name.
FORWARD, CAPTURED, BACKWARD = "flashgen_attention_1", "flashgen_captured_attention_1", "flashgen_attention_backward_1"
_MOST_CAPTURED = 1 << 26  # pairs of a query and a key; lists of tiles take a bit each, which captured calls keep for ever
_MEMORY: Any = ctypes.pythonapi.PyMemoryView_FromMemory
_MEMORY.restype, _MEMORY.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_READ, _WRITE = 0x100, 0x200
_KEPT: list[Any] = []  # XLA forgets no handler
_BOUND: dict[tuple[Any, ...], Callable[[list[int], list[int], Lent], None]] = {}  # by the text of a call, and what its arrays are like
_MOST_BOUND = 512


def forward_of(sizes: Sizes) -> str:
    """The name of an attention for calls of these sizes: XLA may capture those whose kernels need little memory besides arrays."""
    pairs = (sizes.batch, sizes.q_len, sizes.kv_len)
    known = all(isinstance(n, int) for n in pairs)  # of an exported program they may be symbols
    return CAPTURED if known and math.prod(pairs) <= _MOST_CAPTURED else FORWARD


def forward(given: list[Any], made: list[Any], told: str) -> None:
    """Computes an attention of arrays into others."""
    text = text_of(told)
    for named, out in _each(dict(zip(text.arrays, given, strict=True)), made, text.rank, text.foldable):
        q, k, v = (named.pop(name) for name in "qkv")
        values = {**named, **text.numbers}
        text.attention((q, k, v), values)(q, k, v, out=tuple(out), **values)


def forward_on_gpu(given: list[Lent], made: list[Lent], told: str) -> None:
    """Computes an attention on a GPU: what a call on arrays like these asked for is launched at other addresses."""
    key = (told, *[(x.shape, x.dtype, x.device, x.pointer % ALIGNMENT) for x in (*given, *made)])
    launch = _BOUND.get(key)
    if not launch and (launch := _bound(given, made, text_of(told))):
        if len(_BOUND) >= _MOST_BOUND:
            _BOUND.clear()
        _BOUND[key] = launch
    if launch:
        launch([x.pointer for x in given], [x.pointer for x in made], given[0])
    else:
        forward(given, made, told)


def _bound(given: list[Lent], made: list[Lent], text: Text) -> Callable[[list[int], list[int], Lent], None] | None:
    """The launch of a call on arrays like these, at any addresses; None where arrays stand for several calls, or there is no query."""
    calls = list(_each(dict(zip(text.arrays, given, strict=True)), made, text.rank, text.foldable))
    if len(calls) != 1:
        return None
    ((named, out),) = calls
    q, k, v = (named.pop(name) for name in "qkv")
    attention = text.attention((q, k, v), {**named, **text.numbers})
    launch = attention.bound(q, k, v, tuple(out), **named, **text.numbers)
    order = [text.arrays.index(name) for name in ("q", "k", "v", *(t.name for t in attention.spec.arrays))]

    def launch_at(arrays: list[int], outputs: list[int], beside: Lent) -> None:
        assert launch
        launch([arrays[i] for i in order] + outputs, beside)

    return launch_at if launch else None


def backward(given: list[Any], made: list[Any], told: str) -> None:
    """Computes the gradients of an attention into arrays."""
    text = text_of(told)
    for named, out in _each(dict(zip(text.arrays, given, strict=True)), made, text.rank, fold=False):
        roles = {name: named.pop(name, None) for name in ("do", "q", "k", "v", "o", "lse", "dlse")}
        values = {**named, **text.numbers}
        attention = text.attention((roles["q"], roles["k"], roles["v"]), values)
        roles[attention.spec.kept] = roles.pop("o")
        attention.backward(**roles, out=tuple(out), **values)


def _each(named: dict[str, Any], made: list[Any], rank: int, fold: bool) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """The calls that arrays stand for: where q has more axes than a call's, those of vmap, as many in front of each array."""
    more = named["q"].ndim - rank
    if not more:
        yield named, made
    elif fold:
        yield {name: _merged(x, more + 1) for name, x in named.items()}, [_merged(x, more + 1) for x in made]
    else:
        flat = {name: _merged(x, more) for name, x in named.items()}, [_merged(x, more) for x in made]
        for i in range(math.prod(named["q"].shape[:more])):
            yield {name: x[i] for name, x in flat[0].items()}, [x[i] for x in flat[1]]


def _merged(x: Any, axes: int) -> Any:
    """An array whose first axes are one."""
    return x.reshape(math.prod(x.shape[:axes]), *x.shape[axes:])


def _on_host(operand: Operand, flags: int) -> Any:
    """Host memory as an array, until the handler returns."""
    data, shape, dtype = operand
    element = by_name(dtype).numpy
    size = math.prod(shape) * element.itemsize
    return np.ndarray(shape, element, _MEMORY(data, size, flags)) if size else np.empty(shape, element)


def _run_on_host(frame: Any, run: Callable[..., None]) -> None:
    run([_on_host(x, _READ) for x in xla.operands(frame.args)], [_on_host(x, _WRITE) for x in xla.operands(frame.rets)], xla.text(frame))


def _run_on_gpu(frame: Any, run: Callable[..., None]) -> None:
    given, made = xla.operands(frame.args), xla.operands(frame.rets)
    address = next((x.data for x in (*given, *made) if x.data), None)
    if address is None:
        return  # nothing has elements
    device, stream = holding(address), xla.stream(frame)
    inside = captured(stream)
    where = {"device": device, "stream": stream, "result": next((x.data for x in made if x.data), 0) if inside else 0}
    lent = [[Lent(pointer=x.data, shape=x.shape, dtype=x.dtype, **where) for x in some] for some in (given, made)]
    with beside_captures() if inside else contextlib.nullcontext():
        run(*lent, xla.text(frame))


def _register(name: str, run: Callable[..., None], platform: str, execute: Callable[..., None], traits: int = 0) -> None:
    def handler(pointer: Any) -> int | None:
        frame = pointer.contents
        try:
            if not xla.asks_what_it_is(frame, traits):
                assert frame.stage == xla.EXECUTE
                execute(frame, run)
        except BaseException as fault:
            return xla.error(frame, fault)
        return None

    callback = xla.HANDLER(handler)
    _KEPT.append(callback)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.cast(callback, ctypes.c_void_p).value), platform=platform)


_register(FORWARD, forward, "cpu", _run_on_host)
_register(FORWARD, forward_on_gpu, "CUDA", _run_on_gpu)
_register(CAPTURED, forward, "cpu", _run_on_host)
_register(CAPTURED, forward_on_gpu, "CUDA", _run_on_gpu, xla.COMMAND_BUFFERS)
_register(BACKWARD, backward, "cpu", _run_on_host)
_register(BACKWARD, backward, "CUDA", _run_on_gpu)
