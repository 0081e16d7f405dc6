"""The part of planning float32 that all engines share: what is served, the kernels around the attention of planes, the reasons."""

from collections.abc import Iterator

from flashgen.errors import PlanError
from flashgen.expr import KeyRanges
from flashgen.plan.engines import limits
from flashgen.plan.kernel import Grid
from flashgen.plan.kernels.arguments import further_arguments, query_tiles, row_arguments
from flashgen.plan.kernels.plain import plain, plain_smem
from flashgen.plan.kernels.split_keys_values import split_keys_values
from flashgen.plan.operands.planes import LOST, PLANES
from flashgen.plan.program import Argument, Parts
from flashgen.plan.strategy import Draft, Problem, Strategy, Tried
from flashgen.spec import Spec
from flashgen.theory.schedule import SoftmaxPlan


class PlanesStrategy(Strategy):
    """float32 operands as float16 planes; o is rescaled by the multiply-add that takes a tile's product to it, so lazy saves nothing."""

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims and schedules that no kernel has."""
        limits.check(problem)
        if problem.softmax.steps != SoftmaxPlan().steps or problem.softmax.materialize or problem.softmax.outer != "q":
            raise PlanError("float32 kernels run {passes: 1, normalize: end, outer: q}; every schedule runs on the CPU (arch host)")
        if problem.softmax.rescale == "lazy":
            raise PlanError(
                "schedule: lazy saves nothing with float32, whose o is rescaled while a tile's product is added: rescale: always"
            )

    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """Planes of k and v by a kernel before, unless they are split in place; the attention; plain float32 where a tile has no planes."""
        spec, tile, dealt = problem.spec, draft.tile, draft.dealing.counter
        grid = Grid(draft.workers.threads, query_tiles(problem.spec, tile), early=dealt, resident=int(dealt))
        attention = Parts((draft.attention("forward", grid, ranges),), tuple(_arrays(spec)))
        if draft.pipeline.in_place:
            maps = tuple(Argument(f"{x}_tiles", "TensorMap", "tensor_map", x, (32, tile.block_n)) for x in "kv")
            found = Parts(attention.kernels, (*maps, *attention.arguments))
        else:
            found = attention.preceded(split_keys_values(PLANES[spec.precision], tile))
        found = found.followed(plain(spec, tile))
        return Parts(found.kernels, (*found.arguments, *_counter(dealt), *further_arguments(spec)), found.scratch)

    def reasons(self, problem: Problem, draft: Draft, tried: Tried) -> Iterator[tuple[str, str]]:
        """The reasons for planes, and for plain float32 besides."""
        yield "precision", PLANES[problem.spec.precision].text
        told = "the kernel forward_plain, whose time in a profile tells how many they are"
        yield "precision", f"computed in plain float32, slowly, by {told}: query tiles that see what is not finite, or what {LOST}"

    def plain_objection(self, problem: Problem, draft: Draft) -> str | None:
        """The reason why the plain kernel cannot have a draft's tile."""
        needed = plain_smem(problem.spec, draft.tile).bytes
        if needed > problem.arch.shared_bytes:
            return f"plain float32 takes {needed} bytes of shared memory, {problem.arch.shared_bytes} are there"
        return None


def _arrays(spec: Spec) -> Iterator[Argument]:
    for x in "qkv":
        yield Argument(x, "const float*", "pointer", x)
    yield Argument("o", f"{spec.out_element.cuda}*", "pointer", "o")
    for x in "qkvo":
        yield Argument(f"{x}_strides", "Strides", "strides", x)
    yield from row_arguments(spec)


def _counter(dealt: bool) -> Iterator[Argument]:
    if dealt:
        counter = "query tiles dealt beyond the first of each block; blocks that are done. Zero at launch, zero again after"
        yield Argument("counter", "int*", "pointer", "counter", comment=counter)
