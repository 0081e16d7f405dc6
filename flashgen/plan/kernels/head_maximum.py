"""The kernel that runs after the attention where a spec asks for the greatest score of each head: it reads that of each row."""

from flashgen.plan.kernel import Extent, Grid, Kernel, Region, SmemPlan
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec
from flashgen.spec.outputs import OUTPUTS

_THREADS = 512  # of the block that reads the rows of a head
_REGION = Region(name="maximum of a warp", symbol="", offset=0, bytes=4, count=_THREADS // 32)  # all of its shared memory


def head_maximum(spec: Spec) -> Parts:
    """The kernel, if the spec asks for it, and memory for the rows' maxima unless they are an output too."""
    if "max_logit" not in spec.outputs:
        return Parts((), ())
    rows: tuple[Extent, ...] = ("heads", "q_len") if spec.geometry.packed else ("batch", "heads", "q_len")
    maxima = () if "max" in spec.outputs else (Scratch("max", "float32", rows),)
    kernel = Kernel("head_maximum", Grid(_THREADS, ("heads",)), SmemPlan.of(_REGION))
    argument = Argument("max_logit", "float*", "pointer", "max_logit", comment=OUTPUTS["max_logit"].said(spec.geometry.packed))
    return Parts((kernel,), (argument,), maxima)
