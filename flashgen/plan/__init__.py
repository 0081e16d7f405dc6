"""From a spec to a Plan: search for tiles and pipelines, schedules, and a NumPy interpreter of every plan."""

from flashgen.plan.interpret import interpret
from flashgen.plan.model import Plan
from flashgen.plan.schedule import merge_states
from flashgen.plan.search import candidates, plan

__all__ = ["Plan", "candidates", "interpret", "merge_states", "plan"]
