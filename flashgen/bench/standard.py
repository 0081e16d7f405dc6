"""Standard attention as array operations: S and P as wholes in memory."""

import math
from typing import Any


def standard(xp: Any, q: Any, k: Any, v: Any, hidden: Any = None, scores: Any = None) -> Any:
    """o = softmax(q k^T / sqrt(d)) v by operations of NumPy, CuPy or PyTorch (`xp`).

    q, o: [B, Sq, H, D], k, v: [B, Sk, H, D]; `hidden`: bool [Sq, Sk], the pairs that do not see each other. `scores`: dtype of S and of the
    softmax, by default that of q.

    >>> standard(np, q, k, v, hidden=~np.tri(len(q), dtype=bool))
    """
    q, k, v = (xp.swapaxes(x, 1, 2) for x in (q, k, v))
    s = xp.asarray(xp.matmul(q, xp.swapaxes(k, 2, 3)), dtype=q.dtype if scores is None else scores) * (1 / math.sqrt(q.shape[-1]))
    if hidden is not None:
        s = xp.where(hidden, -math.inf, s)
    p = xp.exp(s - xp.amax(s, -1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return xp.swapaxes(xp.matmul(xp.asarray(p, dtype=v.dtype), v), 1, 2)
