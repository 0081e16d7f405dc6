"""Plans a spec as a Program: a search for tiles and pipelines among the candidates of whichever strategy serves."""

from flashgen.plan.program import Program
from flashgen.plan.search import candidates, plan

__all__ = ["Program", "candidates", "plan"]
