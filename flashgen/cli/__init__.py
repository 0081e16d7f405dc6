"""The command line, a module a command. Exit codes: 0, 1 (a check failed), 2 (bad input)."""

import io
import sys

from flashgen.errors import FlashgenError


def main() -> None:
    """Runs the command line; what flashgen raises on purpose becomes one message and exit code 2."""
    from flashgen.cli.commands import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error is: a name that a terminal cannot write ends no command
    try:
        app()
    except FlashgenError as error:
        print(f"flashgen: {error}", file=sys.stderr)
        sys.exit(2)
