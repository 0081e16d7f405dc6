"""Lists of blocks for a call."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec
from flashgen.spec.tensors import MOST, ROWS, WORD, WORDS

INT32 = np.iinfo(np.int32)


def shape_of(spec: Spec, sizes: Sizes, most: int) -> tuple[int, ...]:
    """The shape of lists of `most` numbers each; of packed sequences there is place for the longest that there may be."""
    blocks, lists = spec.blocks, spec.lists
    assert blocks
    assert lists
    free = {MOST: most, ROWS: -(-sizes.q_len // blocks.m), WORDS: -(-sizes.kv_len // (WORD * blocks.n))}
    return tuple(max(1, free[str(axis)]) if axis in free else sizes.axis(axis) for axis in lists.shape)


def every_block(spec: Spec, sizes: Sizes, xp: Any) -> Any:
    """Lists that have every block, as arrays of CuPy or NumPy (`xp`)."""
    blocks = spec.blocks
    assert blocks
    shape = shape_of(spec, sizes, max(1, -(-sizes.kv_len // blocks.n)))
    return xp.full(shape, xp.arange(shape[-1], dtype="int32") if blocks.kind == "indices" else -1, "int32")


def some_blocks(spec: Spec, sizes: Sizes, random: np.random.RandomState) -> NDArray[np.int32]:
    """Lists of any length of random blocks, in any order, with numbers of no block and numbers that are there twice; one for all sequences
    or heads now and then."""
    blocks = spec.blocks
    assert blocks
    count = -(-sizes.kv_len // blocks.n)
    shape = shape_of(spec, sizes, random.randint(1, count + 2))
    shape = (*(n if random.randint(3) else min(1, n) for n in shape[:2]), *shape[2:])
    if blocks.kind == "bitmap":
        words = (random.randint(0, 1 << WORD // 2, shape) for _ in range(2))
        low, high = words
        return (low + (high << WORD // 2)).astype(np.int32)
    wild = random.choice([-1, -2, count, INT32.min, INT32.max], shape)
    found: NDArray[np.int32] = np.where(random.random_sample(shape) < 0.2, wild, random.randint(0, count + 1, shape)).astype(np.int32)
    return found
