"""Launches kernels that belong to no program: one that puts new keys and values into a cache, one that merges states of attention."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from flashgen.plan.alone import Alone, record
from flashgen.render.source import render_alone
from flashgen.runtime import nvrtc
from flashgen.runtime.arrays import FAMILIES
from flashgen.runtime.device import check, device


def launch(
    plan: Alone, arrays: Mapping[str, Any], strides: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int], blocks: int, on: int
) -> None:
    """Launches so many blocks in the caller's stream, on a GPU by its number. `arrays`: all that the kernel is given, by the names of
    arguments. Raises CompileError, BackendError."""
    from cuda.bindings import driver

    first = next(iter(arrays.values()))
    target, family = device(on), FAMILIES[type(first)]
    filled = record(plan, {name: family.pointer(x) for name, x in arrays.items()}, strides, scalars)
    memory = np.frombuffer(filled.tobytes(), np.uint8)
    arguments = np.array([memory.ctypes.data], np.uint64)
    with target.active():
        function, stream = _function(plan, on), family.stream(first)
        check(*driver.cuLaunchKernel(function, blocks, 1, 1, plan.threads, 1, 1, 0, stream, int(arguments.ctypes.data), 0))


@functools.lru_cache(64)
def _function(plan: Alone, on: int) -> Any:  # noqa: ARG001  # a function is that of a device, which is current
    from cuda.bindings import driver

    module = check(*driver.cuModuleLoadData(nvrtc.compile(render_alone(plan)).cubin))
    return check(*driver.cuModuleGetFunction(module, plan.entry.encode()))
