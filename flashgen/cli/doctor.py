"""`flashgen doctor`: says which parts of flashgen work on this machine."""

import os
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flashgen import store
from flashgen.cli.terminal import console, plain
from flashgen.cli.terminal import table as lines
from flashgen.emulate.build import compiler
from flashgen.errors import BackendError
from flashgen.render import template_root
from flashgen.runtime import arrays, device, machine_code, nvrtc


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. If it is missing, it says what it is for and what to do."""

    name: str
    works: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """The finding as `--json` prints it."""
        return vars(self)


def examine() -> list[Finding]:
    """Looks at everything; nothing is raised for what is missing."""
    driver = _tried("driver", device.driver_version, "runs kernels; without it NumPy arrays run in the interpreter")
    return [
        Finding("flashgen", True, f"{_version('flashgen')}, templates in {template_root()}"),
        Finding("Python", True, f"{platform.python_version()} on {platform.machine()}, {sys.executable}"),
        *(Finding(name, True, _version(name)) for name in ("numpy", "ml-dtypes", "sympy")),
        _tried("NVRTC", nvrtc.compiler, "compiles kernels"),
        driver,
        _gpu() if driver.works else Finding("GPU", False, "needs the driver"),
        _tried("CuPy", lambda: str(arrays.cupy().__version__), "GPU memory and streams"),
        _tried("C++ compiler", lambda: shlex.join(compiler()), "check --emulate"),
        _tried("nvdisasm", machine_code.disassembler, "show --stage sass"),
        _cache(),
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed, run from a checkout"


def _tried(name: str, look: Callable[[], str], purpose: str) -> Finding:
    try:
        return Finding(name, True, look())
    except BackendError as error:
        return Finding(name, False, f"{error} ({purpose})")


def _gpu() -> Finding:
    if reason := device.missing():
        return Finding("GPU", False, reason)
    found = device.current()
    return Finding("GPU", True, f"{found.name}, {found.multiprocessors} multiprocessors, kernels for {found.arch.name}")


def _cache() -> Finding:
    root = store.root()
    try:
        limit = store.limit()
        store.make(root / "kernels")
        store.trust(root / "kernels")
    except BackendError as error:
        return Finding("cache", False, str(error))
    except OSError as error:
        return Finding("cache", False, f"{root} is not used ({error.strerror}); set FLASHGEN_CACHE_DIR")
    if not os.access(root / "kernels", os.W_OK):
        return Finding("cache", False, f"{root} cannot be written; set FLASHGEN_CACHE_DIR")
    kept = {kind: list(store.entries(kind)) for kind in store.COMPILED}
    size = sum(entry.bytes for entries in kept.values() for entry in entries)
    closed = "nobody else may write to it"
    said = f"{len(kept['kernels'])} kernels, {len(kept['emulate'])} files of the emulator, {size / 2**20:.1f} of {limit / 2**20:.0f} MiB"
    return Finding("cache", True, f"{root}, {closed}: {said}")


def table(findings: list[Finding]) -> None:
    """A table of the findings, a line each."""
    rows = lines("", "", "")
    rows.show_header = False
    for finding in findings:
        rows.add_row(*plain(("ok" if finding.works else "--", finding.name, finding.detail)))
    console().print(rows)
