"""A Program becomes a Source: one self-contained CUDA file, always the same text for the same plan."""

import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version

from flashgen.expr.tiles.cuda import RangeText
from flashgen.plan.kernel import Backward
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
    context = {"program": program, "holes": program.holes, "digest": program.digest, "version": _version()}
    if program.attentions:
        context["keys"] = _some(program.attention.ranges.cuda())
    if isinstance(program.main, Backward):
        context["rows"] = _some(program.main.ranges.cuda())
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


def _some(ranges: RangeText) -> RangeText:
    """The ranges of tiles; a mask that hides everything has one, empty."""
    return ranges if ranges.loops else replace(ranges, loops=(("0", "0", False),))


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
