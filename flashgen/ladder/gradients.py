"""The last chapter: the gradients derived, and the memory that they take beside o, lse and their own arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.dtypes import by_name
from flashgen.errors import PlanError
from flashgen.ladder.climb import Shape
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import shape as shape_of
from flashgen.spec import Spec


@dataclass(frozen=True)
class Memory:
    """Bytes besides q, k, v, o, lse and the gradients of q, k, v and o."""

    length: int  # of queries, and of keys
    standard: int  # of array operations: p, which the forward keeps, and ds, both in the dtype of q
    tiled: int  # of the kernels: what they hand to each other


def memory(longest: Shape, lengths: Sequence[int], arch: str) -> list[Memory]:
    """The memory of both at each length; none where the kernels have no backward of this head dim and dtype."""
    spec = Spec(head_dim=longest.head_dim, dtype=longest.dtype, backward=True)
    try:
        program = plan_backward(spec, arch)
    except PlanError:
        return []
    found = []
    for length in lengths:
        sizes = replace(longest, length=length).sizes
        scratch = sum(math.prod(shape_of(each, sizes)) * by_name(each.dtype).bytes for each in program.scratch)
        pairs = sizes.batch * sizes.heads * length * length
        found.append(Memory(length, standard=2 * pairs * spec.element.bytes, tiled=scratch))
    return found
