"""Measures the GPU memory that calls take, as CuPy's pool counts it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flashgen.runtime import arrays


def to_gpu(x: np.ndarray[Any, Any]) -> Any:
    """A CuPy array like a NumPy array."""
    return arrays.cupy_family().from_numpy(x)


def to_host(x: Any) -> np.ndarray[Any, Any]:
    """A NumPy array like a CuPy array."""
    return arrays.cupy_family().to_numpy(x)


def memory(run: Callable[[], Any]) -> tuple[int, np.ndarray[Any, Any]]:
    """Bytes that a pool of CuPy takes for one call, and what the call returned, in host memory. Raises MemoryError."""
    run()  # compiles, and makes what is kept for good
    cupy = arrays.cupy()
    cupy.get_default_memory_pool().free_all_blocks()
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        result = run()
    cupy.cuda.Device().synchronize()
    return pool.total_bytes(), to_host(result)
