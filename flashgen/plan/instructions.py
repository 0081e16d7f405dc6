"""What a key tile costs a thread of the kernels of 16 bits where no mask is tested: a count of the emitted loop, before there is one."""

from collections.abc import Iterator

from flashgen.expr import Holes, Instructions
from flashgen.plan.model import SoftmaxPlan, TilePlan

EXPONENT = Instructions(special=1, multiply=2)  # of an element: exp2 of one multiply-add, and its part in the sum
ROW = Instructions(special=1, multiply=2)  # the factor of a rescale, and the sum times it


def instructions(tile: TilePlan, softmax: SoftmaxPlan, holes: Holes) -> Instructions:
    """Of a thread, which holds two rows and a quarter of their columns."""
    elements = tile.block_n // 2
    score = holes.instructions.times(elements)
    if not softmax.normalized:
        return score
    rescale = Instructions(multiply=tile.v_columns // 2)
    return score + EXPONENT.times(elements) + ROW.times(2) + rescale


def reasons(tile: TilePlan, softmax: SoftmaxPlan, holes: Holes) -> Iterator[tuple[str, str]]:
    """For people: all, what the score has in it, and what its functions are off by."""
    whole, score = instructions(tile, softmax, holes), holes.instructions
    yield (
        "instructions",
        f"a thread takes {whole.special} special functions and {whole.multiply} multiplies and adds for a key tile without mask; "
        f"of each of its {tile.block_n // 2} elements, the score takes {score.special} and {score.multiply}",
    )
    if any("ptx::tanh" in line for line in holes.score or ()):
        yield (
            "tanh",
            "tanh.approx, one special function, off by 2^-11 of its value at most, so softcap by 2^-11 of a score: below scores of 4 that "
            "is less than bfloat16 rounds weights by. Through exp2 and a reciprocal it would take two",
        )
