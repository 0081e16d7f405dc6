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
    kernel = translate(TEXT, "once.cu")
    path = build.library(kernel, "once.cu")
    file = path.stat().st_ino
    assert build.library(kernel, "once.cu").stat().st_ino == file
    assert not list(path.parent.glob(f"{path.name}.*"))


def test_what_was_used_longest_ago_makes_room(monkeypatch, tmp_path):
    for age, name in enumerate(["kernel-b.so", "kernel-c.so", "machine-a.o"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, ns=(0, 10 - age))
    assert build.kept(tmp_path / "machine-a.o")
    assert not build.kept(tmp_path / "kernel-d.so")
    monkeypatch.setattr(build, "KEPT", 250)
    build.forget_the_oldest(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"machine-a.o", "kernel-b.so"}


def test_twins_are_read_from_the_header():
    known = build.twins()
    assert {"mbarrier_init_shared_cta_b64", "cp_async_bulk_tensor_4d_global_shared_cta_tile_bulk_group", "ld_shared_v4_u32"} <= known
    assert "nanosleep_u32" not in known
