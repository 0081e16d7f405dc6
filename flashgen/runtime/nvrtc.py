"""Compiles text to a cubin by NVRTC, for the exact architecture; a kernel whose warpgroup products ptxas serialises does not pass."""

import functools
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashgen.errors import BackendError, CompileError
from flashgen.render import Source

_ERROR_LINE = re.compile(r"\.cu\((\d+)\): (?:catastrophic )?error")
_LINES_SHOWN = 20  # of a log, in a message; all of it lies beside the text


@dataclass(frozen=True)
class Binary:
    """A compiled kernel and what the compiler says about it."""

    cubin: bytes
    registers: int  # a thread
    spill_bytes: int  # a thread
    shared_bytes: int  # static
    log: str
    seconds: float  # that the compiler took
    compiler: str  # `NVRTC 13.5`


def compile(source: Source) -> Binary:
    """The cubin of a source.

    >>> compile(render(plan(load("specs/causal.yaml"), "sm_90a"))).spill_bytes
    0

    Raises CompileError when the text does not compile, or compiles to serialised warpgroup products; BackendError without NVRTC.
    """
    start = time.perf_counter()
    cubin, log = _build(source, "CUBIN", f"--gpu-architecture={source.arch}", "--ptxas-options=-v")
    if complaint := re.search(r".*(\bC75\d\d\b|serialized).*", log):
        raise _failure(source, log, f"ptxas gives up on asynchronous products: {complaint[0].strip()}")
    return Binary(
        cubin=cubin,
        registers=max(_numbers(r"Used (\d+) registers", log), default=0),
        spill_bytes=sum(_numbers(r"(\d+) bytes spill stores", log)),
        shared_bytes=max(_numbers(r"(\d+) bytes smem", log), default=0),
        log=log,
        seconds=time.perf_counter() - start,
        compiler=compiler(),
    )


def to_ptx(source: Source) -> str:
    """The PTX of a source. Raises as `compile`."""
    ptx, _ = _build(source, "PTX", f"--gpu-architecture={source.arch.replace('sm_', 'compute_')}")
    return ptx.rstrip(b"\0").decode()


@functools.cache
def compiler() -> str:
    """The compiler and its version, `NVRTC 13.5`. Raises BackendError without NVRTC."""
    major, minor = _check(*_nvrtc().nvrtcVersion())
    return f"NVRTC {major}.{minor}"


@functools.cache
def _nvrtc() -> Any:
    """The bindings, with the library behind them loaded."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # RuntimeError: the bindings are there, the library is not
        reason = str(error).strip().splitlines()[0]
        raise BackendError(
            f"no NVRTC here ({reason}): pip install 'flashgen[cuda13]', or 'flashgen[cuda12]' for drivers before 580"
        ) from None
    return nvrtc


def _check(status: Any, *values: Any) -> Any:
    if int(status):
        raise BackendError(f"NVRTC: {_nvrtc().nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if len(values) == 1 else values


def _output(program: Any, kind: str) -> bytes:
    nvrtc = _nvrtc()
    out = bytearray(_check(*getattr(nvrtc, f"nvrtcGet{kind}Size")(program)))
    _check(*getattr(nvrtc, f"nvrtcGet{kind}")(program, out))
    return bytes(out)


def _build(source: Source, kind: str, *target: str) -> tuple[bytes, str]:
    """The output of this kind and the log."""
    nvrtc = _nvrtc()
    supported = _check(*nvrtc.nvrtcGetSupportedArchs())
    if int(re.sub(r"\D", "", source.arch)) not in supported:
        known = ", ".join(f"sm_{a}" for a in supported)
        raise BackendError(f"{compiler()} does not know {source.arch}; it knows {known}. A newer nvidia-cuda-nvrtc may")
    program = _check(*nvrtc.nvrtcCreateProgram(source.text.encode(), f"{source.name}.cu".encode(), 0, [], []))
    try:
        options = [option.encode() for option in (*target, *source.options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if int(status):
            raise _failure(source, log, nvrtc.nvrtcGetErrorString(status)[1].decode())
        return _output(program, kind), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _numbers(pattern: str, log: str) -> list[int]:
    return [int(n) for n in re.findall(pattern, log)]


def _failure(source: Source, log: str, summary: str) -> CompileError:
    """The error, with the text and the log kept in a folder of their own for whoever looks."""
    import tempfile  # which a text that compiles does not need

    folder = Path(tempfile.mkdtemp(prefix="flashgen-"))
    path = folder / f"{source.name}.cu"
    path.write_text(source.text)
    (folder / "log.txt").write_text(log)
    lines = log.splitlines()
    shown = (
        [*lines[:_LINES_SHOWN], f"... {len(lines) - _LINES_SHOWN} more lines in {folder / 'log.txt'}"]
        if len(lines) > _LINES_SHOWN
        else lines
    )
    excerpts = [_excerpt(source.text, line) for line in sorted(set(_numbers(_ERROR_LINE.pattern, log)))[:3]]
    return CompileError("\n".join([f"{path} does not compile for {source.arch} with {compiler()}: {summary}", *shown, *excerpts]))


def _excerpt(text: str, line: int, around: int = 2) -> str:
    numbered = list(enumerate(text.splitlines(), 1))[max(0, line - 1 - around) : line + around]
    return "\n".join(f"  {'>' if n == line else ' '} {n:4} | {content}" for n, content in numbered)
