"""The cache of cubins survives what disks and other processes do to it."""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from flashgen import store
from flashgen.errors import BackendError
from flashgen.plan import Program, plan
from flashgen.render import Source
from flashgen.runtime import cache, nvrtc
from flashgen.runtime.nvrtc import Binary
from flashgen.spec import Spec

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda13 or cuda12 extra")

SOURCE = Source("tiny", 'extern "C" __global__ void f(int* x) { *x = 1; }\n', "sm_90a", "f", ("--std=c++17",))


@pytest.fixture(scope="module")
def planned() -> Program:
    return plan(Spec(head_dim=64, dtype="float32"), "host")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    cache._warn.cache_clear()
    return tmp_path / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what the compiler is asked for."""
    asked, real = [], nvrtc.compile

    def compile(source: Source) -> Binary:
        asked.append(source.name)
        return real(source)

    monkeypatch.setattr(nvrtc, "compile", compile)
    return asked


def test_the_second_time_nothing_is_compiled(planned: Program, place: Path, compiled: list[str]) -> None:
    first, second = cache.binary(planned, SOURCE), cache.binary(planned, SOURCE)
    assert first == second
    assert compiled == ["tiny"]
    (folder,) = place.iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["kernel.cu", "kernel.cubin", "plan.json", "report.json"]
    assert (folder / "kernel.cu").read_text() == SOURCE.text
    assert json.loads((folder / "plan.json").read_text()) == json.loads(json.dumps(planned.to_json()))


def test_other_text_options_or_compiler_is_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        Source("tiny", SOURCE.text + "//", "sm_90a", "f", SOURCE.options),
        Source("tiny", SOURCE.text, "sm_90a", "f", ("--std=c++20",)),
    ]
    entries = {cache.entry(s) for s in (SOURCE, *others)}
    monkeypatch.setattr(nvrtc, "compiler", lambda: "NVRTC 99.0")
    assert len(entries | {cache.entry(SOURCE)}) == 4


def spoil_cut(folder: Path) -> None:
    path = folder / "kernel.cubin"
    path.write_bytes(path.read_bytes()[:1000])


def spoil_empty(folder: Path) -> None:
    (folder / "report.json").write_bytes(b"")


def spoil_bytes(folder: Path) -> None:
    (folder / "report.json").write_bytes(os.urandom(100))


def spoil_fields(folder: Path) -> None:
    (folder / "report.json").write_text("[1]")


def spoil_missing(folder: Path) -> None:
    (folder / "kernel.cubin").unlink()


def spoil_directory(folder: Path) -> None:
    (folder / "kernel.cubin").unlink()
    (folder / "kernel.cubin").mkdir()


def spoil_file(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("")


@pytest.mark.parametrize("spoil", [spoil_cut, spoil_empty, spoil_bytes, spoil_fields, spoil_missing, spoil_directory, spoil_file])
def test_a_broken_entry_is_built_anew(spoil: Callable[[Path], None], planned: Program, compiled: list[str]) -> None:
    first = cache.binary(planned, SOURCE)
    spoil(cache.entry(SOURCE))
    with pytest.warns(RuntimeWarning, match="broken entry"):
        second = cache.binary(planned, SOURCE)
    assert second.cubin == first.cubin
    assert compiled == ["tiny", "tiny"]
    assert cache.binary(planned, SOURCE) == second
    assert len(compiled) == 2


@pytest.mark.parametrize("place_of", [lambda p: p / "file" / "below", lambda _: Path("/proc/nowhere"), lambda p: p / ("long" * 75)])
def test_where_nothing_can_be_written_it_warns_once_and_compiles(
    place_of: Callable[[Path], Path], planned: Program, compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(place_of(tmp_path)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.binary(planned, SOURCE).cubin == cache.binary(planned, SOURCE).cubin
    assert len(compiled) == 2
    assert [w.category for w in caught] == [RuntimeWarning]
    assert "FLASHGEN_CACHE_DIR" in str(caught[0].message)


def test_a_full_disk_leaves_nothing_behind(planned: Program, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert cache.binary(planned, SOURCE).cubin
    assert list(place.iterdir()) == []


def test_without_a_home_it_does_not_write_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHGEN_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: Path("~/.cache/flashgen"))
    assert cache.entry(SOURCE).parent == Path("/dev/null/kernels")


def test_what_dead_processes_left_is_swept(planned: Program, place: Path) -> None:
    old, young = place / ".building-old", place / ".building-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    cache.binary(planned, SOURCE)
    assert not old.exists()
    assert young.exists()


def test_what_others_may_write_is_neither_loaded_nor_written(planned: Program, place: Path, compiled: list[str]) -> None:
    cache.binary(planned, SOURCE)
    place.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=f"other users may write to {place}.*: set FLASHGEN_CACHE_DIR"):
        cache.binary(planned, SOURCE)
    assert len(compiled) == 2
    place.chmod(0o700)
    cache.binary(planned, SOURCE)
    assert len(compiled) == 2


def test_the_last_used_entries_stay(planned: Program, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [Source(f"tiny{i}", SOURCE.text, "sm_90a", "f", SOURCE.options) for i in range(3)]
    for age, source in enumerate(texts[:2]):
        cache.binary(planned, source)
        os.utime(cache.entry(source), (time.time() - 1000 + age,) * 2)
    cache.binary(planned, texts[0])  # used again
    os.utime(cache.entry(texts[0]), (time.time() - 100,) * 2)
    monkeypatch.setenv("FLASHGEN_CACHE_SIZE", str(max(entry.bytes for entry in store.entries("kernels")) * 3 // 2))
    cache.binary(planned, texts[2])
    assert {path.name for path in place.iterdir()} == {cache.entry(texts[0]).name, cache.entry(texts[2]).name}


def test_a_size_that_is_none_is_said_before_anything_is_compiled(
    planned: Program, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_SIZE", "lots")
    with pytest.raises(BackendError, match="FLASHGEN_CACHE_SIZE is 'lots': expected bytes, as 1073741824, 1024M or 1G"):
        cache.binary(planned, SOURCE)
    assert not compiled


PROCESS = """
from flashgen.plan import plan
from flashgen.render import Source
from flashgen.runtime import cache
from flashgen.spec import Spec
source = Source("tiny", {text!r}, "sm_90a", "f", ("--std=c++17",))
print(len(cache.binary(plan(Spec(head_dim=64, dtype="float32"), "host"), source).cubin))
"""


def test_processes_that_start_together_agree(place: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROCESS.format(text=SOURCE.text)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    done = [(p.communicate(), p.returncode) for p in running]
    assert [code for _, code in done] == [0] * 4, done
    assert len({out for (out, _), _ in done}) == 1
    assert [p.name for p in place.iterdir()] == [cache.entry(SOURCE).name]
