"""The instructions of a thread for a key tile without mask, in the kernels of 16 bits: a count of the emitted loop, before there is one."""

import math
from collections.abc import Iterator

from flashgen.expr import Holes, Instructions
from flashgen.expr.prove.rounding import SCORES, Rounding
from flashgen.plan.kernel import PipelinePlan, TilePlan
from flashgen.plan.strategy import Draft, Problem
from flashgen.theory.schedule import SoftmaxPlan

EXPONENT = Instructions(special=1, multiply=2)  # of an element: exp2 of one multiply-add, and its part in the sum
PRODUCTS = Instructions(special=-1, multiply=7, other=3)  # more, of one by multiply-adds
ROW = Instructions(special=1, multiply=2)  # the factor of a rescale, and the sum times it


def instructions(tile: TilePlan, pipe: PipelinePlan, softmax: SoftmaxPlan, holes: Holes) -> Instructions:
    """The instructions of a thread, which holds two rows and a quarter of their columns."""
    elements = tile.block_n // 2
    score = holes.score.instructions.times(elements)
    if not softmax.normalized:
        return score
    rescale = Instructions(multiply=tile.v_columns // 2)
    multiplied = elements // pipe.multiplied if pipe.multiplied else 0
    more = Instructions(multiply=holes.outputs.multiplies)  # in further sums over the keys
    return score + (EXPONENT + more).times(elements) + PRODUCTS.times(multiplied) + ROW.times(2) + rescale


def native_reasons(problem: Problem, draft: Draft) -> Iterator[tuple[str, str]]:
    """The counts for people: all, the score's share, and the error of its functions."""
    tile, pipe, softmax, holes = draft.tile, draft.pipeline, problem.softmax, problem.holes
    whole, score = instructions(tile, pipe, softmax, holes), holes.score.instructions
    thread = f"a thread takes {whole.special:g} special functions and {whole.multiply:g} multiplies and adds for a key tile without mask"
    part = f"; of each of its {tile.block_n // 2} elements, the score takes {score.special:g} and {score.multiply:g}"
    yield "instructions", thread + (part if score.special or score.multiply else "")
    if pipe.multiplied:
        yield "multiplied", f"one exponential in {pipe.multiplied} by multiply-adds, off by 2^-13: the score keeps special functions busy"
    if holes.score.column_slope:
        yield "start", "what columns add to scores is where the sums of q.k begin: after the product nothing is added to an element"
    if holes.score.begin:
        yield "start", f"a warp brings {holes.score.begin.text}, once a key tile, to where the sums of q.k begin: an element adds nothing"
    if holes.brought_weight and holes.weight:
        yield "weight", f"a warp brings what keys count for, of {holes.weight.text}, once a key tile: an element multiplies"
    if holes.tile:
        yield "tensor", "each warp copies what a tensor holds at its rows and the keys of a tile to shared memory, two key tiles ahead"
    if holes.score.row_bias:
        yield "bias", "what rows and key tiles add to scores goes to the maximum and the reference of a row"
    if holes.score.rounding:
        yield "functions", _of_rounding(holes.score.rounding)


def _of_rounding(found: Rounding) -> str:
    least = f"{found.error:.1e} of a weight" if found.error < 1 else "all of a weight"
    off = f"off by 2^{math.log2(found.tanh):g} of tanh: up to {least} where scores stay within {SCORES:g}, as of standard normal q and k"
    allowed = f"allowed is {found.allowed:.1e}, what the dtype rounds weights by"
    match found.way:
        case "short":
            return f"tanh and sigmoid by tanh.approx, one special function, {off}; {allowed}. By an exponential and a reciprocal it is two"
        case "fast":
            return f"tanh and sigmoid by an exponential and a reciprocal, two special functions: tanh.approx, one, is {off}; {allowed}"
    long = f"an exponential and a reciprocal are off by {found.long:.1e}"
    return f"tanh and sigmoid by CUDA's functions: tanh.approx is {off}; {long}; {allowed}"
