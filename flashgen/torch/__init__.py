"""Attention in PyTorch: under torch.compile, export, autocast, checkpoint and torch.func as in eager calls.

>>> from flashgen.torch import attention
>>> o = torch.compile(lambda q, k, v: attention(q, k, v, "causal"), fullgraph=True)(q, k, v)
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("flashgen.torch works in PyTorch, which is not here: pip install torch") from error

from flashgen.torch.call import attention
from flashgen.torch.module import Attention

__all__ = ["Attention", "attention"]
