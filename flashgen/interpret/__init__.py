"""A NumPy interpreter of every program."""

from flashgen.interpret.run import interpret

__all__ = ["interpret"]
