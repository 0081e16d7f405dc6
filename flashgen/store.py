"""The folder in which flashgen keeps what it compiled and measured: whose it may be, how it is written, how large it grows."""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flashgen.errors import BackendError

TEMPLATES = "templates"  # compiled by Jinja
COMPILED = ("kernels", "emulate", TEMPLATES)  # folders whose entries are made again at need, and so make room for others
_SIZE = "1G"  # by default
_ABANDONED = 3600.0  # seconds after which what is being built belongs to a process that died
_IN_USE = 60.0  # seconds for which an entry that was just found is not removed: somebody is about to load it
_ANYBODY, _GROUP = 0o002, 0o020  # may write, in the mode of a file


class Entry(NamedTuple):
    """A compiled file or folder, by when it was last used."""

    used: float  # seconds since 1970
    path: Path
    bytes: int


def root() -> Path:
    """The folder: $FLASHGEN_CACHE_DIR, or the user's cache directory; one that cannot be where there is no home."""
    from platformdirs import user_cache_path  # only where something is kept

    given = os.environ.get("FLASHGEN_CACHE_DIR")
    path = Path(given).absolute() if given else user_cache_path("flashgen")
    return path if path.is_absolute() else Path(os.devnull)


def limit() -> int:
    """The bytes that compiled entries may take: $FLASHGEN_CACHE_SIZE, as 500M or 2G. Raises BackendError for what is no size."""
    given = os.environ.get("FLASHGEN_CACHE_SIZE") or _SIZE
    found = re.fullmatch(r"(\d+)([KMG]?)", given.strip())
    if not found:
        raise BackendError(f"FLASHGEN_CACHE_SIZE is {given!r}: expected bytes, as 1073741824, 1024M or 1G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def make(folder: Path) -> None:
    """Makes a folder, and those that it lies in, for this user alone. Raises OSError."""
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            place.mkdir(0o700, exist_ok=True)


def trust(path: Path) -> None:
    """Raises PermissionError where another user could have written what lies there: a shared library is code, and so is a cubin.

    From the root on, everything belongs to this user or to the superuser, and nobody else may write to it; folders further up are either
    closed to others, too, or sticky, as /tmp is.
    """
    path, base = Path(os.path.realpath(path)), Path(os.path.realpath(root()))
    for place in (path, *path.parents):
        try:
            found = place.stat()
        except FileNotFoundError:
            continue
        own = place.is_relative_to(base)
        others = _ANYBODY if found.st_gid == found.st_uid else _ANYBODY | _GROUP  # of one number: the group of that user alone
        if own and found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, f"{place} belongs to another user, number {found.st_uid}", str(place))
        if found.st_mode & others and (own or not found.st_mode & stat.S_ISVTX):
            raise PermissionError(errno.EPERM, f"other users may write to {place}", str(place))


def aside(path: Path) -> Path:
    """A name beside a path that no other thread, process or machine takes, to build something under before it is renamed."""
    return path.with_name(f".building-{os.urandom(16).hex()}")


def put(path: Path, content: str | bytes) -> None:
    """Writes a file at once, in place of what was there. Raises OSError."""
    make(path.parent)
    unfinished = aside(path)
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def found(path: Path) -> bool:
    """True if an entry is there; asking counts as a use of it."""
    with contextlib.suppress(OSError):  # not there, nor can it be
        try:
            os.utime(path)
        except OSError:  # read only, which keeps no times
            return path.exists()
        return True
    return False


def entries(kind: str) -> Iterator[Entry]:
    """The entries of a folder of compiled things; none if it cannot be read."""
    with contextlib.suppress(OSError):
        for path in (root() / kind).iterdir():
            with contextlib.suppress(OSError):  # removed meanwhile
                files = path.iterdir() if path.is_dir() else [path]
                yield Entry(path.stat().st_mtime, path, sum(file.stat().st_size for file in files))


def make_room() -> None:
    """Removes the entries used longest ago until the others fit the limit, and what dead processes left half built. Raises BackendError."""
    most, now, total = limit(), time.time(), 0
    for entry in sorted((entry for kind in COMPILED for entry in entries(kind)), reverse=True):
        total += entry.bytes
        unfinished = entry.path.name.startswith(".")
        if now - entry.used > _ABANDONED if unfinished else total > most and now - entry.used > _IN_USE:
            remove(entry.path)


def clear() -> None:
    """Removes every compiled entry; what was measured stays."""
    for kind in COMPILED:
        for entry in entries(kind):
            remove(entry.path)


def remove(path: Path) -> None:
    """Removes an entry at once for those who look for it; where that is not allowed, it stays."""
    with contextlib.suppress(OSError):
        gone = path.rename(aside(path))
        if gone.is_dir():
            from shutil import rmtree  # which loads compressors

            rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()
