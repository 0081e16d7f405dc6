"""The passes that take an expression of the language to what a kernel computes, by name and in order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from flashgen.expr.holes.bind import Binder, varies
from flashgen.expr.holes.division import divide_rows
from flashgen.expr.holes.hoist import Hoist
from flashgen.expr.holes.saturate import saturated
from flashgen.expr.language.nodes import Node
from flashgen.expr.tiles.conditions import visible

Kind = Literal["score", "mask", "sink", "weight", "output", "begin"]


@dataclass(frozen=True)
class Kernel:
    """The kernel as a pass knows it: its names and operations, and the members that it has by now."""

    binder: Binder
    hoist: Hoist


@dataclass(frozen=True)
class Pass:
    """A step from node to node, for some kinds of expressions."""

    name: str
    run: Callable[[Node, Kernel], Node]
    kinds: tuple[Kind, ...] = ("score", "mask", "sink", "weight", "output", "begin")


PASSES = (
    Pass("solve", lambda node, kernel: visible(node, kernel.binder.known), ("mask",)),  # conditions for kv_idx, and the end of the keys
    Pass("saturate", lambda node, kernel: saturated(node, kernel.binder.known)),  # bounds and indices, where 32 bits might not hold them
    Pass("bind", lambda node, kernel: kernel.binder(node)),  # names and operations of the language to those of the kernel
    Pass("divide", lambda node, kernel: divide_rows(node, kernel.binder.signs, kernel.hoist.integers)),  # divisions to the rows
    Pass("gather", lambda node, kernel: kernel.hoist.tidy(node, varies), ("mask",)),  # sums, with what varies on one side
)
# What is left is separated (score.py), hoisted to where it varies (hoist.py), widened there (widths.py), and printed (cuda.py).


def passed(node: Node, kind: Kind, kernel: Kernel) -> Node:
    """An expression after all its passes."""
    for step in PASSES:
        if kind in step.kinds:
            node = step.run(node, kernel)
    return node
