"""Plans a spec as a Program: a search for tiles and pipelines among the candidates of whichever strategy serves."""

from flashgen.plan.backward import backward_candidates, plan_backward
from flashgen.plan.program import Program
from flashgen.plan.search import candidates, plan

__all__ = ["Program", "backward_candidates", "candidates", "plan", "plan_backward"]
