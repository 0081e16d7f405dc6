"""Kernels that belong to no program, and the Params of their launches."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashgen.plan.appending import AppendPlan
from flashgen.plan.merging import MergePlan
from flashgen.plan.params import record_dtype

Alone = AppendPlan | MergePlan


def record(
    plan: Alone, addresses: Mapping[str, int], strides: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int]
) -> np.ndarray[Any, Any]:
    """The Params of a launch. `strides`: of arrays as [B, S, H, D], in elements."""
    found = np.zeros((), record_dtype(plan.arguments))
    for argument in plan.arguments:
        if argument.kind == "strides":
            batch, row, head, column = strides[argument.of]
            found[argument.name] = (batch, head, row, column)
        else:
            found[argument.name] = (scalars if argument.kind == "scalar" else addresses)[argument.of]
    return found
