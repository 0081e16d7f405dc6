"""A NumPy interpreter of every program."""

from flashgen.interpret.backward import Given, interpret_backward
from flashgen.interpret.run import interpret

__all__ = ["Given", "interpret", "interpret_backward"]
