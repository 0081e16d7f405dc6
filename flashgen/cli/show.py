"""`flashgen show`: one stage of a spec on its way to machine code."""

import io
import json
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.syntax import Syntax
from ruamel.yaml import YAML

from flashgen.arch import by_name
from flashgen.cli.build import kernel_plan
from flashgen.expr import lower
from flashgen.expr import show as as_text
from flashgen.plan import Program
from flashgen.render import render
from flashgen.runtime import machine_code, nvrtc
from flashgen.runtime.tuned import planned
from flashgen.spec import Spec

_LANGUAGES = {"spec": "yaml", "expr": "cuda", "plan": "json", "source": "cuda", "ptx": "text", "sass": "text"}


def show(spec: Spec, stage: str, arch: str) -> None:
    """Prints a stage of what a call runs here, tuned or not, in colour on a terminal. Raises PlanError, CompileError, BackendError."""
    text = text_of(spec, stage, arch)
    if sys.stdout.isatty():
        Console().print(Syntax(text, _LANGUAGES[stage], background_color="default", word_wrap=True))
    else:
        sys.stdout.write(text)


def text_of(spec: Spec, stage: str, arch: str) -> str:
    """The text of a stage: spec, expr, plan, source, ptx or sass."""
    match stage:
        case "spec":
            return _yaml(spec)
        case "expr":
            return "\n".join(_expressions(spec, planned(spec, by_name(arch)))) + "\n"
        case "plan":
            return json.dumps(planned(spec, by_name(arch)).to_json(), indent=2) + "\n"
    source = render(kernel_plan(spec, arch))
    match stage:
        case "ptx":
            return nvrtc.to_ptx(source)
        case "sass":
            return machine_code.disassemble(nvrtc.compile(source))
    return source.text


def _yaml(spec: Spec) -> str:
    out = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.dump(spec.to_json(), out)
    return out.getvalue()


def _expressions(spec: Spec, chosen: Program) -> Iterator[str]:
    """The expressions as they were read, and the text that fills each hole of a skeleton."""
    read, holes = lower(spec), chosen.holes
    yield from (f"// {name}: {as_text(node)}" for name, node in read.parts.items())
    for title, members in (("once a query tile", holes.uniform), ("once a row and key tile", holes.row)):
        yield f"\n// {title}"
        yield from (f"const {m.type.removeprefix('const ')} {m.name} = {m.value};" for m in members)
    yield "\n// score, in units of `factor` log2, from the raw product s"
    yield from holes.score.body.lines if holes.score.body else ("return s;",)
    yield f"// factor: {holes.score.factor}"
    yield "\n// whether row and column see each other"
    yield from holes.mask.body.lines
    if holes.output:
        yield "\n// o as it is written"
        yield from (f"const {m.type} row.{m.name} = {m.value};" for m in holes.output.row)
        yield from holes.output.body.lines
    keys = chosen.attention.ranges.cuda()
    yield "\n// key tiles of a query tile"
    yield from keys.lines
    yield from (f"[{begin}, {end}){' masked' if masked else ''}" for begin, end, masked in keys.loops)
