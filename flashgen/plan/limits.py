"""What the kernels for tensor cores serve, whatever the architecture."""

from flashgen.errors import PlanError
from flashgen.plan.model import SoftmaxPlan
from flashgen.plan.search import Problem
from flashgen.spec import HeadDim, Spec

MAX_HEAD_DIM = 256  # what a thread's registers hold of o
WHOLE = HeadDim(MAX_HEAD_DIM, MAX_HEAD_DIM)
MAX_SPLIT = HeadDim(576, 512)  # where two blocks share v's columns, and one tile of q and one of k fit shared memory: latent attention


def check(problem: Problem, most: HeadDim = WHOLE) -> None:
    """Raises PlanError for head dims and schedules that no kernel has."""
    spec, arch, softmax = problem.spec, problem.arch.name, problem.softmax
    for label, d, limit in (("qk", spec.head_dim.qk, most.qk), ("v", spec.head_dim.v, most.v)):
        if d % 8 or not 8 <= d <= limit:
            nearest = min(max(8, round(d / 8) * 8), limit)
            raise PlanError(f"head_dim {label} is {d}: {arch} takes multiples of 8 from 8 to {limit}; the nearest is {nearest}")
    if softmax.outer == "kv" and softmax.steps != ("normalized",) and not softmax.materialize:
        raise PlanError(
            f"schedule: outer is kv with {_schedule_text(softmax)}: kernels have the keys in the outer loop with {{passes: 1, normalize: "
            "each_step}; on the CPU (arch host) every schedule has"
        )


def _schedule_text(softmax: SoftmaxPlan) -> str:
    return f"{{passes: {softmax.passes}, normalize: {softmax.normalize}}}"


def v_splits(spec: Spec) -> int:
    """Blocks that share v's columns."""
    return -(-spec.head_dim.v // MAX_HEAD_DIM)


def up(x: int, to: int) -> int:
    """The next multiple.

    >>> up(72, 16)
    80
    """
    return -(-x // to) * to
