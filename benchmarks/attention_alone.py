"""The attention of a call alone, without the kernels that find its key tiles."""

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from flashgen.runtime.arrays import DeviceFamily
from flashgen.runtime.device import check
from flashgen.runtime.executable import Launch
from flashgen.runtime.scratch import Scratch

BEFORE = ("seen_tiles", "list_bits", "key_")  # how kernels are called that find key tiles


def alone(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same call without the kernels that find its key tiles: they have run once, and what they found stays in memory.

    >>> measure({"call": call, "attention": alone(call)}, DeviceClock(), 11)
    """
    memory, kept = Scratch.memory, dict[int, Any]()

    def held(scratch: Scratch, family: DeviceFamily, beside: Any) -> Any:
        if scratch.words not in kept:
            kept[scratch.words] = memory(scratch, family, beside)
        return kept[scratch.words]

    def without() -> Any:
        with patch.object(Scratch, "memory", held), patch.object(Launch, "_launch", _launch):
            return run()

    with patch.object(Scratch, "memory", held):
        run()
    return without


def _launch(launch: Launch) -> None:
    for config, function in launch._kernels:
        if config.gridDimX and not _name(launch._driver, function).startswith(BEFORE):
            check(*launch._driver.cuLaunchKernelEx(config, function, launch._arguments_at, 0))


@functools.lru_cache(256)
def _name(driver: Any, function: Any) -> str:
    return str(check(*driver.cuFuncGetName(function)).decode())
