"""Tensors of a call from files, `--tensor NAME=FILE.npy`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.cli.errors import CommandError
from flashgen.errors import did_you_mean
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec, Tensor, axes


def read_tensors(spec: Spec, given: Sequence[str], q_len: int, kv_len: int) -> dict[str, NDArray[Any]]:
    """The arrays that files hold, by name. Raises CommandError for a name that is no tensor of the spec, a file that holds no array, and an
    array of another dtype, number of axes or length."""
    known = {tensor.name: tensor for tensor in (*spec.tensors, *([spec.lists] if spec.lists else []))}
    return dict(_read(known, item, {"q_len": q_len, "kv_len": kv_len}) for item in given)


def call_of_tensors(spec: Spec, given: Sequence[str], q_len: int | None, kv_len: int | None) -> tuple[Sizes, dict[str, NDArray[Any]]]:
    """The sizes of a call that has the arrays of these files, as far as these or q_len and kv_len tell them, and the arrays, by name.

    What nobody tells is 1 sequence, as many keys as queries or queries as keys, and the heads of a group, by default 2. Raises CommandError
    as `read_tensors` does, and where nobody tells a length.
    """
    known = {tensor.name: tensor for tensor in spec.arrays}
    said = {word: n for word, n in (("q_len", q_len), ("kv_len", kv_len)) if n}
    found = dict(_read(known, item, said) for item in given)
    told = {axis: n for name, x in found.items() for axis, n in zip(known[name].shape, x.shape, strict=True) if n > 1} | said
    lengths = [told[word] for word in ("q_len", "kv_len") if word in told]
    if not lengths:
        raise CommandError("--tensor: no array tells how many queries or keys there are: give --q-len")
    group = spec.group or (2 if told.get("hq", 2) % 2 == 0 else 1)
    kv_heads = told.get("hk", max(1, told.get("hq", group) // group))
    keys, page = told.get("kv_len", lengths[0]), spec.page or 1
    sizes = Sizes(
        batch=told.get("b", told.get("b + 1", 2) - 1),
        q_len=told.get("q_len", lengths[0]),
        kv_len=-(-keys // page) * page,
        heads=told.get("hq", kv_heads * group),
        kv_heads=kv_heads,
        page=page,
    )
    return sizes, found


def _read(known: Mapping[str, Tensor], item: str, lengths: Mapping[str, int]) -> tuple[str, NDArray[Any]]:
    name, _, path = item.partition("=")
    if name not in known:
        raise CommandError(f"--tensor {item}: no tensor is called {name!r}; {did_you_mean(name, known)}")
    try:
        x: NDArray[Any] = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or "it is no file of NumPy"
        raise CommandError(f"--tensor {item}: {path!r} holds no array: {reason}. Write it with numpy.save") from None
    for fault in _faults(known[name], x, lengths):
        raise CommandError(f"--tensor {item}: {name} {fault}, the spec says {known[name].dtype} [{', '.join(map(str, known[name].shape))}]")
    return name, x


def _faults(tensor: Tensor, x: NDArray[Any], lengths: Mapping[str, int]) -> Iterator[str]:
    if x.dtype != tensor.dtype:
        yield f"is {x.dtype}"
    if x.ndim != len(tensor.shape):
        yield f"has {x.ndim} axes"
    for axis, n in zip(tensor.shape, x.shape, strict=False):
        word, entries = axes.pieces(axis)
        if word in lengths and n not in (1, wanted := -(-lengths[word] // entries)):
            yield f"has {n} of {axis}, which is {wanted} (--q-len, --kv-len)"
