"""The limits of the kernels for tensor cores, whatever the architecture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flashgen.errors import PlanError
from flashgen.plan.kernel import TilePlan
from flashgen.spec import HeadDim, Spec
from flashgen.spec.tensors import PRODUCT_KEYS
from flashgen.theory.schedule import SoftmaxPlan

if TYPE_CHECKING:
    from flashgen.plan.strategy import Problem, Request

SHARED_BYTES = 128  # that shared memory moves a clock, on every multiprocessor since Volta
SCHEDULERS = 4  # of a multiprocessor, each with its tensor core: a warp has one of them
FLOAT_BYTES = 4  # of a sum
FRAGMENT_ROWS = 16  # of queries, a warp's in one mma.sync
MULTIPLY_ADDS = 128  # of floats that a multiprocessor does a clock
PRODUCT_NUMBERS = 128  # of keys or values that one mma.sync multiplies 16 rows by: 8 keys, 16 columns
LOADED_NUMBERS = 256  # that one ldmatrix brings: 16 rows, 16 columns
TILE_ROWS = 128  # of queries, whose start and end the numbers `query_tile` are
MAX_HEAD_DIM = 256  # what a thread's registers hold of o
WHOLE = HeadDim(MAX_HEAD_DIM, MAX_HEAD_DIM)
MAX_SLICED = HeadDim(576, 512)  # where two blocks share v's columns, and one tile of q and one of k fit shared memory: latent attention


def unserved(request: "Request", *, engine: str, operand: str, algorithm: str = "", anywhere: bool = False) -> str | None:
    """The reason why a strategy of this engine, for this kind of operands and this algorithm (if it names one), refuses a request."""
    if engine not in request.arch.engines:
        return f"{request.arch.name} has no {engine}"
    if request.spec.element.operand != operand:
        return f"it takes {operand} operands, and {request.spec.dtype} becomes {request.spec.element.operand}"
    if request.algorithm == algorithm == "standard" and request.spec.geometry.own:
        return "scores in memory are of sequences that are all as long"
    planes = operand == "planes" and not anywhere
    if request.spec.geometry.packed and (planes or request.algorithm == "keys_outer"):
        return "it takes sequences that have arrays of their own, layout bshd or bhsd"
    if request.spec.page and planes:
        return "it takes keys that lie in one piece, without pages"
    if request.spec.blocks and (operand == "planes" or request.algorithm not in ("online", "backward")):
        return "lists of blocks are walked by kernels of 16-bit operands, of one pass"
    if (blocks := request.spec.blocks) and blocks.m % 16 and not request.of_group:
        return f"its tiles have multiples of 16 queries, and blocks of lists {blocks.m}"
    if blocks and blocks.by_key and (request.backward or request.spec.geometry.packed):
        return f"blocks of lists have {blocks.n} keys: in a backward, and in packed sequences, multiples of {PRODUCT_KEYS}"
    if request.spec.weight and request.algorithm not in ("online", "backward"):
        return "weight is a factor of keys in kernels of one pass: else multiply v by what varies with the key alone"
    return None if algorithm in ("", request.algorithm) else f"its algorithm is {algorithm}, not {request.algorithm}"


def check(problem: "Problem", most: HeadDim = WHOLE) -> None:
    """Raises PlanError for head dims and schedules that no kernel has."""
    check_head_dims(problem.request, most)
    softmax = problem.softmax
    if softmax.outer == "kv" and softmax.steps != ("normalized",) and not softmax.materialize:
        raise PlanError(
            f"schedule: outer is kv with {_schedule_text(softmax)}: kernels have the keys in the outer loop with {{passes: 1, normalize: "
            "each_step}; on the CPU (arch host) every schedule has"
        )


def check_head_dims(request: "Request", most: HeadDim = WHOLE) -> None:
    """Raises PlanError for head dims that no kernel has."""
    spec, arch = request.spec, request.arch
    who = f"a backward on {arch.name}" if request.backward else arch.name
    for label, d, limit in (("qk", spec.head_dim.qk, most.qk), ("v", spec.head_dim.v, most.v)):
        if d % 8 or not 8 <= d <= limit:
            nearest = min(max(8, round(d / 8) * 8), limit)
            raise PlanError(f"head_dim {label} is {d}: {who} takes multiples of 8 from 8 to {limit}; the nearest is {nearest}")


def _schedule_text(softmax: SoftmaxPlan) -> str:
    return f"{{passes: {softmax.passes}, normalize: {softmax.normalize}}}"


def v_slices(spec: Spec) -> int:
    """Blocks that share v's columns."""
    return -(-spec.head_dim.v // MAX_HEAD_DIM)


def slice_reasons(tile: TilePlan) -> Iterator[tuple[str, str]]:
    """The reason why several blocks share a query tile, if they do."""
    if tile.v_slices > 1:
        columns = f"each with {tile.v_columns} columns of v: no thread holds o of more than {MAX_HEAD_DIM}"
        yield "v_slices", f"{tile.v_slices} blocks share a query tile, {columns}. Each computes the scores"


def up(x: int, to: int) -> int:
    """The next multiple.

    >>> up(72, 16)
    80
    """
    return -(-x // to) * to
