"""The kernels that run after a backward whose queries or keys have a norm or a rotary embedding: gradients of what a call gave."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.expr.meaning.summed import exact_sums
from flashgen.plan.embed import Unembed
from flashgen.plan.kernel import Grid
from flashgen.plan.kernels.arguments import strides
from flashgen.plan.kernels.embed import HEADS, THREADS, embed_kernel, embedding, scratch_name, tokens
from flashgen.plan.kernels.embed import reasons as before_reasons
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec

TOKENS = 16  # of a block, which sums up what they make of the gradient of learned columns


def embedded(spec: Spec, parts: Parts) -> Parts:
    """The kernels of a backward between those that write queries and keys anew, and those that bring their gradients back."""
    if not parts.arguments:  # nothing is launched
        return parts
    found = embedding(spec, parts)
    for role in spec.embedded:
        name = scratch_name(f"d{role}")
        arguments = tuple(replace(a, of=name) if a.of == f"d{role}" else a for a in found.arguments)
        found = replace(found, arguments=arguments).followed(_brought_back(spec, role, name))
    return found


def reasons(spec: Spec) -> Iterator[tuple[str, str]]:
    """The cost of the kernels of each array, for people."""
    for about, before in before_reasons(spec):
        yield about, f"{before}; another after the products brings its gradient back, through as much memory once more"


def _learned(spec: Spec, role: str) -> str:
    """The learned columns of q or of k whose gradient is asked for; empty where none is."""
    norm = spec.norm_of(role)
    name = (norm and norm.columns(role)) or ""
    return name if name in {one.name for one in spec.with_grad} else ""


def _brought_back(spec: Spec, role: str, name: str) -> Parts:
    """The kernel of one array, what it reads and writes, and the memory between it and the products, of this name."""
    given, before, cuda = f"d{role}", embed_kernel(spec, role), spec.element.cuda
    arguments = (
        Argument(name, f"const {cuda}*", "pointer", name, comment="the gradient of what they become: [tokens, heads, D]"),
        Argument(f"given_{given}", f"{cuda}*", "pointer", given, comment="that of what the call gave"),
        Argument(f"given_{given}_strides", strides(spec, given), "strides", given),
    )
    sequences, length = tokens(spec, before.length)
    grid = Grid(THREADS, (sequences, (str(length), TOKENS)))
    learned = _learned(spec, role)
    kernel = Unembed(
        f"unembed_{role}",
        grid,
        role=role,
        lying=before.lying,
        angle=before.angle,
        tokens=TOKENS,
        learned=learned,
        exact=learned in exact_sums(spec),
    )
    return Parts((kernel,), arguments, (Scratch(name, spec.dtype, (sequences, length, HEADS[role], spec.head_dim.qk)),))
