"""A Program becomes a Source: one self-contained CUDA file, always the same text for the same plan."""

import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace

from flashgen.expr.tiles.cuda import RangeText
from flashgen.plan.program import Program
from flashgen.render.describe import describe
from flashgen.render.environment import environment
from flashgen.render.snippets import KINDS, used


@dataclass(frozen=True)
class Source:
    """Emitted text and how to compile it."""

    name: str  # of the spec
    text: str
    arch: str
    entries: tuple[str, ...]  # its kernels, in the order of a launch
    options: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """Identifies what is compiled and how, the compiler's version apart; the first line, which names spec and plan, is not compiled."""
        compiled = re.sub(r"\A// flashgen .*", "", self.text)
        return hashlib.sha256("\0".join((compiled, self.arch, *self.options)).encode()).hexdigest()


# Stated one by one, so that no default of a compiler changes a result.
OPTIONS = ("--std=c++17", "--fmad=true", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


def render(program: Program) -> Source:
    """The CUDA of a plan.

    >>> source = render(plan(load("specs/causal.yaml"), "sm_90a"))
    >>> source.entries
    ('forward',)
    """
    env = environment()
    context = {"plan": view(program), "holes": program.holes, "keys": _keys(program), "digest": program.digest, "version": _version()}
    env.filters["description"] = describe
    text = env.get_template(f"kernels/{program.skeleton}.cu.j2").render(context, vocabulary={kind: _place(kind) for kind in KINDS})
    for kind, functions in used(text).items():
        text = text.replace(_place(kind), functions)
    return Source(
        name=program.spec.name,
        text=_tidy(text),
        arch=program.arch.name,
        entries=tuple(kernel.entry for kernel in program.kernels),
        options=OPTIONS,
    )


def view(program: Program) -> SimpleNamespace:
    """The names by which templates know a program and its attention."""
    kernel = program.attention
    regions = tuple(region for one in program.attentions for region in one.smem.regions)
    pipeline = SimpleNamespace(**(vars(kernel.workers) | vars(kernel.pipeline) | vars(kernel.dealing)))
    pipeline.warpgroups, pipeline.load_warpgroups = kernel.workers.warpgroups, kernel.workers.load_warpgroups
    pipeline.splitting, pipeline.key_tiles = kernel.pipeline.splitting, kernel.dealing.key_tiles
    launch = SimpleNamespace(dealt=kernel.dealing.counter, longest_first=kernel.dealing.longest_first)
    launch.kernels = [SimpleNamespace(entry=one.entry, **(vars(one.grid) | {"shared_bytes": one.smem.bytes})) for one in program.kernels]
    launch.kernel = {one.entry: one for one in launch.kernels}
    launch.arguments, launch.scratch = program.arguments, program.scratch
    found = SimpleNamespace(
        tile=kernel.tile, pipeline=pipeline, smem=SimpleNamespace(regions=regions, region={r.symbol: r for r in regions}), launch=launch
    )
    found.ranges, found.computed = kernel.ranges, kernel.computed
    found.split = program.planes and SimpleNamespace(planes=program.planes.count, products=program.planes.products)
    for name in (
        "spec",
        "v_dim",
        "arch",
        "dtype",
        "out_dtype",
        "softmax",
        "row_outputs",
        "holes",
        "skeleton",
        "digest",
        "attention",
        "attentions",
        "planes",
    ):
        setattr(found, name, getattr(program, name))
    return found


def _keys(program: Program) -> RangeText:
    """The ranges of keys; a mask that hides every key has one, empty."""
    keys = program.attention.ranges.cuda()
    return keys if keys.loops else replace(keys, loops=(("0", "0", False),))


def _place(kind: str) -> str:
    """Stands for the functions that a text calls until the text is there."""
    return f"\0{kind}\0"


def _tidy(text: str) -> str:
    """No trailing blanks, never two blank lines in a row."""
    lines: list[str] = []
    for line in (raw.rstrip() for raw in text.splitlines()):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).rstrip("\n") + "\n"


def _version() -> str:
    try:
        return version("flashgen")
    except PackageNotFoundError:
        return "0.1.0"
