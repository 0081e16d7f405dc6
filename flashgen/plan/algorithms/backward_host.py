"""Planning the backward for the CPU: the interpreter walks key tiles and query tiles in NumPy, any head dim."""

from collections.abc import Iterator
from math import gcd

from flashgen.plan.engines.host import BLOCK
from flashgen.plan.kernel import DealingPlan, Grid, PipelinePlan, SmemPlan, TilePlan, WorkersPlan
from flashgen.plan.program import Parts
from flashgen.plan.strategy import BackwardStrategy, Draft, Problem, Request


class BackwardHost(BackwardStrategy):
    """Everything, on the CPU."""

    skeleton = "interpreter"
    engine = "numpy"

    def serves(self, request: Request) -> str | None:
        """Refuses GPUs."""
        return None if self.engine in request.arch.engines else f"{request.arch.name} is a GPU"

    def check(self, problem: Problem) -> None:
        """Nothing is refused."""

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """The usual tile."""
        qk, v, blocks = problem.spec.head_dim.qk, problem.spec.head_dim.v, problem.spec.blocks
        m, n = (gcd(BLOCK, blocks.m), gcd(BLOCK, blocks.n)) if blocks else (BLOCK, BLOCK)
        yield Draft(
            tile=TilePlan(block_m=m, block_n=n, qk_columns=qk, v_columns=v, qk_stored=qk, v_stored=v),
            workers=WorkersPlan(1),
            pipeline=PipelinePlan(1),
            smem=SmemPlan(capacity=problem.arch.shared_bytes),
            dealing=DealingPlan(),
        )

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Objects to nothing."""
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Five products follow each other."""
        tile = draft.tile
        clocks = 2 * tile.block_m * tile.block_n * (3 * tile.qk_columns + 2 * tile.v_columns) / problem.arch.mma_flops
        return {"products": clocks, "step": clocks, "total": clocks / tile.block_m}

    def parts(self, problem: Problem, draft: Draft) -> Parts:
        """One kernel that the interpreter reads; nothing is launched, so it takes no arguments."""
        return Parts((draft.backward(Grid(0, ()), problem),), ())
