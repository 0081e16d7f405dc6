"""Compiled kernels on disk: a folder each, named by its text, its options and the compiler; built aside and renamed."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import time
import uuid
import warnings
from pathlib import Path

from platformdirs import user_cache_path

from flashgen.plan.model import Plan
from flashgen.render import Source
from flashgen.runtime import nvrtc
from flashgen.runtime.nvrtc import Binary

_ABANDONED = 3600.0  # seconds after which a folder being built belongs to a process that died


def root() -> Path:
    """Where kernels are kept: $FLASHGEN_CACHE_DIR, or the user's cache directory."""
    given = os.environ.get("FLASHGEN_CACHE_DIR")
    path = Path(given).absolute() if given else user_cache_path("flashgen")
    return (path if path.is_absolute() else Path(os.devnull)) / "kernels"  # relative: there is no home


def entry(source: Source) -> Path:
    """The folder of a source: kernel.cu, kernel.cubin, plan.json, report.json."""
    key = hashlib.sha256(f"{source.digest} {nvrtc.compiler()}".encode()).hexdigest()[:32]
    return root() / f"{source.name}-{source.arch}-{key}"


def binary(plan: Plan, source: Source) -> Binary:
    """The compiled source, from disk where it has been compiled before.

    A disk that cannot be read or written costs the cache, not the call: it warns once and compiles. Raises as nvrtc.compile.
    """
    folder = entry(source)
    found = _load(folder)
    if found is None:
        found = nvrtc.compile(source)
        _store(folder, plan, source, found)
    return found


def _load(folder: Path) -> Binary | None:
    try:
        report = json.loads((folder / "report.json").read_bytes())
        cubin = (folder / "kernel.cubin").read_bytes()
        if report.pop("sha256") != hashlib.sha256(cubin).hexdigest():
            raise ValueError("the cubin is not the one that was written")
        return Binary(cubin=cubin, **report)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.exists():
            return None
        _discard(folder, "a file is missing")
    except PermissionError as error:
        _warn(f"kernels are compiled anew in every process, {folder.parent} cannot be read ({error.strerror}): set FLASHGEN_CACHE_DIR")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # whatever broken bytes lead to
        _discard(folder, str(error))
    return None


def _discard(folder: Path, reason: str) -> None:
    _warn(f"a broken entry of the kernel cache is built anew: {folder} ({reason})")
    with contextlib.suppress(OSError):
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def _store(folder: Path, plan: Plan, source: Source, made: Binary) -> None:
    aside = folder.parent / f".building-{uuid.uuid4().hex}"
    report = {k: v for k, v in dataclasses.asdict(made).items() if k != "cubin"}
    try:
        aside.mkdir(parents=True)
        (aside / "kernel.cu").write_text(source.text)
        (aside / "kernel.cubin").write_bytes(made.cubin)
        (aside / "plan.json").write_text(json.dumps(plan.to_json(), indent=1))
        (aside / "report.json").write_text(json.dumps({**report, "sha256": hashlib.sha256(made.cubin).hexdigest()}, indent=1))
        _sweep(folder.parent)
        aside.rename(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if not folder.is_dir():  # else another process was first
            _warn(
                f"kernels are compiled anew in every process, {folder.parent} cannot be written ({error.strerror}): set FLASHGEN_CACHE_DIR"
            )


def _sweep(folder: Path) -> None:
    for left in folder.glob(".building-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left)


@functools.cache
def _warn(text: str) -> None:
    """Once a text."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)
