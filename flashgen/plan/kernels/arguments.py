"""The pieces of work of every attention kernel, and the members of Params that do not depend on the skeleton."""

from collections.abc import Iterator

from flashgen.dtypes import READ
from flashgen.expr.meaning.summed import exact_sums
from flashgen.plan.kernel import Extent, TilePlan
from flashgen.plan.program import Argument
from flashgen.spec import Spec, Tensor
from flashgen.spec.axes import extent
from flashgen.spec.outputs import OUTPUTS, of_rows
from flashgen.spec.words import gradient

LENGTHS = {
    "kv_lens": "[B], keys of each sequence; kv_len is what there is place for",
    "cu_seqlens_q": "[B + 1], where the queries of each sequence begin, and where the last ends",
    "cu_seqlens_k": "[B + 1], the same of keys",
    "block_table": "[B, kv_len / page], the page of each sequence's first keys, of the next, and so on",
}
OF_KEYS = ("k", "v", "dk", "dv")  # arrays whose rows are keys


def query_tiles(spec: Spec, tile: TilePlan) -> tuple[Extent, ...]:
    """The pieces of work of an attention kernel."""
    tiles: tuple[Extent, ...] = (("places", tile.block_m), "heads") if spec.geometry.packed else (("q_len", tile.block_m), "heads", "batch")
    return (*tiles, *((tile.v_slices,) if tile.v_slices > 1 else ()))


def key_tiles(spec: Spec, tile: TilePlan) -> tuple[Extent, ...]:
    """The pieces of work of a backward's kernel."""
    return (("key_places", tile.block_n), "kv_heads") if spec.geometry.packed else (("kv_len", tile.block_n), "kv_heads", "batch")


def strides(spec: Spec, of: str) -> str:
    """The type of the strides of an array."""
    return "KeyStrides" if spec.geometry.separate_keys and of in OF_KEYS else "Strides"


def lse_arguments(spec: Spec) -> Iterator[Argument]:
    """The members of Params for what a backward takes of lse."""
    if spec.softmax.normalized:
        yield Argument("lse", "const float*", "pointer", "lse", comment=OUTPUTS["lse"].said(spec.geometry.packed))
        yield Argument("dlse", "const float*", "pointer", "dlse", comment="the gradient of lse, of its layout; null: 0")


def row_arguments(spec: Spec) -> Iterator[Argument]:
    """The members of Params for outputs of one number a query row."""
    for name in of_rows(spec.outputs):
        yield Argument(name, "float*", "pointer", name, comment=OUTPUTS[name].said(spec.geometry.packed))


def further_arguments(spec: Spec) -> Iterator[Argument]:
    """The members of Params after q, k, v, o and lse: what the expressions read, the scale, the sizes."""
    for t in map(spec.given, spec.tensors):
        array = f"Array<{READ[t.dtype][1]}, {len(t.shape)}>"
        yield Argument(t.argument, array, "array", t.argument, comment=f"[{', '.join(map(str, t.shape))}]", rank=len(t.shape))
    for t in spec.tensors:
        joined = spec.geometry.joined(t.shape)
        for i, axis in enumerate(t.shape):
            if (name := extent(t, i)) != axis:
                given = i - (joined is not None and joined < i)
                yield Argument(str(name), "int", "extent", t.argument, comment=f"{axis} of {t.name}", rank=given)
    for name, _ in spec.geometry.lengths:
        yield Argument(name, "const int*", "pointer", name, comment=LENGTHS[name])
    if lists := spec.lists:
        yield Argument(lists.argument, "Array<int, 4>", "array", lists.argument, comment=f"[{', '.join(map(str, lists.shape))}]", rank=4)
        yield Argument(f"{lists.argument}_length", "int", "extent", lists.argument, comment="of a list, at most", rank=3)
        if lists.free:
            yield Argument(f"{lists.argument}_rows", "int", "extent", lists.argument, comment="lists of a sequence", rank=2)
    yield Argument("softmax_scale", "float", "scalar", "softmax_scale")
    for p in spec.params:
        yield Argument(p.argument, p.type, "scalar", p.argument)
    named = {"q_len": "total_q", "kv_len": "total_k"}
    for name in ("q_len", "kv_len", "heads", "batch"):
        comment = "keys that the columns of block_table have place for" if spec.page and name == "kv_len" else ""
        yield Argument(named[name] if name in spec.geometry.behind else name, "int", "scalar", name, comment=comment)
    if spec.page:
        yield Argument("pages", "int", "scalar", "pages", comment="that k and v have")
    yield Argument("group", "int", "scalar", "group", comment="query heads a key/value head")
    yield section_argument()


def section_argument() -> Argument:
    """The member of Params that kernels read which deal query tiles by sections of heads."""
    return Argument("section", "int", "scalar", "section", comment="heads whose keys and values stay in the L2 together")


def gradient_arguments(spec: Spec) -> Iterator[Argument]:
    """The members of Params that the gradients of tensors and params are added to, float32, 0 at the launch, or rounded to."""
    summed = exact_sums(spec)
    for one in spec.with_grad:
        name, before = gradient(one.name), "" if one.name in summed else ", 0 at launch"
        if isinstance(one, Tensor):
            shape = spec.given(one).shape
            yield Argument(name, f"Sums<{len(shape)}>", "sums", name, comment=f"[{', '.join(map(str, shape))}]{before}", rank=len(shape))
        else:
            yield Argument(name, "float*", "pointer", name, comment=f"one number{before}")
