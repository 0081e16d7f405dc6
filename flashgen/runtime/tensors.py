"""Checks the arrays of a call that expressions read: extents that indices, words, expressions and other arrays ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flashgen.errors import CallError
from flashgen.expr.language.nodes import Node
from flashgen.expr.language.reads import indices, over
from flashgen.plan.geometry import Sizes
from flashgen.runtime.arrays import Layout
from flashgen.spec import Spec, Tensor, axes
from flashgen.spec.axes import Axis
from flashgen.spec.tensors import FREE, Lists

_INT32 = 2**31 - 1


def check_tensors(spec: Spec, layouts: Mapping[str, Layout], sizes: Sizes) -> Sizes:
    """The sizes of a call with the names of axes that its arrays bind.

    Raises CallError that names the array, its shape and what it has to be.
    """
    tensors = [(spec.given(tensor), _reads(spec, tensor), layouts[tensor.name].shape) for tensor in spec.tensors]
    sizes = replace(sizes, bound=_bound(tensors))
    for tensor, read, shape in tensors:
        _check_tensor(tensor, read, shape, sizes)
    if spec.lists:
        _check_lists(spec.lists, layouts[spec.lists.name].shape, sizes)
    return sizes


def _reads(spec: Spec, tensor: Tensor) -> list[tuple[Node, ...]]:
    """The indices of each axis of the array that a call gives for a tensor."""
    read = list(indices(spec)[tensor.name])
    if (at := spec.geometry.joined(tensor.shape)) is not None:
        del read[at]
    return read


def _bound(tensors: Sequence[tuple[Tensor, list[tuple[Node, ...]], tuple[int, ...]]]) -> tuple[tuple[str, int], ...]:
    """The names of axes and what arrays bind them to. Raises CallError where two arrays differ, and for more than 32 bits count."""
    found: dict[str, tuple[int, str]] = {}
    names = axes.bound(tensor.shape for tensor, *_ in tensors)
    for tensor, read, shape in tensors:
        if len(shape) != len(tensor.shape):
            continue  # which is told where shapes are
        for axis, n, indices_of_axis in zip(tensor.shape, shape, read, strict=True):
            if n > _INT32 and (axes.named(axis) or axes.computed(axis)):
                raise CallError(
                    f"{tensor.name} has shape {shape_text(shape)}: at most {_INT32} entries along {axis}, which kernels count in 32 bits"
                )
            if not axes.named(axis) or (n == 1 and over(indices_of_axis)):  # which is for all alike
                continue
            before, other = found.setdefault(str(axis), (n, tensor.name))
            if n != before:
                raise CallError(
                    f"{tensor.name} has shape {shape_text(shape)}, {shape_text(tensor.shape)}: {axis} is {n} there, and {before} in {other}"
                )
    return tuple((name, found.get(name, (1, ""))[0]) for name in names)


def _check_tensor(tensor: Tensor, read: Sequence[tuple[Node, ...]], shape: tuple[int, ...], sizes: Sizes) -> None:
    """Checks a tensor's shape: an axis that an index runs over has its extent, or 1; any other is as the spec says."""
    what, wanted = f"{tensor.name} has shape {shape_text(shape)}", sizes.shape(tensor)
    exact = [over(axis) for axis in read]
    if len(shape) == len(wanted):
        for axis, (n, found) in enumerate(zip(shape, exact, strict=True)):
            for index in found:
                if n not in (1, count := sizes.count(index)):
                    why = f"axis {axis} is indexed by {index}, of which there are {count}"
                    raise CallError(f"{what}: {why}; expected {count}, or 1 for all alike. The spec says {shape_text(tensor.shape)}")
    fits = len(shape) == len(wanted) and all(n == m or (n == 1 and found) for n, m, found in zip(shape, wanted, exact, strict=True))
    if empty := [i for i, n in enumerate(shape) if fits and n == 0 and not exact[i] and _is_read(tensor.shape[i], sizes)]:
        why = f"axis {empty[0]}, {tensor.shape[empty[0]]}, has no entry, and an expression reads one"
        raise CallError(f"{what}: {why}: expected 1 or more")
    if not fits:
        told = [axis if axes.named(axis) else n for axis, n in zip(tensor.shape, wanted, strict=True)]
        said = dict.fromkeys((shape_text(tuple(told)), shape_text(tensor.shape)))  # once where they are the same
        raise CallError(f"{what}: expected {', '.join(said)}")


def _is_read(axis: Axis, sizes: Sizes) -> bool:
    """True if a call of these sizes reads an entry along an axis that is no word: there is a row, and if it follows from words, a key."""
    return sizes.batch * sizes.q_len > 0 and (axes.named(axis) or (axes.computed(axis) and sizes.kv_len > 0))


def _check_lists(lists: Lists, shape: tuple[int, ...], sizes: Sizes) -> None:
    """Checks the shape of lists of blocks: b and heads may be 1, for all alike, and a list has place for one number or more."""
    wanted = [axis if axis in FREE else sizes.axis(axis) for axis in lists.shape]
    places = zip(shape, wanted, lists.shape, strict=False)
    fits = [n == m or (n == 1 and axis in ("b", "hq", "hk")) or (n > 0 and m in FREE) for n, m, axis in places]
    if len(shape) != len(wanted) or not all(fits):
        what = f"{lists.name} has shape {shape_text(shape)}: expected {shape_text(tuple(wanted))}, {shape_text(lists.shape)} rounded up"
        free = [str(axis) for axis in wanted if axis in FREE]
        told = f", and {' and '.join(free)} {'is' if len(free) == 1 else 'are'} 1 or more" if free else ""
        raise CallError(f"{what}; b and {lists.shape[1]} may be 1, for all alike{told}")


def shape_text(shape: tuple[int | str, ...]) -> str:
    """A shape as messages have it.

    >>> shape_text((2, "kv_len"))
    '[2, kv_len]'
    """
    return f"[{', '.join(map(str, shape))}]"
