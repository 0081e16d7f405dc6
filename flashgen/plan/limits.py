"""What the kernels for tensor cores serve, whatever the architecture."""

from flashgen.errors import PlanError
from flashgen.plan.model import SoftmaxPlan
from flashgen.plan.search import Problem

MAX_HEAD_DIM = 256  # what a thread's registers hold of o


def check(problem: Problem) -> None:
    """Raises PlanError for head dims and schedules that no kernel has."""
    spec, arch, softmax = problem.spec, problem.arch.name, problem.softmax
    for label, d in (("qk", spec.head_dim.qk), ("v", spec.head_dim.v)):
        if d % 8 or not 8 <= d <= MAX_HEAD_DIM:
            nearest = min(max(8, round(d / 8) * 8), MAX_HEAD_DIM)
            raise PlanError(f"head_dim {label} is {d}: {arch} takes multiples of 8 from 8 to {MAX_HEAD_DIM}; the nearest is {nearest}")
    if softmax.outer == "kv" and softmax.steps != ("normalized",) and not softmax.materialize:
        raise PlanError(
            f"schedule: outer is kv with {_schedule_text(softmax)}: kernels have the keys in the outer loop with {{passes: 1, normalize: "
            "each_step}; on the CPU (arch host) every schedule has"
        )


def _schedule_text(softmax: SoftmaxPlan) -> str:
    return f"{{passes: {softmax.passes}, normalize: {softmax.normalize}}}"


def up(x: int, to: int) -> int:
    """The next multiple.

    >>> up(72, 16)
    80
    """
    return -(-x // to) * to
