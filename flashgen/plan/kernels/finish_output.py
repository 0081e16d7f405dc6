"""The kernel that runs after an attention whose o before `output` is an output too: it makes o of that."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flashgen.plan.embed import ByToken
from flashgen.plan.kernel import Grid
from flashgen.plan.kernels.embed import THREADS, tokens
from flashgen.plan.program import Argument, Parts
from flashgen.spec import Spec


@dataclass(frozen=True, kw_only=True)
class FinishOutput(ByToken):
    """The kernel: a block a token."""


def reasons(spec: Spec) -> Iterator[tuple[str, str]]:
    """The cost of the kernel, for people."""
    if spec.kept != "o":
        rows = f"2 * q_len * heads * {spec.head_dim.v * spec.out_element.bytes} bytes a sequence, and what output reads"
        yield "output", f"o_raw is asked for too, so a kernel after the attention reads it and writes o: {rows}"


def finished(spec: Spec, parts: Parts) -> Parts:
    """The kernels of an attention, which write o_raw, before that one, if the spec asks for o_raw."""
    if spec.kept == "o":
        return parts
    cuda, lying = spec.out_element.cuda, "behind" if "q_len" in spec.geometry.behind else "apart"
    found = replace(parts, arguments=tuple(replace(a, of="o_raw") if a.of == "o" else a for a in parts.arguments))
    arguments = (
        Argument("o_raw", f"const {cuda}*", "pointer", "o_raw", comment="what the attention writes, before output"),
        Argument("o_raw_strides", "Strides", "strides", "o_raw"),
        Argument("finished_o", f"{cuda}*", "pointer", "o", comment="what output makes of it"),
        Argument("finished_o_strides", "Strides", "strides", "o"),
    )
    kernel = FinishOutput("finish_output", Grid(THREADS, tokens(spec, "q_len")), role="q", lying=lying)
    return found.followed(Parts((kernel,), arguments))
