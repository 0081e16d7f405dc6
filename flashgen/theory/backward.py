"""The backward of attention, tile by tile: gradients from what the forward leaves behind, o and lse.

With weights p = 2^(s - lse), lse = log2 sum_j 2^(s_j), and a loss of which o has the gradient do and lse (in natural units) has dlse:

    dp_ij    = do_i . v_j                 delta_i = do_i . o_i - dlse_i
    dscore   = p * (dp - delta)           dsink_i = -2^(sink - lse_i) * delta_i
    dv = p^T do    ds = dscore * (d score / d s)    dq = scale * ds k    dk = scale * ds^T q

Where keys count for more or less after the softmax, by a factor w (`weight`): dp_ij = w_ij (do_i . v_j), dv = (w * p)^T do, and
dw_ij = p_ij (do_i . v_j); o, and so delta, have them already.

Nothing of a row besides lse and delta is needed, so key tiles may come in any order, and gradients of keys sum over query tiles. Where the
scores are the weights (`softmax: none`), p is the score, and dscore is dp. Scores, sinks and lse are in log2 units here; dscore and dsink
are of scores in natural units. A tensor or a param has the sum of dscore * (d score / d it), and of dsink * (d sink / d it).

The functions are written once, over a namespace `xp` as in flashgen.theory.schedule: NumPy, or `symbolic()`, where the tests prove them.
Sources: FlashAttention (2205.14135) for p from lse, FlashAttention 2 (2307.08691) for delta.
"""

import math
from typing import Any

import numpy as np

from flashgen.theory.schedule import Array


def row_term(do: Array, o: Array, dlse: Array) -> Array:
    """delta: all that the other keys of a row make of a score's gradient. do, o: [..., rows, D]; dlse, delta: [..., rows].

    >>> row_term(np.float32([[1, 2]]), np.float32([[3, 4]]), np.float32([1]))
    array([10.], dtype=float32)
    """
    return (do * o).sum(axis=-1) - dlse


def weights(s: Array, lse: Array, xp: Any = np) -> Array:
    """The weights of a tile, [..., rows, keys], from its scores in log2 units and the lse of its rows; -inf in s: hidden.

    A row without keys, whose lse is -inf, has weights of 0. No weight passes 1 but for rounding, as no score passes lse; a score that is
    put in place of a hidden one has to be -inf, and no finite number, which may lie far above lse.
    """
    return xp.exp2(s - xp.where(xp.equal(lse, -math.inf), 0, lse)[..., None])


def score_gradient(p: Array, dp: Array, delta: Array) -> Array:
    """dscore of a tile, [..., rows, keys]."""
    return p * (dp - delta[..., None])


def sink_gradient(sink: Array, lse: Array, delta: Array, xp: Any = np) -> Array:
    """dsink of each row, [..., rows]: the sink is one more key, whose v is 0."""
    return -weights(sink[..., None], lse, xp)[..., 0] * delta
