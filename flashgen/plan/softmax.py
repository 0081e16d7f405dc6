"""The plan of a softmax: how maximum and sum are kept, as a spec pins it, or as strategy and weights allow."""

from dataclasses import replace

from flashgen.errors import PlanError
from flashgen.expr import Holes
from flashgen.plan.strategy import Strategy
from flashgen.spec import Schedule, Spec
from flashgen.spec.outputs import OUTPUTS, of_rows
from flashgen.theory.schedule import SoftmaxPlan, resolve


def softmax_plan(spec: Spec, strategy: Strategy, found: Holes) -> SoftmaxPlan:
    """The softmax of a spec.

    Raises PlanError for a pinned schedule that another word of the spec contradicts.
    """
    if not spec.softmax.normalized and spec.schedule != Schedule():
        raise PlanError("schedule pins how maximum and sum are kept, and softmax: none has neither: schedule: auto")
    least = strategy.lazy_from[found.score.instructions.special > 0]
    schedule = resolve(spec.schedule, "lazy" if spec.softmax.normalized and spec.head_dim.v >= least else "always")
    exact = any(OUTPUTS[name].exact_maximum for name in of_rows(spec.outputs))
    narrow = bool(spec.weight) and spec.dtype == "float16"  # exponentials that wait reach 2^8: with a weight on top they leave it early
    if schedule.rescale == "lazy" and (exact or (narrow and spec.schedule.threshold is None)):
        if spec.schedule.threshold:
            raise PlanError(
                f"schedule: lazy is {spec.schedule.threshold:g}, and outputs has the maximum, which then stays behind: {{lazy: 0}}"
            )
        schedule = replace(schedule, threshold=0.0)
    return replace(schedule, normalized=spec.softmax.normalized, sink=spec.softmax.sink is not None)
