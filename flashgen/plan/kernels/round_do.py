"""The rounding of do, where o has a dtype of its own: `delta` does it first, as products multiply numbers of the dtype of q, k and v."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.plan.kernels.arguments import strides
from flashgen.plan.kernels.embed import tokens
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec


def rounds_do(spec: Spec) -> bool:
    """True if the gradient of o is rounded before the products, and no `output` does so on its way."""
    return spec.out_element != spec.element and spec.output is None


def reasons(spec: Spec) -> Iterator[tuple[str, str]]:
    """The cost of that, for people."""
    if rounds_do(spec):
        rows = f"q_len * heads * {spec.head_dim.v * spec.element.bytes} bytes a sequence"
        yield "out_dtype", f"o and do are {spec.out_element.name}: delta reads them, and writes do as the {spec.dtype} of products: {rows}"


def rounded_do(spec: Spec, parts: Parts) -> Parts:
    """The kernels of a backward, of which `delta` writes do rounded, where it has to: that is what the others take as do."""
    if not rounds_do(spec) or not parts.arguments:
        return parts
    rounded = "the same as products take it, dout too: [tokens, heads, D]"
    arguments = (
        Argument("given_do", f"const {spec.out_element.cuda}*", "pointer", "do", comment="the gradient of o as a call gives it"),
        Argument("given_do_strides", strides(spec, "do"), "strides", "do"),
        Argument("rounded_do", f"{spec.element.cuda}*", "pointer", "rounded_do", comment=rounded),
    )
    scratch = Scratch("rounded_do", spec.dtype, (*tokens(spec, "q_len"), "heads", spec.head_dim.v))
    found = replace(parts, arguments=tuple(replace(a, of="rounded_do", comment="") if a.of == "do" else a for a in parts.arguments))
    return found.followed(Parts((), arguments, (scratch,)))
