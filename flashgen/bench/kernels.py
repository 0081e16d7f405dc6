"""The time of each kernel of a call."""

import importlib
from collections.abc import Callable
from typing import Any

BEFORE = ("seen_tiles", "key_")  # how kernels are called that run before the attention


def kernel_ms(run: Callable[[], Any]) -> dict[str, float]:
    """The milliseconds of each kernel of a call, by name, as PyTorch's profiler reads them; the call is alone on the GPU.

    >>> kernel_ms(lambda: attention(q, k, v, idx=idx))   # {'key_lists': 0.004, 'forward': 0.181}
    """
    torch = importlib.import_module("torch")
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return {event.key: event.device_time_total / 1e3 for event in profile.key_averages() if event.device_time_total}


def before_ms(run: Callable[[], Any]) -> float:
    """The milliseconds of the kernels of a call that run before its attention: they find key tiles."""
    return sum(ms for name, ms in kernel_ms(run).items() if name.startswith(BEFORE))
