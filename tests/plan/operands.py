"""Operands that arithmetic must survive, and how far it is off."""

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


def worst(o, want):
    """The largest error of a row, and of a column of v, relative to its norm."""
    pairs = ((np.linalg.norm(o - want, axis=axis), np.linalg.norm(want, axis=axis)) for axis in (-1, 1))
    return max((error / np.maximum(norms, 1e-42)).max() for error, norms in pairs)
