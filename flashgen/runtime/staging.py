"""Arrays in host memory on a GPU: some heads at a time through pinned memory, so that copies run beside each other and beside kernels."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from flashgen.expr import Expressions
from flashgen.expr.language.nodes import names
from flashgen.plan.geometry import Sizes
from flashgen.runtime import arrays
from flashgen.runtime.gpu import Gpu
from flashgen.spec import Spec
from flashgen.spec.axes import names as axis_names
from flashgen.spec.outputs import OUTPUTS

WORKERS = 4  # threads, each with a stream: one fills pinned memory while the data of others travels or is attended to
PIECE_BYTES = 8 << 20  # of q, k, v and o; smaller pieces cost more than they hide

HostArray = np.ndarray[Any, Any]


class Piece(NamedTuple):
    """Work that needs nothing of the rest: some sequences, and of them some key/value heads with their query heads."""

    batch: slice
    kv_heads: slice

    def of(self, name: str, x: HostArray, spec: Spec, sizes: Sizes) -> HostArray:
        """The piece's part of q, k, v, o, of an output by rows, [B, Hq, Sq], or by heads, [Hq]."""
        if spec.geometry.separate_keys:  # there is one piece
            return x
        group = 1 if name in ("k", "v") else sizes.group
        heads = slice(self.kv_heads.start * group, self.kv_heads.stop * group)
        if x.ndim == 1:
            return x[heads]
        every = slice(None)
        at = spec.order.arranged(b=self.batch, s=every, h=heads, d=every) if x.ndim == 4 else (self.batch, heads)
        part: HostArray = x[at]
        return part


def pieces(spec: Spec, expressions: Expressions, sizes: Sizes) -> list[Piece]:
    """The pieces of a call, of about PIECE_BYTES or more. An axis that expressions count, or an output spans, is whole.

    >>> spec = Spec(head_dim=64, dtype="float32")
    >>> len(pieces(spec, lower(spec), Sizes(batch=1, q_len=8192, kv_len=8192, heads=16, kv_heads=16)))
    16
    """
    read = {name for node in expressions.parts.values() for name in names(node)} | {
        word for t in spec.arrays for axis in t.shape for word in axis_names(axis)
    }
    d, size = spec.head_dim, spec.element.bytes
    nbytes = sizes.batch * (sizes.heads * sizes.q_len + sizes.kv_heads * sizes.kv_len) * (d.qk + d.v) * size
    wanted = max(1, nbytes // PIECE_BYTES)
    heads = 1 if read & {"h", "hk", "hq"} or spec.geometry.separate_keys else min(sizes.kv_heads, wanted)
    batches = (
        1
        if "b" in read or spec.geometry.separate_keys or any(OUTPUTS[name].greatest_of for name in spec.outputs)
        else min(sizes.batch, -(-wanted // heads))
    )
    return [Piece(batch, kv_heads) for batch in _ranges(sizes.batch, batches) for kv_heads in _ranges(sizes.kv_heads, heads)]


def _ranges(length: int, count: int) -> Iterator[slice]:
    for i in range(count):
        yield slice(length * i // count, length * (i + 1) // count)


def attend(
    gpu: Gpu,
    expressions: Expressions,
    sizes: Sizes,
    inputs: Mapping[str, HostArray],
    outputs: Mapping[str, HostArray],
    params: Mapping[str, int | float],
) -> None:
    """Writes the outputs of a call. `inputs`: q, k, v and tensors by name."""
    cupy, spec = arrays.cupy(), gpu.spec
    ordinal = cupy.cuda.runtime.getDevice()
    tensors = tuple(cupy.asarray(inputs[t.name]) for t in spec.arrays)
    cupy.cuda.get_current_stream().synchronize()  # the workers' streams do not wait for this one
    todo = pieces(spec, expressions, sizes)

    def run(i: int) -> None:
        piece, stream = todo[i], _streams(ordinal)[i % WORKERS]
        with cupy.cuda.Device(ordinal), stream:
            sent = [_send(piece.of(name, inputs[name], spec, sizes), stream) for name in "qkv"]
            made = dict(zip(spec.outputs, gpu((*(x for x, _ in sent), *tensors), (), params), strict=True))
            received = {name: _pinned(x.shape, x.dtype) for name, x in made.items()}
            for name, x in made.items():
                x.get(stream=stream, out=received[name], blocking=False)
            stream.synchronize()
        for name, x in received.items():
            piece.of(name, outputs[name], spec, sizes)[...] = x

    from concurrent.futures import ThreadPoolExecutor  # which loads logging

    with ThreadPoolExecutor(min(WORKERS, len(todo))) as workers:
        list(workers.map(run, range(len(todo))))


@functools.cache
def _streams(ordinal: int) -> tuple[Any, ...]:
    """The streams, one a worker. They are kept: a kernel's counters belong to its stream."""
    cupy = arrays.cupy()
    with cupy.cuda.Device(ordinal):
        return tuple(cupy.cuda.Stream(non_blocking=True) for _ in range(WORKERS))


def _send(x: HostArray, stream: Any) -> tuple[Any, HostArray]:
    """A copy on the GPU, under way, and the pinned memory that it comes from."""
    staged = _pinned(x.shape, x.dtype)
    staged[...] = x
    sent = arrays.cupy().empty(x.shape, x.dtype)
    sent.set(staged, stream=stream)
    return sent, staged


def _pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    """Pinned memory from CuPy's pool, which takes it back when nothing refers to it."""
    count = int(np.prod(shape))
    memory = arrays.cupy().cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
    return np.frombuffer(memory, dtype, count).reshape(shape)
