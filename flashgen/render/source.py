"""A Program becomes a Source: one self-contained CUDA file, always the same text for the same plan."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from flashgen.expr.tiles.cuda import RangeText
from flashgen.plan.backward_kernel import Backward
from flashgen.plan.look import Look
from flashgen.plan.program import Program
from flashgen.render.describe import describe
from flashgen.render.environment import aligned, environment
from flashgen.render.snippets import KINDS, used

if TYPE_CHECKING:
    from flashgen.plan.alone import Alone


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
    looking = next((kernel.mask for kernel in program.kernels if isinstance(kernel, Look)), program.holes)
    context = {"program": program, "holes": program.holes, "looking": looking, "digest": program.digest}
    if program.attentions:
        context["keys"] = _some(program.attention.ranges.cuda())
    if isinstance(program.main, Backward):
        context["rows"] = _some(program.main.ranges.cuda())
    return Source(
        name=program.spec.name,
        text=_text(program.skeleton, context),
        arch=program.arch.name,
        entries=tuple(kernel.entry for kernel in program.kernels),
        options=OPTIONS,
    )


def render_alone(plan: "Alone") -> Source:
    """The CUDA of a kernel that belongs to no program."""
    return Source(name=plan.entry, text=_text(plan.entry, {"plan": plan}), arch=plan.arch, entries=(plan.entry,), options=OPTIONS)


def _text(skeleton: str, context: Mapping[str, Any]) -> str:
    """The text of a skeleton, with the functions that it calls."""
    env = environment()
    env.filters["description"] = describe
    template, places = env.get_template(f"kernels/{skeleton}.cu.j2"), {kind: _place(kind) for kind in KINDS}
    text = template.render(context, version=_version(), vocabulary=places)
    for kind, functions in used(text).items():
        text = text.replace(_place(kind), functions)
    return _tidy(text)


def _some(ranges: RangeText) -> RangeText:
    """The ranges of tiles; a mask that hides everything has one, empty."""
    return ranges if ranges.loops else replace(ranges, loops=(("0", "0", False),))


def _place(kind: str) -> str:
    """Stands for the functions that a text calls until the text is there."""
    return f"\0{kind}\0"


def _tidy(text: str) -> str:
    """No trailing blanks, never two blank lines in a row, comments in their column."""
    lines: list[str] = []
    for line in (raw.rstrip() for raw in aligned(text).splitlines()):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).rstrip("\n") + "\n"


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes as long to import as a third of this package

    try:
        return version("flashgen")
    except PackageNotFoundError:
        return "0.1.0"
