"""The GPUs of this machine, and the reason if no kernel can run on one."""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flashgen.arch import Arch, of_capability
from flashgen.errors import BackendError, PlanError


@dataclass(frozen=True)
class Device:
    """A GPU and its primary context, which CuPy, PyTorch and JAX share."""

    ordinal: int
    name: str
    arch: Arch
    multiprocessors: int
    context: Any  # CUcontext
    handle: int  # the same

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Makes the device current for the driver; afterwards the caller's is current again."""
        if int(check(*_driver().cuCtxGetCurrent())) == self.handle:
            yield
            return
        check(*_driver().cuCtxPushCurrent(self.context))
        try:
            yield
        finally:
            check(*_driver().cuCtxPopCurrent())

    @contextlib.contextmanager
    def aside(self) -> Iterator[Any]:
        """A stream of its own, waited for at the end: a capture neither sees what is done in it nor forbids it."""
        driver = _driver()
        with self.active(), beside_captures():
            stream = check(*driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
            yield stream
            check(*driver.cuStreamSynchronize(stream))
            check(*driver.cuStreamDestroy(stream))


@contextlib.contextmanager
def beside_captures() -> Iterator[None]:
    """Lets this thread load and allocate within it, although a stream of its own is captured."""
    driver = _driver()
    mode = check(*driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        yield
    finally:
        check(*driver.cuThreadExchangeStreamCaptureMode(mode))


def captured(stream: int) -> bool:
    """True if a CUDA graph captures a stream; the default stream cannot be captured."""
    return stream != 0 and int(check(*_bindings().cuStreamIsCapturing(stream))) != 0


@functools.cache
def missing() -> str | None:
    """The reason why no kernel can run on this machine, or None."""
    try:
        driver = _driver()
        count = check(*driver.cuDeviceGetCount())
        if not count:
            return "the driver finds no GPU"
        device(0)
    except (BackendError, PlanError) as error:
        return str(error)
    return None


@functools.cache
def device(ordinal: int) -> Device:
    """A GPU by the number that the driver gives it. Raises BackendError, PlanError for a GPU too old."""
    driver = _driver()
    handle = check(*driver.cuDeviceGet(ordinal))
    attribute = driver.CUdevice_attribute
    major, minor, multiprocessors = (
        check(*driver.cuDeviceGetAttribute(a, handle))
        for a in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )
    )
    name = check(*driver.cuDeviceGetName(128, handle)).partition(b"\0")[0].decode()
    context = check(*driver.cuDevicePrimaryCtxRetain(handle))
    return Device(
        ordinal=ordinal, name=name, arch=of_capability(major, minor), multiprocessors=multiprocessors, context=context, handle=int(context)
    )


def current() -> Device:
    """The GPU that is current for the driver; the first where none is."""
    if int(check(*_driver().cuCtxGetCurrent())):
        return device(int(check(*_driver().cuCtxGetDevice())))
    return device(0)


def holding(address: int) -> int:
    """The number of the GPU whose memory an address is in. Raises BackendError."""
    attribute = _driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(*_driver().cuPointerGetAttribute(attribute, address)))


def driver_version() -> str:
    """The newest CUDA that the driver serves, `CUDA 13.0`. Raises BackendError without a driver."""
    version = check(*_driver().cuDriverGetVersion())
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def check(status: Any, *values: Any) -> Any:
    """The value, or values, of a driver call. Raises BackendError where it failed."""
    if int(status):
        raise BackendError(f"the CUDA driver says {status.name}")
    return values[0] if len(values) == 1 else values


@functools.cache
def _driver() -> Any:
    """The bindings, initialised."""
    driver = _bindings()
    try:
        check(*driver.cuInit(0))
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        raise BackendError(f"no CUDA driver here: {said.removesuffix('.')}") from None
    return driver


@functools.cache
def _bindings() -> Any:
    """The driver's functions."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendError(
            f"no CUDA bindings here ({error}): pip install 'flashgen[cuda13]', or 'flashgen[cuda12]' for drivers before 580"
        ) from None
    return driver
