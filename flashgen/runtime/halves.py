"""The halves of a card's L2: which multiprocessors are near which, told by the time that an atomic takes; measured once a card."""

import contextlib
import json

import numpy as np
from numpy.typing import NDArray

from flashgen import store
from flashgen.render import Source
from flashgen.runtime import nvrtc
from flashgen.runtime.device import Device, check

__all__ = ["parted", "table"]

_MULTIPROCESSORS = 256  # that a table holds
_LINES = 64  # of 128 bytes, spread over both halves by a hash of their addresses
_DIFFERENCE = 0.1  # of the time of an atomic, by which halves differ at least
_ALONE = 200 << 10  # bytes of shared memory of a block, so that it has a multiprocessor for itself
_LATENCIES = r"""
struct Params { unsigned* lines; int* clocks; };

extern "C" __global__ void latencies(const __grid_constant__ Params p) {
  unsigned multiprocessor;
  asm("mov.u32 %0, %smid;" : "=r"(multiprocessor));
  for (int i = 0; i < 64; ++i) {
    const unsigned line = (i + multiprocessor) % 64;               // each multiprocessor another one at a time
    int least = 1 << 30;
    for (int repeat = 0; repeat < 16; ++repeat) {
      const long long begin = clock64();
      while (atomicAdd(p.lines + 32 * line, 1u) == ~0u);           // so the clock is read when the answer is there
      least = min(least, int(clock64() - begin));
    }
    p.clocks[multiprocessor % 256 * 64 + line] = least;
  }
}
"""


def table(target: Device) -> NDArray[np.int32]:
    """The half, 0 or 1, of each multiprocessor by its number (`%smid`), 256 in all; zeros where the L2 has one part.

    Halves are kept beside the compiled kernels, by the card's UUID; where none were told apart, perhaps since others kept the card busy,
    the next process measures again. Raises BackendError.
    """
    path = store.root() / "halves" / f"{_uuid(target)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        kept = np.asarray(json.loads(path.read_bytes()), np.int32)
        if kept.shape == (_MULTIPROCESSORS,) and np.isin(kept, (0, 1)).all():
            return kept
    clocks, found = _latencies(target), np.zeros(_MULTIPROCESSORS, np.int32)
    there = clocks.min(1) > 0
    found[there] = parted(clocks[there])
    if found.any():
        with contextlib.suppress(OSError):  # then it is measured again, in some tenths of a second
            store.put(path, json.dumps(found.tolist()))
    return found


def parted(clocks: NDArray[np.int32]) -> NDArray[np.int32]:
    """The half of each multiprocessor, from its clocks [multiprocessor, line]: those of a half are near the same lines.

    >>> parted(np.array([[300, 500], [310, 505], [520, 300], [500, 310]])).tolist()
    [0, 0, 1, 1]
    """
    unlike = clocks - clocks.mean(0) - clocks.mean(1, keepdims=True) + clocks.mean()
    side = np.linalg.svd(unlike, full_matrices=False)[0][:, 0]
    other = (side > 0) != (side[0] > 0)
    difference = np.abs(unlike[other].mean(0) - unlike[~other].mean(0)).mean() if other.any() else 0.0  # clocks: half of the time, or noise
    return other.astype(np.int32) if difference > _DIFFERENCE * clocks.mean() else np.zeros(len(clocks), np.int32)


def _uuid(target: Device) -> str:
    from cuda.bindings import driver

    handle = check(*driver.cuDeviceGet(target.ordinal))
    return bytes(check(*driver.cuDeviceGetUuid(handle)).bytes).hex()


def _latencies(target: Device) -> NDArray[np.int32]:
    """The least clocks of an atomic [multiprocessor, line], 0 where there is no such multiprocessor."""
    from cuda.bindings import driver

    binary = nvrtc.compile(Source(name="latencies", text=_LATENCIES, arch=target.arch.name, entries=("latencies",), options=()))
    clocks = np.zeros((_MULTIPROCESSORS, _LINES), np.int32)
    with target.aside() as stream:
        module = check(*driver.cuModuleLoadData(binary.cubin))
        function = check(*driver.cuModuleGetFunction(module, b"latencies"))
        check(*driver.cuFuncSetAttribute(function, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, _ALONE))
        lines = check(*driver.cuMemAlloc(128 * _LINES + clocks.nbytes))
        check(*driver.cuMemsetD8Async(lines, 0, 128 * _LINES + clocks.nbytes, stream))
        addresses = np.array([int(lines), int(lines) + 128 * _LINES], np.uint64)
        argument = np.array([addresses.ctypes.data], np.uint64)
        check(*driver.cuLaunchKernel(function, target.multiprocessors, 1, 1, 1, 1, 1, _ALONE, stream, argument.ctypes.data, 0))
        check(*driver.cuMemcpyDtoHAsync(clocks.ctypes.data, int(lines) + 128 * _LINES, clocks.nbytes, stream))
        check(*driver.cuStreamSynchronize(stream))
        check(*driver.cuMemFree(lines))
        check(*driver.cuModuleUnload(module))
    return clocks
