"""The cache folder: who may write to it, which names are free, what makes room."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from flashgen import store


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    store.make(tmp_path / "cache" / "emulate")
    return tmp_path / "cache"


def test_folders_are_made_for_this_user_alone(root):
    assert [place.stat().st_mode & 0o777 for place in (root, root / "emulate")] == [0o700] * 2


def test_what_is_not_there_yet_may_be_written(root):
    store.trust(root / "kernels" / "a" / "kernel.cubin")


@pytest.mark.parametrize("mode", [0o777, 0o702])
@pytest.mark.parametrize("place", ["emulate/kernel.so", "emulate", "."])
def test_what_others_may_write_is_not_trusted(root, place, mode):
    (root / "emulate" / "kernel.so").write_bytes(b"")
    (root / place).chmod(mode)
    with pytest.raises(PermissionError, match="other users may write to"):
        store.trust(root / "emulate" / "kernel.so")


def test_folders_above_may_be_sticky(root):
    root.parent.chmod(0o1777)
    store.trust(root)
    root.parent.chmod(0o777)
    with pytest.raises(PermissionError, match=f"other users may write to {root.parent}"):
        store.trust(root)
    root.parent.chmod(0o755)
    root.chmod(0o1777)
    with pytest.raises(PermissionError, match=f"other users may write to {root}"):
        store.trust(root)


def test_the_group_of_one_user_may_write(root, monkeypatch):
    root.chmod(0o770)
    mine = root.stat()
    monkeypatch.setattr(os, "geteuid", lambda: mine.st_uid)
    if mine.st_gid == mine.st_uid:
        store.trust(root)
    else:
        with pytest.raises(PermissionError, match="other users may write to"):
            store.trust(root)


def test_what_belongs_to_another_user_is_not_trusted(root, monkeypatch):
    real = type(root).stat
    monkeypatch.setattr(
        type(root),
        "stat",
        lambda path, **how: SimpleNamespace(st_uid=4321, st_gid=4321, st_mode=0o700) if path == root else real(path, **how),
    )
    with pytest.raises(PermissionError, match=f"{root} belongs to another user, number 4321"):
        store.trust(root / "emulate")


def test_a_link_is_judged_by_what_it_leads_to(root, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (root / "kernels").symlink_to(tmp_path / "open")
    with pytest.raises(PermissionError):
        store.trust(root / "kernels" / "a")


def test_no_two_threads_build_under_one_name(root):
    names = []

    def draw():
        names.extend(store.aside(root / "emulate" / "kernel.so") for _ in range(100))

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 800


def test_a_file_is_put_whole(root, monkeypatch):
    store.put(root / "tuned" / "a.json", "old")
    monkeypatch.setattr(type(root), "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        store.put(root / "tuned" / "a.json", "new")
    assert [path.name for path in (root / "tuned").iterdir()] == ["a.json"]
    assert (root / "tuned" / "a.json").read_text() == "old"


def fill(root, **ages):
    for name, age in ages.items():
        path = root / "emulate" / name
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - age,) * 2)


def left(root):
    return {path.name for path in (root / "emulate").iterdir()}


def test_what_was_used_longest_ago_makes_room(root, monkeypatch):
    fill(root, a=400, b=300, c=200)
    monkeypatch.setenv("FLASHGEN_CACHE_SIZE", "2000")
    assert store.found(root / "emulate" / "a")
    assert not store.found(root / "emulate" / "d")
    store.make_room()
    assert left(root) == {"a", "c"}


def test_what_somebody_is_about_to_load_stays(root, monkeypatch):
    fill(root, a=1, b=100)
    monkeypatch.setenv("FLASHGEN_CACHE_SIZE", "0")
    store.make_room()
    assert left(root) == {"a"}


@pytest.mark.parametrize(("given", "expected"), [("", 1 << 30), ("0", 0), ("7", 7), ("3K", 3072), ("500M", 500 << 20), ("2G", 2 << 30)])
def test_sizes(monkeypatch, given, expected):
    monkeypatch.setenv("FLASHGEN_CACHE_SIZE", given)
    assert store.limit() == expected
