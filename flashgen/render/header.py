"""The launch contract of a compiled kernel as a C header, for hosts that are not Python."""

from collections.abc import Iterator
from dataclasses import dataclass

from flashgen.dtypes import float32_text
from flashgen.plan.geometry import extent_text
from flashgen.plan.kernel import Kernel
from flashgen.plan.program import Argument, Program
from flashgen.render.describe import describe
from flashgen.render.environment import aligned, environment
from flashgen.render.source import Source
from flashgen.spec import Param
from flashgen.spec.words import gradient

_SIZES = {
    "batch": "sequences, B",
    "q_len": "queries of a sequence, Sq",
    "kv_len": "keys of a sequence, Sk",
    "heads": "query heads, Hq",
}
_TOTALS = {"q_len": "queries of all sequences, total_q", "kv_len": "keys of all sequences, total_k"}  # where they lie one behind the other
_SCALARS = {**_SIZES, "group": "query heads a key/value head", "shares": "of the key tiles of a query tile, at most"}
_BROUGHT = {
    "counter": "three ints, 0 before the first launch; launches that may run at once have each their own",
    "halves": "int32 [multiprocessors]: the half of the L2, 0 or 1, near each; all 0 where they are not known",
}
ROLES = {x: "dout" if x == "do" else x for x in ("q", "k", "v", "o", "o_raw", "do", "dq", "dk", "dv")}  # as C calls them
_OF_KEYS = ("k", "v", "dk", "dv")


@dataclass(frozen=True)
class Member:
    """A member of a struct: its declaration in C, and what it holds."""

    text: str
    meaning: str


def header(program: Program, source: Source, part: str = "kernel") -> str:
    """kernel.h: constants of the launch, the struct that the kernel takes by value, and the functions of kernel.c, which fill it in.

    `part`: what the cubin is called, and in the names of all but the kernel itself.

    >>> program = plan(load("specs/causal.yaml"), "sm_90a")
    >>> header(program, render(program)).splitlines()[-1]
    '#endif'
    """
    text = (
        environment()
        .get_template("launch/kernel.h.j2")
        .render(
            program=program,
            source=source,
            banner=source.text.partition("\n")[0],
            arrays=dict(describe(program))["arrays"],
            grids=[_grid(kernel) for kernel in program.kernels],
            members=[_member(program, argument, c_name(program, part)) for argument in program.arguments],
            given=list(_given(program, c_name(program, part))),
            ranks=sorted({argument.rank for argument in program.arguments if argument.kind in ("array", "sums")}),
            name=c_name(program, part),
            part=part,
        )
    )
    return aligned(text)


def c_name(program: Program, part: str) -> str:
    """The name that begins all names in C."""
    return "_".join([program.spec.name, *([] if part == "kernel" else [part]), program.arch.name])


def _grid(kernel: Kernel) -> str:
    pieces = " * ".join(map(extent_text, kernel.grid.blocks))
    if not kernel.grid.resident:
        return f"{pieces} blocks"
    return f"the lesser of {pieces} and {kernel.grid.resident} x the multiprocessors of the device"


def _given(program: Program, name: str) -> Iterator[Member]:
    """The members of a call: the sizes, arrays, and values from which the struct of the kernel is filled in."""
    comments = {argument.of: argument.comment for argument in program.arguments if argument.comment}
    packed, sizes = program.spec.geometry.packed, _sizes(program)
    for size in ("batch", "q_len", "kv_len", "heads"):
        yield Member(f"int {size}", comments.get(size, sizes[size]))
    yield Member("int kv_heads", "key/value heads, Hk, which divide Hq")
    for role in dict.fromkeys(argument.of for argument in program.arguments if argument.of in ROLES):
        axes = "kv_len, kv_heads" if role in _OF_KEYS else "q_len, heads"
        whole = f"pages, {program.spec.page}, kv_heads" if program.spec.page and role in _OF_KEYS else axes if packed else f"batch, {axes}"
        yield Member(f"struct {name}_array {ROLES[role]}", f"{role} [{whole}, D]")
    if program.scratch:
        yield Member("CUdeviceptr scratch", f"{name}_scratch_bytes(call) bytes, aligned to 256, for the kernels of this call alone")
    own = {*ROLES, *_SCALARS, "section", *(s.name for s in program.scratch)}
    for argument in (a for a in program.arguments if a.of not in own):
        given = _member(program, argument, name)
        yield Member(given.text, _BROUGHT.get(argument.of, given.meaning))


def _member(program: Program, argument: Argument, name: str) -> Member:
    match argument.kind:
        case "tensor_map":
            columns, rows = argument.box
            swizzle = f"CU_TENSOR_MAP_SWIZZLE_{columns * program.dtype.bytes}B"
            outermost = "page" if program.spec.page and argument.of in ("k", "v") else "batch"
            dimensions = f"dimensions column, row, head, {outermost}; box {columns}, {rows}, 1, 1"
            if argument.grouped:
                dimensions = f"dimensions column, head, row, {outermost}; box {columns}, group, {rows} / group, 1"
            return Member(f"CUtensorMap {argument.name}", f"of {argument.of}: {dimensions}; {swizzle}; zero outside")
        case "pointer":
            return Member(f"CUdeviceptr {argument.name}", _pointer(program, argument))
        case "strides":
            return Member(f"struct {name}_strides {argument.name}", f"of {argument.of}")
        case "array" | "sums":
            tensor = next(t for t in program.spec.arrays if argument.of in (t.argument, gradient(t.name)))
            what = tensor.name if argument.kind == "array" else f"the gradient of {tensor.name}, added to"
            text = f"struct {name}_tensor_{argument.rank} {argument.name}"
            return Member(text, f"{what}, {tensor.dtype} [{', '.join(map(str, tensor.shape))}]")
        case "extent":
            return Member(f"{argument.cuda} {argument.name}", argument.comment)
        case "scalar":
            return Member(f"{argument.cuda} {argument.name}", argument.comment or _scalar(program, argument))


def _pointer(program: Program, argument: Argument) -> str:
    """The comment of a pointer: what it points to, and for memory that kernels hand to each other, how much the host gives."""
    own = [f"memory of your own, {s.dtype} [{', '.join(map(extent_text, s.shape))}]" for s in program.scratch if s.name == argument.of]
    told = [*own, argument.comment] if argument.comment else own
    return ": ".join(told) or f"the first element of {argument.of}"


def _scalar(program: Program, argument: Argument) -> str:
    spec = program.spec
    if argument.of == "softmax_scale":
        return f"factor of q.k: {spec.scale or f'1/sqrt({spec.head_dim.qk})'}"
    return (_SCALARS | _sizes(program) | {p.argument: _param(p) for p in spec.params})[argument.of]


def _sizes(program: Program) -> dict[str, str]:
    """The meaning of each size of a call."""
    return _SIZES | (_TOTALS if program.spec.geometry.packed else {})


def _param(param: Param) -> str:
    """A param and what a call may give for it."""
    bounds = [f", at {word} {_text(bound)}" for word, bound in (("least", param.min), ("most", param.max)) if bound is not None]
    return f"{param.name}, {_text(param.default)} by default{''.join(bounds)}"


def _text(number: int | float) -> str:
    return str(number) if isinstance(number, int) else float32_text(number)
