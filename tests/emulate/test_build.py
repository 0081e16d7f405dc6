"""Compilers that are missing, caches that cannot be written, outputs that are kept."""

import os

import pytest

from flashgen.emulate import build
from flashgen.emulate.translate import translate
from flashgen.errors import BackendError

TEXT = 'extern "C" __global__ void forward(int n) { asm volatile("bar.sync 0, 32;"); }'


@pytest.fixture
def _fresh():
    build.compiler.cache_clear()
    build.cache_folder.cache_clear()
    yield
    build.compiler.cache_clear()
    build.cache_folder.cache_clear()


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
def test_a_cache_that_cannot_be_written_is_replaced_with_a_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be written"):
        folder = build.cache_folder()
    assert os.access(folder, os.W_OK)


def test_a_kernel_is_compiled_once():
    kernel = translate(TEXT, "forward", "once.cu")
    path = build.library(kernel, "once.cu")
    modified = path.stat().st_mtime_ns
    assert build.library(kernel, "once.cu").stat().st_mtime_ns == modified
    assert not list(path.parent.glob(f"{path.name}.*"))


def test_twins_are_read_from_the_header():
    known = build.twins()
    assert {"mbarrier_init_shared_cta_b64", "cp_async_bulk_tensor_4d_global_shared_cta_tile_bulk_group", "ld_shared_v4_u32"} <= known
    assert "nanosleep_u32" not in known
