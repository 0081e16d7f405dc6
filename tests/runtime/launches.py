"""Records what calls would launch: CuPy arrays at made-up addresses stand for those on a GPU, and instead of a launch its record, grids and
stream are kept."""

from types import SimpleNamespace
from typing import Any

import pytest

from flashgen.arch import by_name
from flashgen.runtime import arrays, cache, dealing, executable, gpu, lengths, tma
from flashgen.runtime.device import Device
from tests.runtime.test_arrays import on_gpu

driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

CARD = Device(0, "Some Card", by_name("sm_90a"), 132, None, 77)


class Launches(list[Any]):
    """The list of what was launched; `stream` is current, `made` counts new outputs."""

    stream, made = 0, 0


class Map:
    """128 bytes that tell what they were made from."""

    def __init__(self, layout: arrays.Layout, box: tuple[int, int], group: int = 0):
        self.box = *box, group
        self.lay(layout.shape, layout.strides)

    def lay(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.shape, self.strides = shape, strides

    def __call__(self, at: int) -> bytes:
        return repr((self.shape, self.strides, self.box, at)).encode().ljust(128)[:128]


@pytest.fixture(scope="module")
def launches() -> Any:
    """A module's, since its stand-ins hold no state: hypothesis calls a test many times."""
    seen = Launches()

    def launch(self: executable.Launch) -> None:
        seen.append((bytes(self.record), [(c.gridDimX, int(c.hStream)) for c, _ in self._kernels]))

    def empty(_: Any, shape: Any, dtype: str, beside: Any) -> Any:  # noqa: ARG001
        seen.made += 1
        return on_gpu(shape, arrays.by_name(dtype).numpy, address=(1 << 44) + (seen.made << 30))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable.Launch, "_launch", launch)
        patch.setattr(arrays.CupyFamily, "empty", empty)
        patch.setattr(arrays.CupyFamily, "scratch", empty)
        patch.setattr(arrays.CupyFamily, "stream", lambda *_: seen.stream)
        patch.setattr(tma, "Map", Map)
        patch.setattr(driver, "cuCtxGetCurrent", lambda: (0, 77))
        patch.setattr(driver, "cuStreamIsCapturing", lambda _: (0, 0))
        patch.setattr(dealing, "counter", lambda _, stream: 0x7000 + stream)
        patch.setattr(dealing, "halves", lambda _: 0x6000)
        patch.setattr(executable, "_load", lambda made, _: ("f",) * len(made.program.kernels))
        for module in (executable, gpu, lengths):
            patch.setattr(module, "device", lambda _: CARD)
        patch.setattr(cache, "binary", lambda *_: SimpleNamespace(cubin=b""))
        yield seen
