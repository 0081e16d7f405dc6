"""Runs the command line in this process."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from flashgen.cli import main


class Ran(NamedTuple):
    """The way a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def flashgen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`flashgen("build", "causal", ...)`."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr("sys.argv", ["flashgen", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return Ran(int(end.value.code or 0), *capsys.readouterr())

    return run
