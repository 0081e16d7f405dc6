"""The kernels that run before the attention where a query tile takes the key tiles of a list: they make the lists."""

from flashgen.expr import Holes
from flashgen.expr.language.nodes import Node, names
from flashgen.plan.kernel import Extent, Grid, Kernel, TilePlan
from flashgen.plan.look import Look
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.plan.strategy import Draft
from flashgen.spec import Spec

_WARP = 32  # threads: one warp a query tile, or a piece of one
WORD = 32  # key tiles, a bit each
_TILES = 4  # key tiles of a block that looks at pairs, a warp each


def key_lists(spec: Spec, draft: Draft, *, early: bool) -> Parts:
    """The kernel and its memory; it starts early if the attention does."""
    tiles, pieces, block_n = query_tiles(spec, draft), draft.pieces, draft.tile.block_n
    kernel = Kernel("key_lists", Grid(_WARP * pieces, tiles, early))
    whom = "each query tile" if pieces == 1 else "each query tile, and then each of its warpgroups,"
    arguments = (
        Argument(
            "key_tiles", "uint2*", "pointer", "key_tiles", comment="of each query tile, a bit a key tile: taken, and without the mask"
        ),
        Argument("key_spans", "int4*", "pointer", "key_spans", comment=f"begin, end and number of the key tiles that {whom} takes"),
    )
    scratch = (
        Scratch("key_tiles", "int32", (*tiles, ("kv_len", WORD * block_n), 2)),
        Scratch("key_spans", "int32", (*tiles, 4 * pieces)),
    )
    return Parts((kernel,), arguments, scratch)


def list_bits(spec: Spec, tile: TilePlan, *, early: bool) -> Parts:
    """The kernel that makes of each list a bit a key, where blocks of keys are no multiple of what products take, and its memory."""
    assert spec.blocks
    together = max(WORD, tile.block_n)
    heads = "heads" if spec.blocks.heads == "hq" else "kv_heads"
    lists: tuple[Extent, ...] = ("batch", heads, ("q_len", spec.blocks.m))
    argument = Argument("list_bits", "u32*", "pointer", "list_bits", comment="of each list, a bit a key: whether it has that")
    words = Scratch("list_bits", "int32", (*lists, ("kv_len", together), together // WORD))
    return Parts((Kernel("list_bits", Grid(_WARP, lists, early)),), (argument,), (words,))


def query_lists(spec: Spec, tile: TilePlan) -> Parts:
    """The kernel of a backward that lists the query tiles of each key tile, for each head, and its memory."""
    packed, together = spec.geometry.packed, WORD * tile.block_m
    of: tuple[Extent, ...] = ("heads", ("key_places", tile.block_n)) if packed else ("batch", "heads", ("kv_len", tile.block_n))
    queries: Extent = ("places", together) if packed else ("q_len", together)
    arguments = (
        Argument(
            "query_lists", "uint2*", "pointer", "query_lists", comment="of each key tile, a bit a query tile: taken, and without the mask"
        ),
        Argument("query_spans", "int4*", "pointer", "query_spans", comment="begin, end and number of the query tiles of each key tile"),
    )
    scratch = (
        Scratch("query_lists", "int32", (*of, queries, 2)),
        Scratch("query_spans", "int32", (*of, 4)),
    )
    return Parts((Kernel("query_lists", Grid(_WARP, of)),), arguments, scratch)


def seen_tiles(tile: TilePlan, mask: Node, looking: Holes, *, bits: bool, early: bool) -> Parts:
    """The kernel that looks at each pair of the tiles where the ranges of a mask do not tell, and its memory: a byte a tile, for each
    sequence and head if the mask differs along them. `bits`: and a bit a pair."""
    tiles, read = ("q_len", tile.block_m), names(mask)
    heads = ("heads",) if "h" in read else ("kv_heads",) if "hk" in read else ()
    axes = (*(("batch",) if "b" in read else ()), *heads)
    columns = ("kv_len", tile.block_n)
    kernel = Look("seen_tiles", Grid(_WARP * _TILES, (*axes, tiles, ("kv_len", _TILES * tile.block_n)), early), mask=looking)
    comment = "of each query tile and key tile: 0 where no row sees a key, 2 where each sees all, else 1"
    argument = Argument("tiles_seen", "unsigned char*", "pointer", "tiles_seen", comment=comment)
    found = Parts((kernel,), (argument,), (Scratch("tiles_seen", "bool", (*axes, tiles, columns)),))
    if not bits:
        return found
    told = "of each query, a bit a key: whether it attends to it; where the mask is tested"
    words = Scratch("mask_bits", "int32", (*axes, tiles, tile.block_m, columns, tile.block_n // WORD))
    return found.followed(Parts((), (Argument("mask_bits", "u32*", "pointer", "mask_bits", comment=told),), (words,)))


def query_tiles(spec: Spec, draft: Draft) -> tuple[Extent, ...]:
    """The query tiles that have lists: of each head, or of all heads of a group together."""
    if spec.geometry.packed:
        return ("heads", ("places", draft.tile.block_m))
    if draft.dealing.grouped:
        return ("batch", "kv_heads", ("rows", draft.tile.block_m))
    return ("batch", "heads", ("q_len", draft.tile.block_m))
