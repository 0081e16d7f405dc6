"""Finds a spec by path, or by name one that ships with flashgen."""

from pathlib import Path

from flashgen.errors import SpecError, did_you_mean
from flashgen.spec import Spec, load


def spec_root() -> Path:
    """The folder of the shipped specs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "_specs"
    return installed if installed.is_dir() else package.parent / "specs"


def find(given: str) -> Spec:
    """The spec of a path, or of a shipped spec's name. Raises SpecError.

    >>> find("causal").mask
    'causal'
    """
    path = Path(given)
    shipped = {p.stem: p for p in sorted(spec_root().glob("*.yaml"))}
    if given in shipped and not path.exists():
        return load(shipped[given])
    if path.suffix or path.exists() or len(path.parts) > 1:
        return load(path)
    raise SpecError(f"no file {given!r}, and no shipped spec of that name", hint=did_you_mean(given, shipped))
