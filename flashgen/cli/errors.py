"""The error of options that the command line itself refuses."""

from pathlib import Path

from flashgen.errors import FlashgenError


class CommandError(FlashgenError):
    """An option that cannot be used: what was given, what is allowed."""


def unwritable(path: Path | str, error: Exception) -> CommandError:
    """The error of a file or folder that cannot be written, as an OSError or a library says.

    >>> print(unwritable("a/b.html", FileNotFoundError(2, "No such file or directory")))
    cannot write a/b.html: No such file or directory. Name a place in a folder that is there and may be written to
    """
    reason = getattr(error, "strerror", None) or error
    return CommandError(f"cannot write {path}: {reason}. Name a place in a folder that is there and may be written to")
