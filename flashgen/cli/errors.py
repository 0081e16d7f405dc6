"""The error of options that the command line itself refuses."""

from flashgen.errors import FlashgenError


class CommandError(FlashgenError):
    """An option that cannot be used: what was given, what is allowed."""
