"""Planning float32 for Hopper: q, k and v split into planes, attention of planes by wgmma, plain float32 for the rest."""

from collections.abc import Iterator
from itertools import product

from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.limits import FLOAT_BYTES, SHARED_BYTES, TILE_ROWS, up
from flashgen.plan.engines.wgmma import GATHERED
from flashgen.plan.kernel import WARPGROUP_ROWS, DealingPlan, PipelinePlan, SmemPlan, TilePlan, WorkersPlan
from flashgen.plan.kernels.split_keys_values import SCALE_FLOATS
from flashgen.plan.operands.planes import PLANE_BYTES, PLANES, place_reason
from flashgen.plan.operands.planes_strategy import PlanesStrategy
from flashgen.plan.smem import lay_out
from flashgen.plan.strategy import Draft, Problem, Request, Tried

REGISTERS = {1: (56, 256), 2: (40, 232)}  # of a loading and of a computing thread, by computing warpgroups
IN_PLACE = {1: (128, 248), 2: (72, 184)}  # the same where the loading ones split keys and values, in two warpgroups
ACCUMULATORS = {232: 196, 184: 176}  # s, its second sum, p, o and a tile's product, beyond which they spill, by a thread's registers
MASK_REGISTERS = 8  # that a mask needs besides where two sums of a score are alive,
SCORE_REGISTERS, READ_REGISTERS = 24, 48  # a score that is not linear, and a score or mask that reads tensors
TILE_BYTES = 128  # of what is told about a query tile
SPLIT_THREADS = 128  # that split a tile in place
EXTREMES_BYTES = 2 * 3 * SPLIT_THREADS // 32 * 8  # for keys and for values, in two steps and once more, two numbers a warp
WIDE = 128  # columns of v beyond which a tile's product goes to o in parts
PART = 64  # columns of such a part, and of q and k that one sum of a score covers: two sums halve what a tensor core truncates


class PlanesWgmma(PlanesStrategy):
    """float32 operands, online, in arrays of any strides; split in place where tensor maps take them."""

    skeleton = "forward_sm90_split"
    engine = "wgmma"
    beyond = True
    costs = "planes_wgmma"
    shortest = 512  # where the kernel that splits keys and values takes as long as the attention

    def serves(self, request: Request) -> str | None:
        """Refuses what is not float32, or not for wgmma."""
        return limits.unserved(request, engine=self.engine, operand="planes")

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles and stages."""
        spec = problem.spec
        by_warps = [64, 128] if spec.warps is None else [spec.warps * 16]
        rows = by_warps if spec.block.m is None else [spec.block.m]
        keys = (16, 32, 48, 64, 80, 96, 128) if spec.block.n is None else (spec.block.n,)
        stages = [1, 2, 3] if spec.stages is None else [spec.stages]
        for block_m, block_n, n, (overlap, in_place) in product(rows, keys, stages, ((True, False), (False, False), (False, True))):
            yield _draft(problem, (block_m, block_n), stages=n, overlap=overlap, in_place=in_place)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Sizes of products, stages, registers, and the memory of the plain kernel."""
        tile, pipe, spec = draft.tile, draft.pipeline, problem.spec
        if tile.block_m not in (64, 128):
            return f"block m is {tile.block_m}: a warpgroup takes 64 query rows and 1 or 2 compute, so 64 or 128"
        if tile.block_n % 16 or not 16 <= tile.block_n <= 256:
            return f"block n is {tile.block_n}: a product takes multiples of 16 keys from 16 to 256"
        if not 1 <= pipe.stages <= 8:
            return f"stages is {pipe.stages}: 1 to 8"
        if spec.warps is not None and spec.warps * 16 != tile.block_m:
            return f"warps is {spec.warps}: a warp computes 16 query rows, so {tile.block_m // 16} for block m = {tile.block_m}"
        if reason := self.plain_objection(problem, draft):
            return reason
        if pipe.overlap and (tile.qk_columns > tile.qk_part or tile.v_columns > tile.v_part):
            return f"head dims {spec.head_dim.qk} and {spec.head_dim.v} take several sums a score or several products a tile: no overlap"
        if pipe.in_place and (reason := _not_in_place(problem, tile, pipe)):
            return reason
        needed = tile.v_columns // 2 + _beside_output(problem, tile, pipe)
        room = next(numbers for registers, numbers in ACCUMULATORS.items() if draft.workers.compute_registers >= registers)
        if needed > room and tile.block_n > 16:  # narrower there is none: it may spill
            return f"o with s, or with p and a tile's product, takes {needed} registers a thread, {room} can be room"
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Roofline of a key step, and what surrounds it."""
        tile, pipe, arch = draft.tile, draft.pipeline, problem.arch
        m, n, groups, columns = tile.block_m, tile.block_n, tile.block_m // WARPGROUP_ROWS, tile.qk_columns + tile.v_columns
        split, seen, score = PLANES[problem.spec.precision], problem.seen, problem.holes.element
        known, each = costs.of_arch(arch, self.costs), len(split.products)
        element = known["softmax"] + known["plane"] * split.count + score.floats
        instructions = n / 2 * element + tile.v_columns + known["loop"]  # of a warp
        products = 2 * m * n * columns / arch.mma_flops * each
        alone = products / groups * (known["overlapped"] if pipe.overlap else 1)
        step = {
            "tensor cores": products,
            "special functions": m * n * (problem.softmax.exponentials + score.special) / arch.exp2,
            "instructions": instructions * draft.workers.warpgroups,
            "shared memory": ((groups + 1) * n * columns + m * tile.qk_columns) * PLANE_BYTES / SHARED_BYTES * each,
            "one warpgroup": alone + instructions * known["lone_warp"] + known["step"],  # its products and its softmax
        }
        if pipe.in_place:
            numbers = n * max(tile.qk_stored, tile.v_stored) / SPLIT_THREADS
            waits = known["split_stage"] * pipe.stages + known["split_waits"] * step["shared memory"]
            step["splitting"] = max(waits, known["split_number"] * numbers)
        clocks = max(step.values()) + known["step"] * (1 if pipe.stages > 1 else known["one_stage"]) - pipe.stages
        around = known["in_place_tile"] if pipe.in_place else known["query_tile"] * columns
        total = (seen.key_tiles(m, n) * clocks + around * m / TILE_ROWS) * up(seen.length, m) / seen.length / m
        moved = (
            0 if pipe.in_place else (FLOAT_BYTES + PLANE_BYTES * split.count) * (tile.qk_stored + tile.v_stored) / (problem.spec.group or 1)
        )
        return {**step, "step": clocks, "total": total + moved / known["split_bytes"]}

    def reasons(self, problem: Problem, draft: Draft, tried: Tried) -> Iterator[tuple[str, str]]:
        """The reasons for planes, and for where they are made."""
        yield from super().reasons(problem, draft, tried)
        clocks = {d.pipeline.in_place: cost["total"] for d, cost in reversed(tried.legal)}
        refused = [reason for d, reason in tried.refused if d.pipeline.in_place]
        if True in clocks or refused:
            yield "in_place", place_reason(draft.pipeline.in_place, clocks, refused[0] if refused else "")


def _draft(problem: Problem, block: tuple[int, int], *, stages: int, overlap: bool, in_place: bool) -> Draft:
    block_m, block_n = block
    qk, v, step = problem.spec.head_dim.qk, problem.spec.head_dim.v, problem.spec.element.k_step
    columns = up(v, PART) if v > WIDE else up(v, step)
    qk_part = up(qk, step) if problem.spec.precision == "tf32" else PART  # rounded to 11 bits, what sums lose does not count
    tile = TilePlan(
        block_m=block_m,
        block_n=block_n,
        qk_columns=up(qk, step),
        v_columns=columns,
        qk_stored=up(qk, PART),
        v_stored=up(v, PART),
        qk_part=qk_part,
        v_part=columns if v <= WIDE else PART,
    )
    groups = max(1, block_m // WARPGROUP_ROWS)
    load, compute = (IN_PLACE if in_place else REGISTERS)[min(groups, 2)]
    workers = WorkersPlan(
        warps=4 * groups,
        load_warps=8 if in_place else 4,
        compute_registers=compute,
        load_registers=load,
        turns=overlap and groups > 1,
    )
    pipeline = PipelinePlan(stages=stages, overlap=overlap, copy_bytes=problem.copy_bytes, in_place=in_place)
    dealing = DealingPlan(counter=True, longest_first=not problem.seen.uniform)
    return Draft(tile=tile, workers=workers, pipeline=pipeline, smem=_smem(problem, tile, pipeline), dealing=dealing)


def _smem(problem: Problem, tile: TilePlan, pipe: PipelinePlan) -> SmemPlan | str:
    count, stages = PLANES[problem.spec.precision].count, pipe.stages
    slots = 2 if pipe.in_place else 1  # where who splits also deals, more of it ahead
    room, scale = (2, 4) if pipe.in_place else (count, 4 * SCALE_FLOATS)  # float32 takes as much as two planes
    pieces = [
        ("Q", "Q", count * tile.block_m * tile.qk_stored * PLANE_BYTES, 1, 1024),
        ("K", "K", room * tile.block_n * tile.qk_stored * PLANE_BYTES, stages, 1024),
        ("V", "V", room * tile.block_n * tile.v_stored * PLANE_BYTES, stages, 1024),
        ("k scales", "K_SCALES", scale, stages, 16),
        ("v scales", "V_SCALES", scale, stages, 16),
        ("tile", "TILE", TILE_BYTES, slots, 8),
    ]
    states = ["full", "empty"]
    if pipe.in_place:
        pieces += [(f"more {x}", f"{x}_MORE", 4, stages, 4) for x in "KV"]
        pieces += [("extremes", "EXTREMES", EXTREMES_BYTES, 1, 16)]
        states += ["arrived"]
    barriers = [(f"{x} {state}", f"{x}_{state.upper()}", stages) for x in "KV" for state in states]
    barriers += [("tile full", "TILE_FULL", slots), ("tile empty", "TILE_EMPTY", slots)]
    return lay_out(pieces, barriers, problem.arch.shared_bytes)


def _not_in_place(problem: Problem, tile: TilePlan, pipe: PipelinePlan) -> str | None:
    if not problem.request.mapped:
        return "tensor maps copy keys and values that are split in place, and do not take such arrays"
    if max(tile.qk_stored, tile.v_stored) > 128:
        return "keys and values of more than 128 columns leave too little room for tiles that are split in place"
    if pipe.stages == 1:
        return "stages is 1: in place a tile arrives while another is split, so 2 at least"
    return None


def _beside_output(problem: Problem, tile: TilePlan, pipe: PipelinePlan) -> int:
    """Registers a thread besides o: all at once, or the most of scores, softmax and output."""
    found, gathered = problem.holes, round(GATHERED * tile.block_n) if problem.holes.gathers else 0
    holes = READ_REGISTERS if found.gathers or found.reads else SCORE_REGISTERS if found.score.body else 0
    holes += found.along.registers(tile.block_n) + gathered + found.outputs.registers(tile.block_n, tile.v_columns)
    s, product = tile.block_n // 2, tile.v_part // 2 + PLANES[problem.spec.precision].count * tile.block_n // 4
    if pipe.overlap:
        return s + product + holes
    sums = 2 if tile.qk_columns > tile.qk_part else 1
    return max(s * sums, product, s + holes) + (holes // 2 if gathered else 0) + (0 if problem.seen.uniform else MASK_REGISTERS)
