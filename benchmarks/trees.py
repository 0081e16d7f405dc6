"""Source trees of flashgen beside each other on one card, in one process and in turns: what a change does to speed.

    git worktree add ../before main
    python benchmarks/trees.py ../before . --case causal/256/512 --case document/64/8192

A case is a variant of `flashgen.bench.VARIANTS`, a head dim, a length, and a dtype if it is not bfloat16. Prints microseconds, all checked.
"""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from flashgen.bench.cases import VARIANTS, Case, case, draw
from flashgen.bench.peers import Implementation, Prepared, Tensors
from flashgen.bench.run import run
from flashgen.runtime import arrays
from flashgen.runtime.clock import DeviceClock
from flashgen.spec import Spec


class Tree:
    """A source tree: its flashgen takes the place of this one while it is active."""

    def __init__(self, root: Path):
        self.root, self._modules = root.resolve(), dict[str, ModuleType]()

    @contextlib.contextmanager
    def active(self) -> Iterator[ModuleType]:
        """Gives the tree's package. What it imports later, as in a first call, it finds only in here."""
        ours = _taken()
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.root))
        try:
            package = importlib.import_module("flashgen")
            assert self.root in Path(str(package.__file__)).parents, package.__file__
            yield package
        finally:
            sys.path.remove(str(self.root))
            self._modules = _taken()
            sys.modules.update(ours)

    def prepare(self, wanted: Case, tensors: Tensors) -> Prepared:
        """A call through the tree, made once on other arrays of the same shapes."""
        first, said = draw(wanted, arrays.cupy()), wanted.spec.to_json() | {"outputs": ["o"]}
        with self.active() as package:
            attn = package.compile(said)
            attn(*(first[name] for name in "qkv"), **tensors)
        return Prepared(lambda q, k, v: attn(q, k, v, **tensors))


def _taken() -> dict[str, ModuleType]:
    """The modules of flashgen that are imported, which are not any more."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "flashgen"}


def parsed(text: str) -> Case:
    """A case by its words.

    >>> parsed("causal/64/512/float16").batch
    32
    """
    variant, head_dim, length, *dtype = text.split("/")
    said: dict[str, Any] = {"head_dim": int(head_dim), "dtype": dtype[0] if dtype else "bfloat16", "name": variant}
    return case(Spec(**said, **VARIANTS[variant]), int(length))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--case", action="append", type=parsed, required=True, dest="cases")
    given = parser.parse_args()
    contenders = [Implementation(str(root), "flashgen", Tree(root).prepare) for root in given.trees]
    clock = DeviceClock()
    for wanted in given.cases:
        found = run([wanted], contenders, clock, arrays.cupy())
        times = [f"{one.implementation} {1e3 * one.ms:.1f}" for one in found.measured]
        print(
            f"{wanted.name}: {', '.join(times)}", *(f"  {one.implementation}: {one.reason}" for one in found.skipped), sep="\n", flush=True
        )


if __name__ == "__main__":
    main()
