"""Expressions: text to typed nodes, nodes to CUDA and NumPy, masks to ranges of keys."""

from flashgen.expr.fold import fold
from flashgen.expr.hoist import Member
from flashgen.expr.holes import Holes, holes
from flashgen.expr.instructions import Instructions
from flashgen.expr.language import Scope
from flashgen.expr.lower import Expressions, lower
from flashgen.expr.numpy import evaluate
from flashgen.expr.parse import parse
from flashgen.expr.ranges import KeyRanges, analyse
from flashgen.expr.reference import reference
from flashgen.expr.signs import Requirement
from flashgen.expr.text import show

__all__ = [
    "Expressions",
    "Holes",
    "Instructions",
    "KeyRanges",
    "Member",
    "Requirement",
    "Scope",
    "analyse",
    "evaluate",
    "fold",
    "holes",
    "lower",
    "parse",
    "reference",
    "show",
]
