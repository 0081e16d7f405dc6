"""Tensors of a call from files, `--tensor NAME=FILE.npy`."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.cli.errors import CommandError
from flashgen.errors import did_you_mean
from flashgen.spec import Spec, Tensor


def read_tensors(spec: Spec, given: Sequence[str], q_len: int, kv_len: int) -> dict[str, NDArray[Any]]:
    """The arrays that files hold, by name. Raises CommandError for a name that is no tensor of the spec, a file that holds no array, and an
    array of another dtype, number of axes or length."""
    return dict(_read(spec, item, {"q_len": q_len, "kv_len": kv_len}) for item in given)


def _read(spec: Spec, item: str, lengths: dict[str, int]) -> tuple[str, NDArray[Any]]:
    name, _, path = item.partition("=")
    known = {tensor.name: tensor for tensor in (*spec.tensors, *([spec.lists] if spec.lists else []))}
    if name not in known:
        raise CommandError(f"--tensor {item}: no tensor is called {name!r}; {did_you_mean(name, known)}")
    try:
        x: NDArray[Any] = np.load(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"--tensor {item}: {path!r} holds no array: {error}. Write it with numpy.save") from None
    for fault in _faults(known[name], x, lengths):
        raise CommandError(f"--tensor {item}: {name} {fault}, the spec says {known[name].dtype} [{', '.join(map(str, known[name].shape))}]")
    return name, x


def _faults(tensor: Tensor, x: NDArray[Any], lengths: dict[str, int]) -> Iterator[str]:
    if x.dtype != tensor.dtype:
        yield f"is {x.dtype}"
    if x.ndim != len(tensor.shape):
        yield f"has {x.ndim} axes"
    for axis, n in zip(tensor.shape, x.shape, strict=False):
        word, _, pieces = str(axis).partition(" / ")
        if word in lengths and n not in (1, wanted := -(-lengths[word] // int(pieces or 1))):
            yield f"has {n} of {axis}, which is {wanted} (--q-len, --kv-len)"
