"""The ladder: one attention by every schedule from standard attention to FlashAttention 3, measured, counted and explained."""

from flashgen.ladder.climb import Climb, Shape, climb
from flashgen.ladder.page import write
from flashgen.ladder.rungs import RUNGS, Rung

__all__ = ["RUNGS", "Climb", "Rung", "Shape", "climb", "write"]
