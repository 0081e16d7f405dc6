"""The launcher of a compiled kernel as a C file, for hosts that are not Python: it fills in the struct of the header, and launches."""

from collections.abc import Iterator
from dataclasses import dataclass

from flashgen.dtypes import by_name
from flashgen.plan.elements import Elements
from flashgen.plan.embed import Unembed
from flashgen.plan.geometry import MORE_SHARES, SHARE_COST, least_tiles
from flashgen.plan.kernel import Extent, Grid, Merging, SharePlan
from flashgen.plan.kernels.arguments import OF_KEYS
from flashgen.plan.program import Argument, Program
from flashgen.plan.sections import Sections, sections
from flashgen.plan.sum_places import SumPlaces
from flashgen.render.environment import environment
from flashgen.render.header import ROLES, c_name
from flashgen.render.source import Source
from flashgen.spec.words import count as counted

_OF_VALUES = ("v", "o", "o_raw", "do", "raw_do", "rounded_do", "dv")  # arrays with the columns of v
# Of an array of keys, where there is no key: nothing is read through its map.
_STAND_INS = {"k": "q", "v": "q", "dk": "dq", "dv": "dq", "embedded_k": "q", "embedded_dk": "dq"}


@dataclass(frozen=True, kw_only=True)
class Map:
    """The tensor map that a member of Params is: of which array, with which shape, both in C."""

    array: str
    stand_in: str  # the array in its place where there are no keys; empty: there is always something
    shape: str  # batch, rows, heads, columns
    element: str  # of the driver's names
    box: tuple[int, int]  # columns, rows
    grouped: bool


@dataclass(frozen=True)
class Fill:
    """A member of Params, and what it is in C: a value, or a tensor map."""

    name: str
    value: str = ""
    map: Map | None = None


@dataclass(frozen=True)
class Piece:
    """An array of the memory that kernels hand to each other."""

    name: str
    bytes: str  # in C


def launcher(program: Program, source: Source, part: str = "kernel") -> str:
    """kernel.c: the functions that `kernel.h` declares. Plain C over the CUDA driver API. `part`: as of `header`.

    >>> plan = flashgen.plan.plan(load("specs/causal.yaml"), "sm_90a")
    >>> "cuTensorMapEncodeTiled" in launcher(plan, render(plan))
    True
    """
    counts = [counted(size.of) for s in program.scratch for size in s.shape if isinstance(size, Elements)]
    return (
        environment()
        .get_template("launch/kernel.c.j2")
        .render(
            program=program,
            banner=source.text.partition("\n")[0],
            name=c_name(program, part),
            part=part,
            fills=[_fill(program, argument) for argument in program.arguments],
            pieces=[Piece(_identifier(s.name), f"{_product(s.shape)} * {by_name(s.dtype).bytes}") for s in program.scratch],
            blocks=[_blocks(kernel.grid) for kernel in program.kernels],
            counts=counts,
            told=[_listed(program), *(f"call->{name}" for name in counts)],
            embedded=[*_embedded(program)],
            counting="states" if program.work_list else "shares",
            shared=_shared(program.shares),
            section=_section(program),
        )
    )


def _listed(program: Program) -> str:
    """The keys of a list at most, in C."""
    blocks, lists = program.spec.blocks, program.spec.lists
    if blocks and lists and lists.name in program.spec.sizing:
        return f"(long long)call->{lists.argument}_length * {blocks.n}"
    return "call->kv_len"


def _fill(program: Program, argument: Argument) -> Fill:
    """The member of Params that an argument is."""
    if argument.kind == "tensor_map":
        return Fill(argument.name, map=_map(program, argument))
    return Fill(argument.name, _value(program, argument))


def _value(program: Program, argument: Argument) -> str:
    """The value of a member of Params."""
    of = argument.of
    match argument.kind:
        case "pointer" if of in ROLES:
            return f"call->{ROLES[of]}.data"
        case "pointer" if any(s.name == of for s in program.scratch):
            return f"call->scratch + pieces.{_identifier(of)}"
        case "pointer":
            return f"call->{of}"
        case "strides":
            return f"{_array(of)}.strides"
        case "array" | "sums" | "extent":
            return f"call->{argument.name}"
    values = {"section": "section(n)", "group": "(int)n.group", "shares": _extent(program.shares)}
    return f"(int)n.{of}" if of in ("q_len", "kv_len", "heads", "batch") else values.get(of, f"call->{of}")


def _map(program: Program, argument: Argument) -> Map:
    of, head_dim = argument.of, program.spec.head_dim
    paged = bool(program.spec.page) and of in OF_KEYS
    batch = "1" if program.spec.geometry.packed else "n.batch"
    lengths = "most(1, n.kv_len), n.kv_heads" if of in _STAND_INS else "n.q_len, n.heads"
    rows = f"call->pages, {program.spec.page}, n.kv_heads" if paged else f"{batch}, {lengths}"
    return Map(
        array=_array(of),
        stand_in=f"call->{ROLES[_STAND_INS[of]]}" if of in _STAND_INS and not paged else "",
        shape=f"{rows}, {head_dim.v if of in _OF_VALUES else head_dim.qk}",
        element=(program.out_dtype if of in ("o", "o_raw") else program.dtype).name.upper(),
        box=argument.box,
        grouped=argument.grouped,
    )


def _shared(plan: Extent) -> tuple[SharePlan, int, float, int] | None:
    """The numbers by which shares are counted in C; None where there are none to count."""
    if not isinstance(plan, SharePlan) or (plan.count and not plan.own):
        return None
    return plan, MORE_SHARES, SHARE_COST, least_tiles(plan, 1, 1) if plan.own else 0


def _array(of: str) -> str:
    """The array that an argument is of, in C: one of the call, or in its scratch."""
    return f"call->{ROLES[of]}" if of in ROLES else of


def _embedded(program: Program) -> Iterator[tuple[str, str]]:
    """The names of arrays in the scratch that are laid out as q or k, and their strides in C."""
    for kernel in (*program.embedding, *program.unembedding):
        d, heads, length = program.spec.head_dim.qk, "n.heads" if kernel.role == "q" else "n.kv_heads", f"n.{kernel.length}"
        name = f"embedded_d{kernel.role}" if isinstance(kernel, Unembed) else f"embedded_{kernel.role}"
        yield name, f"{length} * {heads} * {d}, {d}, {heads} * {d}, 1"
    for scratch in program.scratch:
        if scratch.name in ("raw_do", "rounded_do"):
            d = program.spec.head_dim.v
            yield scratch.name, f"n.q_len * n.heads * {d}, {d}, n.heads * {d}, 1"


def _section(program: Program) -> tuple[Sections, str, str, str] | None:
    """The numbers of sections, and in C the length of a head, the heads, and those that share keys; None where no kernel has sections."""
    if all(argument.of != "section" for argument in program.arguments):
        return None
    found = sections(program)
    length, heads, group = ("n.q_len * n.group", "n.kv_heads", "1") if found.by_queries else ("n.kv_len", "n.heads", "n.group")
    length = f"ceil_div({length}, most(1, n.batch))" if found.of_average else length
    return found, length, heads if found.of_one else f"{heads} * n.batch", group


def _blocks(grid: Grid) -> str:
    """The blocks of a launch in C."""
    pieces = _product(grid.blocks)
    return f"least({pieces}, {grid.resident}LL * kernels->multiprocessors)" if grid.resident else pieces


def _product(extents: tuple[Extent, ...]) -> str:
    return " * ".join(map(_extent, extents))


def _extent(size: Extent) -> str:
    """An extent in C, of 64 bits.

    >>> _extent(("q_len", 128))
    'ceil_div(n.q_len, 128)'
    """
    match size:
        case int():
            return f"{size}LL"
        case "ends":
            return "(n.batch + 1)"
        case str():
            return f"n.{size}"
        case ("places", rows):
            return f"(n.q_len / {rows} + n.batch)"
        case ("key_places", keys):
            return f"(n.kv_len / {keys} + n.batch)"
        case (word, pieces):
            return f"ceil_div({_extent(word)}, {pieces})"
        case Elements(of):
            return f"n.{counted(of)}"
        case SumPlaces():
            return size.text
        case Merging(shares=plan, warps=warps, ahead=ahead):
            return f"merging(n, {_extent(plan)}, {warps}, {ahead})"
        case SharePlan(count=count, own=False) if count:
            return f"{count}LL"
    return "shares(n)"


def _identifier(name: str) -> str:
    """The name of a scratch as C has it."""
    return name.replace(" ", "_")
