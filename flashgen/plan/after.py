"""The kernel that runs after the attention where a spec asks for the greatest score of each head: it reads that of each row."""

from dataclasses import replace

from flashgen.plan.model import Argument, KernelPlan, LaunchPlan, Region, Scratch
from flashgen.spec import Spec

_THREADS = 512  # of the block that reads the rows of a head
REGION = Region("maximum of a warp", "", 0, 4, _THREADS // 32)  # all of its shared memory


def with_head_maximum(launch: LaunchPlan, spec: Spec) -> LaunchPlan:
    """The launch, with that kernel at its end, and memory for the rows' maxima unless they are an output too."""
    if "max_logit" not in spec.outputs or not launch.kernels:
        return launch
    maxima = () if "max" in spec.outputs else (Scratch("max", "float32", ("batch", "heads", "q_len")),)
    return replace(
        launch,
        kernels=(*launch.kernels, KernelPlan("head_maximum", _THREADS, REGION.bytes * REGION.count, ("heads",))),
        arguments=(
            *launch.arguments,
            Argument("max_logit", "float*", "pointer", "max_logit", comment="[Hq], the greatest score of a head"),
        ),
        scratch=(*launch.scratch, *maxima),
    )
