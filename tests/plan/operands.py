"""Operands that arithmetic must survive, and how far it is off."""

from functools import partial

import numpy as np

ODD = (
    *("small", "logits of 1e4", "denormals", "12 decades", "rows far apart", "columns far apart"),
    *("one channel of q and k", "cancellation"),
)


def scaled(name, x, rng):
    """Operands that a split must survive, by the name of what is odd about them."""
    columns = {"one channel of q and k": 3, "cancellation": 5}
    match name:
        case "small":
            return x * np.float32(1e-3)
        case "logits of 1e4":
            return x * np.float32(35)
        case "denormals":
            return x * np.float32(1e-40)
        case "12 decades":
            return x * 10 ** rng.uniform(-6, 6, x.shape).astype(np.float32)
        case "rows far apart":
            return x * np.where(np.arange(x.shape[1]) % 7, 1, 1e-8).astype(np.float32)[:, None, None]
        case "columns far apart":
            return x * np.where(np.arange(x.shape[3]) % 7, 1, 1e-8).astype(np.float32)
        case _:
            x[..., columns[name]] *= 60
            return x - x.mean(1, keepdims=True) if name == "cancellation" else x


def check_errors(o, simple, want):
    """The whole errs at most twice as much as simple attention, its worst row or column of v four times, each relative to its norm."""
    for axis, times in ((None, 2), (-1, 4), (1, 4)):
        error, allowed = (_worst(x - want, want, axis) for x in (o, simple))
        assert error <= times * allowed + 5e-7, f"{error:.1e}, {allowed:.1e} of simple attention, along axis {axis}"


def _worst(difference, want, axis):
    norm = partial(np.linalg.norm, axis=axis)
    return (
        norm(difference.ravel() if axis is None else difference) / np.maximum(norm(want.ravel() if axis is None else want), 1e-42)
    ).max()
