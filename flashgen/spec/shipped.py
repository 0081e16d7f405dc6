"""The specs that ship with flashgen, in folders by field; finds a spec by path, or one of those by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashgen.errors import SpecError, nearest
from flashgen.spec.files import load
from flashgen.spec.model import Spec

_PAPER = "# Paper: "


@dataclass(frozen=True)
class Shipped:
    """A file of the library. Its first line says what it is for, and a line of its head names the paper."""

    name: str
    folder: str  # the field; "" for those that any model may have
    path: Path

    @property
    def text(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")

    @property
    def purpose(self) -> str:
        """The sentence that says what it is for."""
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def paper(self) -> str:
        """Authors, year and arXiv number; empty where no paper is known."""
        return next((line.removeprefix(_PAPER) for line in self.text.splitlines() if line.startswith(_PAPER)), "")

    @property
    def keys(self) -> str:
        """The file without the comment at its head."""
        lines = self.text.splitlines(keepends=True)
        return "".join(lines[next(i for i, line in enumerate(lines) if not line.startswith("#")) :])

    def to_json(self) -> dict[str, Any]:
        """The file as `--json` prints it."""
        return {"name": self.name, "folder": self.folder, "purpose": self.purpose, "paper": self.paper, "path": str(self.path)}


def spec_root() -> Path:
    """The folder of the shipped specs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "_specs"
    return installed if installed.is_dir() else package.parent / "specs"


def library() -> dict[str, Shipped]:
    """The shipped specs by name, those outside of folders first.

    >>> library()["softcap"].paper
    'Gemma Team 2024, arXiv:2408.00118'
    """
    root = spec_root()
    found = [*sorted(root.glob("*.yaml")), *sorted(root.glob("*/*.yaml"))]
    return {path.stem: Shipped(path.stem, path.parent.name if path.parent != root else "", path) for path in found}


def shipped(name: str) -> Shipped:
    """The shipped spec of a name. Raises SpecError."""
    known = library()
    if name not in known:
        raise SpecError(f"no shipped spec is called {name!r}", hint=_near(name, known))
    return known[name]


def find(given: str) -> Spec:
    """The spec of a path, or of a shipped spec's name. Raises SpecError.

    >>> find("causal").mask
    'causal'
    """
    path = Path(given)
    if path.suffix or path.exists() or len(path.parts) > 1:
        return load(path)
    known = library()
    if given in known:
        return load(known[given].path)
    raise SpecError(f"no file {given!r}, and no shipped spec of that name", hint=_near(given, known))


def _near(name: str, known: Iterable[str]) -> str:
    """A hint: the names most like it, or where all are listed; there are too many for a message."""
    close = nearest(name, known)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else "`flashgen specs` lists those that ship"
