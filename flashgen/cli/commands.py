"""The commands and their options. The modules beside this one do the work."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flashgen import arch as arches
from flashgen import store
from flashgen.bench.modes import MODES
from flashgen.cli import bench as benching
from flashgen.cli import bench_html, explain_html
from flashgen.cli import build as building
from flashgen.cli import cache as keeping
from flashgen.cli import check as checking
from flashgen.cli import demo as presenting
from flashgen.cli import doctor as examining
from flashgen.cli import emulate as emulating
from flashgen.cli import explain as explaining
from flashgen.cli import show as showing
from flashgen.cli import specs as listing
from flashgen.cli import tune as tuning
from flashgen.cli.picture import save
from flashgen.cli.tensors import call_of_tensors
from flashgen.runtime import device
from flashgen.spec import json_schema
from flashgen.spec.shipped import find, library, shipped
from flashgen.tune import LENGTHS, cases

app = typer.Typer(
    name="flashgen",
    help="A compiler for attention kernels: a few lines of YAML become one readable CUDA file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SpecName = Annotated[str, typer.Argument(metavar="SPEC", help="path of a YAML spec, or the name of a shipped one, as causal")]
_ARCH_HELP = f"{', '.join(arches.ARCHES)}; by default that of the GPU here, else {arches.DEFAULT}"
ArchName = Annotated[str | None, typer.Option("--arch", metavar="ARCH", help=_ARCH_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]


class BenchMode(StrEnum):
    """The modes that `bench` measures: a row of MODES each."""

    forward = "forward"
    decode = "decode"
    packed = "packed"
    backward = "backward"


class Stage(StrEnum):
    """A stage of a spec that `show` prints."""

    spec = "spec"
    expr = "expr"
    plan = "plan"
    source = "source"
    ptx = "ptx"
    sass = "sass"


@app.command()
def build(
    spec: SpecName,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="where <name>/<arch>/ is written")],
    arch: Annotated[list[str] | None, typer.Option("--arch", metavar="ARCH", help=f"may be repeated: {_ARCH_HELP}")] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a spec to kernel.cu, kernel.cubin, plan.json, and kernel.h and kernel.c, which launch it from C. Needs no GPU."""
    found = find(spec)
    built = building.build(found, list(dict.fromkeys(arch or [_here()])), out)
    if as_json:
        _print_json([made.to_json() for made in built])
    else:
        building.report(built)


@app.command()
def explain(
    spec: SpecName,
    arch: ArchName = None,
    as_json: AsJson = False,
    q_len: Annotated[int, typer.Option(min=1, help="queries, for the tiles and the work")] = 4096,
    kv_len: Annotated[int | None, typer.Option(min=1, help="keys; by default as many as queries")] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="a param, b, h, hk, or a tensor (all its elements)")
    ] = None,
    tensor: Annotated[list[str] | None, typer.Option("--tensor", metavar="NAME=FILE.npy", help="a tensor, or lists of blocks")] = None,
    tiles: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="save the tiles, [query tiles, key tiles]: 0 not loaded, 1 mask tested, 2 not")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="save the picture of the mask")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="save all of it as a page, with the kernel's text beside its plan")
    ] = None,
) -> None:
    """Show the plan and its reasons, what was rejected, the work, the memory map and the mask."""
    explanation = explaining.explain(find(spec), arch or _here(), q_len, kv_len or q_len, param or [], tensor or [])
    if tiles:
        explaining.save_tiles(explanation, tiles)
    if png:
        save(explanation.program, explanation.work, png)
    if html:
        explain_html.save(explanation, html)
    if as_json:
        _print_json(explanation.to_json())
    else:
        explaining.page(explanation)


@app.command()
def show(
    spec: SpecName,
    stage: Annotated[Stage, typer.Option(help="which stage of the spec")] = Stage.source,
    arch: ArchName = None,
) -> None:
    """Print one stage of a spec on its way to machine code; spec is YAML, plan is JSON."""
    showing.show(find(spec), stage.value, arch or _here())


@app.command()
def check(
    spec: SpecName,
    arch: Annotated[str | None, typer.Option(help="by default that of the GPU, else host, the interpreter")] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="run the emitted kernel on the CPU, under the race checker")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="with --emulate: in how many orders of events")] = 1,
    tensor: Annotated[
        list[str] | None, typer.Option("--tensor", metavar="NAME=FILE.npy", help="a tensor or lists, in place of the spread of shapes")
    ] = None,
    q_len: Annotated[int | None, typer.Option(min=1, help="with --tensor: queries, where no tensor tells")] = None,
    kv_len: Annotated[int | None, typer.Option(min=1, help="with --tensor: keys, where no tensor tells; by default as many")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the kernel over a spread of shapes and compare with the float64 reference; exit code 1 when it is off."""
    found = find(spec)
    given = call_of_tensors(found, tensor, q_len, kv_len) if tensor else None
    report = checking.check(found, arch, emulate, seeds, given)
    if as_json:
        _print_json(report.to_json())
    else:
        checking.table(report)
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def emulate(
    cuda: Annotated[Path, typer.Argument(metavar="KERNEL.cu", help="a self-contained CUDA text, one instruction an asm statement")],
    launch: Annotated[Path, typer.Option("--launch", metavar="FILE", help="its launch in TOML: docs/emulator.md")],
    seeds: Annotated[int, typer.Option(min=1, help="in how many orders of events")] = 8,
    as_json: AsJson = False,
) -> None:
    """Run a hand-written CUDA kernel on the CPU, under the race checker; exit code 1 when a fault is found."""
    said, ran = emulating.emulate(cuda, launch, seeds)
    if as_json:
        _print_json(emulating.to_json(said, ran))
    else:
        emulating.report(said, ran)
    if ran[-1].fault:
        raise typer.Exit(1)


@app.command()
def bench(
    specs: Annotated[list[str] | None, typer.Argument(metavar="[SPEC]...", help="by default the FlashAttention-3 paper's grid")] = None,
    length: Annotated[list[int] | None, typer.Option(min=1, help="queries and keys; may be repeated; by default 512 to 16384")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="may be repeated; by default all that are installed")] = None,
    mode: Annotated[BenchMode, typer.Option(help="; ".join(f"{one.name}: {one.about}" for one in MODES.values()))] = BenchMode.forward,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="where <card>.json and <card>.png are kept")] = Path(),
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="save table and charts as a page")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure flashgen beside the peers that are installed, checked; exit code 1 when flashgen is off somewhere."""
    suite, wanted = benching.cases([find(spec) for spec in specs or []], length or [], mode)
    found, results = benching.bench(suite, [(wanted, benching.chosen(peer or [], mode))], out)
    if html:
        bench_html.save(found, html)
    if as_json:
        _print_json(found)
    else:
        benching.report(found, results)
    if benching.failed(results):
        raise typer.Exit(1)


@app.command()
def tune(
    spec: SpecName,
    length: Annotated[list[int] | None, typer.Option(min=1, help="queries and keys; may be repeated; by default 512 to 8192")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="sequences; by default so many that there are 16k tokens")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="of q; by default so many that hidden size is 2048")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the planner's best candidates on this card and keep the fastest for it; Ctrl-C keeps what is known by then."""
    found = find(spec)
    tunings, complete = tuning.tune(cases(found, length or LENGTHS, batch, heads))
    if as_json:
        _print_json([{"length": one.length, **one.to_json()} for one in tunings])
    else:
        tuning.report(tunings, complete, device.current().name)
    if not complete:
        raise typer.Exit(1)


@app.command()
def ladder(
    seqlen: Annotated[int, typer.Option(min=1, help="queries and keys; the picture also has its halves")] = 4096,
    head_dim: Annotated[int, typer.Option(min=8, max=256, help="columns of q, k and v")] = 64,
    heads: Annotated[int, typer.Option(min=1)] = 16,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16")] = "float16",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="where ladder.html and ladder.png are written")] = Path("ladder"),
    as_json: AsJson = False,
) -> None:
    """Run attention by every schedule, from standard to FlashAttention 3: time, memory, what is counted, a page that tells the story."""
    from flashgen.cli import ladder as climbing  # sympy: as long to import as everything else
    from flashgen.ladder import Shape

    found = climbing.run(Shape(length=seqlen, head_dim=head_dim, heads=heads, batch=batch, dtype=dtype))
    paths = climbing.save(found, out)
    if as_json:
        _print_json(found.to_json())
    else:
        climbing.show(found, paths)


@app.command()
def demo() -> None:
    """Show flashgen at work, in about a minute: a spec, its kernel, the check, the speed; what this machine lacks is left out."""
    if not presenting.show(presenting.demo(arches.by_name(_here()))):
        raise typer.Exit(1)


@app.command()
def specs(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="print this one; by default all are listed")] = None,
    as_json: AsJson = False,
) -> None:
    """List the specs that ship with flashgen, by field, with their papers; or print one."""
    chosen = [shipped(name)] if name else list(library().values())
    if as_json:
        _print_json([one.to_json() for one in chosen])
    elif name:
        typer.echo(chosen[0].text, nl=False)
    else:
        listing.table(chosen)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the spec; NAME.yaml is written")],
    like: Annotated[str, typer.Option(metavar="SHIPPED", help="the shipped spec to start from; `flashgen specs` lists them")] = "causal",
) -> None:
    """Write a spec of your own that starts from a shipped one; never over a file that is there."""
    path = listing.write(name, like)
    typer.echo(f"{path}, begun from {like}. Change it, then: flashgen check {path}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of specs, for editors."""
    _print_json(json_schema())


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what of flashgen works on this machine, and what to install for the rest."""
    findings = examining.examine()
    if as_json:
        _print_json([finding.to_json() for finding in findings])
    else:
        examining.table(findings)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="remove what was compiled; what `tune` found stays")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how many compiled kernels and templates are kept, where, and how large they are."""
    if clear:
        store.clear()
    if as_json:
        _print_json(keeping.to_json(keeping.look()))
    else:
        keeping.table(keeping.look())


def _here() -> str:
    return arches.DEFAULT if device.missing() else device.current().arch.name


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
