"""The kernels around a backward whose gradients of tensors and params are summed in integers: one clears the sums, one rounds them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flashgen.errors import CallError, PlanError
from flashgen.expr.meaning.summed import exact_sums, own_places, places
from flashgen.plan.elements import Elements
from flashgen.plan.geometry import Sizes
from flashgen.plan.kernel import Grid, Kernel
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec, axes
from flashgen.spec.words import count, exact

DIGITS = 12  # of 24 bits each: of float32 from its least bit, 2^-149, to its largest, 2^127
WORDS = DIGITS + 1  # of a sum: its digits, and what was added that is not finite
CARRIES = 63 - 24  # bits of a word that a digit leaves to what it carries: so many doublings of numbers are added before one may overflow
THREADS, BLOCKS = 256, 256


@dataclass(frozen=True)
class Asked:
    """The names of what has gradients that are summed in integers."""

    tensors: tuple[str, ...]
    params: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OfSums(Kernel):
    """A kernel that goes over all sums."""

    asked: Asked


def check(spec: Spec) -> None:
    """Raises PlanError for a gradient whose sums would take as much memory as scores do."""
    for name in exact_sums(spec):
        shape = next((tensor.shape for tensor in spec.tensors if tensor.name == name), ())
        words = [word for axis in shape for word in axes.names(axis)]
        if {"q_len", "kv_len"} <= {*words}:
            what = f"deterministic: true: the gradient of {name} would have a sum of {8 * WORDS} bytes for each of q_len x kv_len elements"
            raise PlanError(f"{what}; read it in one place, at [.., q_idx, kv_idx], where elements need none, or leave its grad out")


def with_exact_sums(spec: Spec, parts: Parts) -> Parts:
    """The kernels of a backward between one that makes sums zeros and one that rounds them, if there are any."""
    names = exact_sums(spec)
    if not names or not parts.arguments:
        return parts
    tensors = tuple(tensor.name for tensor in spec.tensors if tensor.name in names)
    asked = Asked(tensors, tuple(name for name in names if name not in tensors))
    words = (Argument(exact(name), "u64*", "pointer", exact(name), comment=f"words of the sums of {name}'s gradient") for name in names)
    counts = (Argument(count(name), "int", "scalar", count(name), comment=f"elements of {name}") for name in tensors)
    scratch = tuple(Scratch(exact(name), "int64", (WORDS, Elements(name) if name in tensors else 1)) for name in names)
    clear, finish = (OfSums(entry, Grid(THREADS, (BLOCKS,)), asked=asked) for entry in ("clear_sums", "round_sums"))
    return parts.preceded(Parts((clear,), ())).followed(Parts((finish,), (*words, *counts), scratch))


def reasons(spec: Spec) -> Iterator[tuple[str, str]]:
    """The reasons why gradients of tensors and params are the same bits in every run, and their cost, for people."""
    if names := exact_sums(spec):
        how = f"{DIGITS} integers of 64 bits, each a digit of 24 bits with room for carries; so any order gives the same bits"
        yield "gradients", f"of {', '.join(names)}: each sum is {how}. {8 * WORDS} bytes an element; a kernel after rounds them"
    if own := [name for name in own_places(spec) if spec.deterministic]:
        yield "gradients", f"of {', '.join(own)}: each element gets one number, so there is no order"


def counted(spec: Spec, sizes: Sizes, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
    """The sizes of a call with the elements of each tensor whose gradient is summed exactly. `shapes`: of the call's arrays, by name.

    Raises CallError where a gradient without such sums would get numbers of several heads or sequences in one element, or where a sum may
    get more numbers than its words hold.
    """
    if not spec.deterministic:
        return sizes
    for name, indices in own_places(spec).items():
        _check_own(spec, sizes, name, indices, shapes[name])
    names = exact_sums(spec)
    for name in names:
        if not spec.geometry.packed and (most := _numbers(spec, name, sizes)) > 2**CARRIES:
            what = f"deterministic: true: an element of the gradient of {name} may get {most} numbers, and a sum holds {2**CARRIES}"
            raise CallError(f"{what}. Call with fewer sequences or heads at a time, and add the gradients up")
    return replace(sizes, summed=tuple((name, math.prod(shapes[name])) for name in names if name in shapes))


def _numbers(spec: Spec, name: str, sizes: Sizes) -> int:
    """The numbers that one element may get, at most: one from each pair of a query and a key, or a column, that may read it."""
    pairs = sizes.batch * sizes.heads * sizes.q_len * max(sizes.kv_len, spec.head_dim.v)
    alone = ("b", "h", "q_idx", "kv_idx")  # where these are indices, pairs with others read other elements
    found = [pairs // math.prod(sizes.count(index) for index in {*at} if index in alone) for at in places(spec).get(name) or ((),)]
    return sum(found)


def _check_own(spec: Spec, sizes: Sizes, name: str, indices: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Raises CallError unless each element of a tensor is read once in a call."""
    tensor = next(tensor for tensor in spec.tensors if tensor.name == name)
    joined = spec.geometry.joined(tensor.shape)  # b and the length behind it
    given = dict(zip(indices[:joined] + indices[joined + 1 :] if joined is not None else indices, shape, strict=True))
    heads = given.get("h", given.get("hk", 1))
    batch = sizes.batch if joined is not None else given.get("b", 1)
    whole = [("b", batch, sizes.batch), ("h", heads, sizes.heads), ("q_idx", given["q_idx"], sizes.q_len)]
    for index, has, extent in (*whole, ("kv_idx", given.get("kv_idx", sizes.kv_len), sizes.kv_len)):
        if has != extent:
            what = f"deterministic: true: the gradient of {name} is summed over {index}, in any order"
            what = f"{what}: this call has {extent}, {name} has {has}"
            raise CallError(f"{what}. Give {name} an axis for {index} with all of them, and sum its gradient afterwards")
