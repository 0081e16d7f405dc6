"""What surrounds an attention of planes: the kernel that splits k and v before it, plain float32 after it, the memory between them."""

from collections.abc import Iterator

from flashgen.errors import PlanError
from flashgen.plan import limits
from flashgen.plan.arguments import further_arguments, query_tiles, row_arguments
from flashgen.plan.model import Argument, KernelPlan, LaunchPlan, Region, Scratch, SoftmaxPlan, TilePlan
from flashgen.plan.search import Problem
from flashgen.plan.split import SPLITS
from flashgen.spec import Spec

SPLIT_THREADS = 256
SPLIT_REGION = Region("extremes of a warp", "", 0, 8, SPLIT_THREADS // 32)  # all of its shared memory: two numbers a warp
SPLIT_BYTES = SPLIT_REGION.bytes * SPLIT_REGION.count
SCALE_FLOATS = 4  # that a scale of keys or values takes: 16 bytes, the least that a copy moves


def check(problem: Problem) -> None:
    """Raises PlanError for head dims and schedules that no kernel has."""
    limits.check(problem)
    if problem.softmax.steps != SoftmaxPlan().steps or problem.softmax.materialize or problem.softmax.outer != "q":
        raise PlanError("float32 kernels run {passes: 1, normalize: end, outer: q}; every schedule runs on the CPU (arch host)")
    if problem.softmax.rescale == "lazy":
        raise PlanError("schedule: lazy saves nothing with float32, whose o is rescaled while a tile's product is added: rescale: always")


def plain_bytes(spec: Spec, tile: TilePlan) -> int:
    """Shared memory of the plain kernel."""
    return sum(region.bytes for region in plain_regions(spec, tile))


def plain_regions(spec: Spec, tile: TilePlan) -> tuple[Region, Region]:
    """Query rows and one tile of keys or values, float32, four columns apart."""
    qk, v = spec.head_dim.qk + 4, spec.head_dim.v + 4
    q_bytes = 4 * tile.block_m * qk
    return Region("Q", "", 0, q_bytes), Region("K or V", "", q_bytes, 4 * tile.block_n * max(qk, v))


def launch(problem: Problem, tile: TilePlan, attention: KernelPlan, counter: tuple[Argument, ...] = ()) -> LaunchPlan:
    """The planes of k and v; the attention of planes, dealt by the counter, if any; plain float32 where a tile has no planes."""
    spec = problem.spec
    before = KernelPlan("split_keys_values", SPLIT_THREADS, SPLIT_BYTES, (2, ("kv_len", tile.block_n), "kv_heads", "batch"))
    arguments = (*_arrays(spec), *_planes(), _lost(), *counter, *further_arguments(spec))
    scratch = (*_of_keys(SPLITS[spec.precision].planes, tile), _of_queries(tile))
    return LaunchPlan((before, attention, _plain(spec, tile)), bool(counter), not problem.uniform, arguments, scratch)


def launch_in_place(problem: Problem, tile: TilePlan, attention: KernelPlan, counter: tuple[Argument, ...]) -> LaunchPlan:
    """The same where the attention splits k and v itself: no kernel before, no planes in memory."""
    spec = problem.spec
    maps = (Argument(f"{x}_tiles", "TensorMap", "tensor_map", x, (32, tile.block_n)) for x in "kv")
    arguments = (*maps, *_arrays(spec), _lost(), *counter, *further_arguments(spec))
    return LaunchPlan((attention, _plain(spec, tile)), True, not problem.uniform, arguments, (_of_queries(tile),))


def _plain(spec: Spec, tile: TilePlan) -> KernelPlan:
    return KernelPlan("forward_plain", 2 * tile.block_m, plain_bytes(spec, tile), query_tiles(tile), resident=1)


def _arrays(spec: Spec) -> Iterator[Argument]:
    for x in "qkv":
        yield Argument(x, "const float*", "pointer", x)
    yield Argument("o", f"{spec.out_element.cuda}*", "pointer", "o")
    for x in "qkvo":
        yield Argument(f"{x}_strides", "Strides", "strides", x)
    yield from row_arguments(spec)


def _planes() -> Iterator[Argument]:
    for x in "kv":
        yield Argument(f"{x}_planes", "u16*", "pointer", f"{x}_planes", comment=f"of {x}, tiles as shared memory holds them")
    for x in "kv":
        yield Argument(f"{x}_scales", "float*", "pointer", f"{x}_scales", comment="of a tile, 16 bytes apart, or NaN")


def _lost() -> Argument:
    return Argument("lost", "int*", "pointer", "lost", comment="of 16 query rows: whether they have seen what planes cannot hold")


def _of_keys(planes: int, tile: TilePlan) -> tuple[Scratch, ...]:
    keys = ("batch", "kv_heads", ("kv_len", tile.block_n))
    return (
        Scratch("k_planes", "float16", (*keys, planes * tile.block_n * tile.qk_stored)),
        Scratch("v_planes", "float16", (*keys, planes * tile.block_n * tile.v_stored)),
        Scratch("k_scales", "float32", (*keys, SCALE_FLOATS)),
        Scratch("v_scales", "float32", (*keys, SCALE_FLOATS)),
    )


def _of_queries(tile: TilePlan) -> Scratch:
    return Scratch("lost", "int32", ("batch", "heads", ("q_len", tile.block_m), tile.block_m // 16))
