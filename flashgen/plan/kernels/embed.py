"""The kernels that run before an attention whose queries or keys have a norm or a rotary embedding: they write them anew, once a call."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.plan.embed import Embed
from flashgen.plan.kernel import Extent, Grid
from flashgen.plan.kernels.arguments import strides
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec
from flashgen.spec.embedding import LENGTHS
from flashgen.spec.words import argument

THREADS = 256  # of a block: eight warps, each a head at a time
HEADS = {"q": "heads", "k": "kv_heads"}


def embedding(spec: Spec, parts: Parts) -> Parts:
    """The kernels of a program behind those that write its queries and keys, which are then what the others read."""
    found = parts
    for role in reversed(spec.embedded):
        arguments = tuple(replace(a, of=scratch_name(role)) if a.of == role else a for a in found.arguments)
        kernel = embed_kernel(spec, role)
        scratch = Scratch(scratch_name(role), spec.dtype, (*tokens(spec, kernel.length), HEADS[role], spec.head_dim.qk))
        found = replace(found, arguments=arguments).preceded(Parts((kernel,), tuple(_arguments(spec, role)), (scratch,)))
    return found


def reasons(spec: Spec) -> Iterator[tuple[str, str]]:
    """The cost of each kernel, for people."""
    for role in spec.embedded:
        length = LENGTHS[role]
        rows = f"2 * {length} * {HEADS[role]} * {spec.head_dim.qk * spec.element.bytes} bytes a sequence"
        yield "embedding", f"a kernel before the attention reads {role} and writes it anew: {rows}, and as much memory as {role} takes"


def scratch_name(role: str) -> str:
    """The name of the memory of an array after its norm and rotary embedding."""
    return f"embedded_{role}"


def tokens(spec: Spec, length: str) -> tuple[Extent, ...]:
    """The axes of all tokens: of sequences one behind the other there is one that is long."""
    return (1, length) if length in spec.geometry.behind else ("batch", length)


def embed_kernel(spec: Spec, role: str) -> Embed:
    """The kernel of q or of k."""
    length = LENGTHS[role]
    behind = length in spec.geometry.behind
    grid = Grid(THREADS, tokens(spec, length))
    return Embed(f"embed_{role}", grid, role=role, lying="behind" if behind else "apart", angle=_angle(spec, role, behind))


def _angle(spec: Spec, role: str, behind: bool) -> str:
    """The angle that a pair of columns is turned by: as a tensor says of a token, or by its position among the keys."""
    rotary = spec.rotary_of(role)
    if not rotary:
        return ""
    if table := rotary.table(role):
        own = any(tensor.name == table and "b" in tensor.shape for tensor in spec.tensors)
        return f"p.{argument(table)}({'token' if behind else 'batch, row' if own else 'row'}, pair)"
    position = "row + sequence.kv_len() - sequence.q_len()" if role == "q" else "row"
    return f"float({position}) * FREQUENCIES[pair]"


def _arguments(spec: Spec, role: str) -> Iterator[Argument]:
    cuda = spec.element.cuda
    yield Argument(f"given_{role}", f"const {cuda}*", "pointer", role, comment="before its norm and rotary embedding")
    yield Argument(f"given_{role}_strides", strides(spec, role), "strides", role)
    yield Argument(scratch_name(role), f"{cuda}*", "pointer", scratch_name(role), comment="after them: [tokens, heads, D]")
