"""Compilers that are missing, caches that cannot be written, outputs that are kept."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flashgen.emulate import build
from flashgen.emulate.translate import translate
from flashgen.errors import BackendError

TEXT = 'extern "C" __global__ void forward(int n) { asm volatile("bar.sync 0, 32;"); }'


@pytest.fixture
def _fresh():
    for cached in (build.compiler, build.macros, build.usable):
        cached.cache_clear()
    yield
    for cached in (build.compiler, build.macros, build.usable):
        cached.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendError, match="no-such-compiler, which is not on PATH: install g"):
        build.compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendError, match=r"g\+\+ or clang\+\+, which is not on PATH"):
        build.compiler()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("launcher", [True, False])
def test_a_compiler_may_come_with_words(monkeypatch, tmp_path, launcher):
    """As `ccache g++`, as `g++ -m64`, and from a path with blanks."""
    found = Path(build.compiler()[0])
    script = tmp_path / "a launcher"
    script.write_text(f'#!/bin/sh\nexec {"" if launcher else found} "$@"\n')
    script.chmod(0o700)
    monkeypatch.setenv("CXX", f'"{script}" {found} -DWORD=3' if launcher else str(script))
    build.compiler.cache_clear()
    build.macros.cache_clear()
    assert build.compiler() == ((str(script), str(found), "-DWORD=3") if launcher else (str(script),))
    assert ("#define WORD 3" in build.macros()) == launcher


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("name", ["file/below", "long" * 75, "open"])
def test_a_cache_that_cannot_be_used_is_replaced_with_a_warning(monkeypatch, tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / name))
    with pytest.warns(RuntimeWarning, match="cannot be used.*set FLASHGEN_CACHE_DIR"):
        folder = build.folder()
    assert not folder.is_relative_to(tmp_path)
    assert os.access(folder, os.W_OK)


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "below"))
    assert build.folder() == tmp_path / "below" / "emulate"
    assert build.folder().stat().st_mode & 0o777 == 0o700


def test_a_kernel_is_compiled_once():
    kernel = translate(TEXT, "once.cu")
    path = build.library(kernel, "once.cu")
    file = path.stat().st_ino
    assert build.library(kernel, "once.cu").stat().st_ino == file
    assert not list(path.parent.glob(f"{path.name}.*"))


def test_threads_compile_side_by_side(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "run_compiler", lambda _, *arguments: Path(arguments[arguments.index("-o") + 1]).write_text("x" * 4096))
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: build.compile_to(tmp_path / "kernel.so", Path("kernel.cu")), range(200)))
    assert [path.name for path in tmp_path.iterdir()] == ["kernel.so"]


def test_twins_are_read_from_the_header():
    known = build.twins()
    assert {"mbarrier_init_shared_cta_b64", "cp_async_bulk_tensor_4d_global_shared_cta_tile_bulk_group", "ld_shared_v4_u32"} <= known
    assert "nanosleep_u32" not in known
