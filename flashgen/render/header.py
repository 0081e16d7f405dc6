"""The launch contract of a compiled kernel as a C header, for hosts that are not Python."""

from dataclasses import dataclass

from flashgen.dtypes import float32_text
from flashgen.plan.geometry import extent_text
from flashgen.plan.kernel import Kernel
from flashgen.plan.program import Argument, Program
from flashgen.render.describe import describe
from flashgen.render.environment import environment
from flashgen.render.source import Source
from flashgen.spec import Param
from flashgen.spec.words import gradient

_SCALARS = {
    "q_len": "queries of a sequence, Sq",
    "kv_len": "keys of a sequence, Sk",
    "heads": "query heads, Hq",
    "batch": "sequences, B",
    "group": "query heads a key/value head",
    "shares": "of the key tiles of a query tile, at most",
}


@dataclass(frozen=True)
class Member:
    """A member of the struct: its declaration in C, and what it holds."""

    text: str
    meaning: str


def header(program: Program, source: Source, part: str = "kernel") -> str:
    """kernel.h: constants of the launch, and the struct that the kernel takes by value, member by member. `part`: what the cubin is called,
    and in the names of all but the kernel itself.

    >>> plan = flashgen.plan.plan(load("specs/causal.yaml"), "sm_90a")
    >>> header(program, render(program)).splitlines()[-1]
    '#endif'
    """
    members = [_member(program, argument) for argument in program.arguments]
    banner, arrays = source.text.partition("\n")[0], dict(describe(program))["arrays"]
    template = environment().get_template("kernel.h.j2")
    grids = [_grid(kernel) for kernel in program.kernels]
    name = "_".join([program.spec.name, *([] if part == "kernel" else [part]), program.arch.name])
    return template.render(program=program, source=source, banner=banner, arrays=arrays, grids=grids, members=members, name=name, part=part)


def _grid(kernel: Kernel) -> str:
    pieces = " * ".join(map(extent_text, kernel.grid.blocks))
    if not kernel.grid.resident:
        return f"{pieces} blocks"
    return f"the lesser of {pieces} and {kernel.grid.resident} x the multiprocessors of the device"


def _member(program: Program, argument: Argument) -> Member:
    match argument.kind:
        case "tensor_map":
            columns, rows = argument.box
            swizzle = f"CU_TENSOR_MAP_SWIZZLE_{columns * program.dtype.bytes}B"
            text = f"CUtensorMap {argument.name}"
            return Member(
                text, f"of {argument.of}: dimensions column, row, head, batch; box {columns}, {rows}, 1, 1; {swizzle}; zero outside"
            )
        case "pointer":
            return Member(f"CUdeviceptr {argument.name}", _pointer(program, argument))
        case "strides":
            return Member(f"struct {{ long long batch, head, row, column; }} {argument.name}", f"of {argument.of}, in elements")
        case "array" | "sums":
            tensor = next(t for t in program.spec.arrays if argument.of in (t.argument, gradient(t.name)))
            text = f"struct {{ CUdeviceptr data; long long strides[{len(tensor.shape)}]; }} {argument.name}"
            what = tensor.name if argument.kind == "array" else f"the gradient of {tensor.name}, added to"
            return Member(text, f"{what}, {tensor.dtype} [{', '.join(map(str, tensor.shape))}]; strides in elements")
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
    return (_SCALARS | {p.argument: _param(p) for p in spec.params})[argument.of]


def _param(param: Param) -> str:
    """A param and what a call may give for it."""
    bounds = [f", at {word} {_text(bound)}" for word, bound in (("least", param.min), ("most", param.max)) if bound is not None]
    return f"{param.name}, {_text(param.default)} by default{''.join(bounds)}"


def _text(number: int | float) -> str:
    return str(number) if isinstance(number, int) else float32_text(number)
