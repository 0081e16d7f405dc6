"""The kernel that runs first in a backward of a spec with `output`: the gradient of what is written becomes that of what o was before."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.plan.kernel import Grid, Kernel, TilePlan
from flashgen.plan.kernels.arguments import query_tiles, strides
from flashgen.plan.kernels.embed import tokens
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec

THREADS = 256


def reasons(spec: Spec) -> Iterator[tuple[str, str]]:
    """The cost of the kernel, for people."""
    if spec.output is not None:
        rows = f"3 * q_len * heads * {spec.head_dim.v * spec.element.bytes} bytes a sequence, and what output reads"
        yield "output", f"a kernel before the products reads o_raw and do, and writes do as it is before output: {rows}"


def through_output(spec: Spec, tile: TilePlan, parts: Parts) -> Parts:
    """The kernels of a backward behind that one, a block a query tile, if there is an output: what it writes is what they take as do."""
    if spec.output is None or not parts.arguments:
        return parts
    arguments = (
        Argument("given_do", f"const {spec.out_element.cuda}*", "pointer", "do", comment="the gradient of what output makes of o"),
        Argument("given_do_strides", strides(spec, "do"), "strides", "do"),
        Argument("raw_do", f"{spec.element.cuda}*", "pointer", "raw_do", comment="that of o before: [tokens, heads, D]"),
    )
    scratch = Scratch("raw_do", spec.dtype, (*tokens(spec, "q_len"), "heads", spec.head_dim.v))
    found = replace(parts, arguments=tuple(replace(a, of="raw_do") if a.of == "do" else a for a in parts.arguments))
    return found.preceded(Parts((Kernel("through_output", Grid(THREADS, query_tiles(spec, tile))),), arguments, (scratch,)))
