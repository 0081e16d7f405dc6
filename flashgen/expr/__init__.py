"""Expressions: text to typed nodes, nodes to CUDA and NumPy, masks to ranges of keys."""

from flashgen.expr.holes.hoist import Member
from flashgen.expr.holes.holes import Holes, holes
from flashgen.expr.language.claims import Requirement
from flashgen.expr.language.fold import fold
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.read import Expressions
from flashgen.expr.language.scope import Scope
from flashgen.expr.language.text import show
from flashgen.expr.meaning.evaluate import evaluate
from flashgen.expr.prove.claims import parse
from flashgen.expr.prove.lower import lower
from flashgen.expr.tiles.ranges import KeyRanges, RowRanges, TileRanges, analyse, row_ranges

__all__ = [
    "Expressions",
    "Holes",
    "Instructions",
    "KeyRanges",
    "Member",
    "Requirement",
    "RowRanges",
    "Scope",
    "TileRanges",
    "analyse",
    "evaluate",
    "fold",
    "holes",
    "lower",
    "parse",
    "row_ranges",
    "show",
]
