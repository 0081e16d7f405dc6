"""Compiled kernels on disk: a folder each, named by its text, its options and the compiler; built aside and renamed."""

import dataclasses
import functools
import hashlib
import json
import warnings
from pathlib import Path

from flashgen import store
from flashgen.plan.program import Program
from flashgen.render import Source
from flashgen.runtime import nvrtc
from flashgen.runtime.nvrtc import Binary


def entry(source: Source) -> Path:
    """The folder of a source: kernel.cu, kernel.cubin, plan.json, report.json."""
    key = hashlib.sha256(f"{source.digest} {nvrtc.compiler()}".encode()).hexdigest()[:32]
    return store.root() / "kernels" / f"{source.name}-{source.arch}-{key}"


def binary(program: Program, source: Source) -> Binary:
    """The compiled source, from disk where it has been compiled before.

    A disk that cannot be read or written, or that other users may write to, costs the cache, not the call: it warns once and compiles.
    Raises as nvrtc.compile, and BackendError for a FLASHGEN_CACHE_SIZE that is none.
    """
    folder = entry(source)
    found = _load(folder)
    if found is None:
        store.make_room()
        found = nvrtc.compile(source)
        _store(folder, program, source, found)
    return found


def _load(folder: Path) -> Binary | None:
    try:
        if not store.found(folder):
            return None
        store.trust(folder / "kernel.cubin")
        report = json.loads((folder / "report.json").read_bytes())
        cubin = (folder / "kernel.cubin").read_bytes()
        if report.pop("sha256") != hashlib.sha256(cubin).hexdigest():
            raise ValueError("the cubin is not the one that was written")
        return Binary(cubin=cubin, **report)
    except PermissionError as error:
        _warn_of(folder.parent, error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # whatever broken bytes lead to
        if store.found(folder):  # else another process removed it
            _warn(f"a broken entry of the kernel cache is built anew: {folder} ({error})")
            store.remove(folder)
    return None


def _store(folder: Path, program: Program, source: Source, made: Binary) -> None:
    aside = store.aside(folder)
    report = {k: v for k, v in dataclasses.asdict(made).items() if k != "cubin"}
    try:
        store.make(folder.parent)
        store.trust(folder.parent)
        aside.mkdir()
        (aside / "kernel.cu").write_text(source.text)
        (aside / "kernel.cubin").write_bytes(made.cubin)
        (aside / "plan.json").write_text(json.dumps(program.to_json(), indent=1))
        (aside / "report.json").write_text(json.dumps({**report, "sha256": hashlib.sha256(made.cubin).hexdigest()}, indent=1))
        aside.rename(folder)
    except OSError as error:
        store.remove(aside)
        if not store.found(folder):  # else another process was first
            _warn_of(folder.parent, error)


def _warn_of(folder: Path, error: OSError) -> None:
    _warn(f"kernels are compiled anew in every process, {folder} cannot be used ({error.strerror}): set FLASHGEN_CACHE_DIR")


@functools.cache
def _warn(text: str) -> None:
    """Warns once for each text."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)
