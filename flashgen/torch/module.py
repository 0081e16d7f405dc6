"""A spec as a module of PyTorch."""

import json
import os
from collections.abc import Mapping
from typing import Any

import torch

import flashgen
from flashgen.errors import CallError
from flashgen.spec import Spec
from flashgen.torch.call import attention_of_spec


class Attention(torch.nn.Module):  # type: ignore[misc]
    """A spec as a module.

    >>> attn = Attention("specs/alibi.yaml", slopes=slopes)
    >>> o = attn(q, k, v)

    `values`: those that the module holds. Of the spec's values with `grad: true` they are parameters, else buffers and numbers. A module
    that was cast, as by bfloat16(), hands them on in the dtypes of its spec. Raises SpecError, PlanError, CompileError, BackendError;
    CallError for a value that the spec does not have, or whose name modules have for something else.
    """

    def __init__(self, spec: Spec | str | os.PathLike[str] | Mapping[str, Any], /, **values: Any):
        super().__init__()
        self._attention = flashgen.compile(spec)
        self.spec = self._attention.spec
        self._told = json.dumps(self.spec.to_json())
        self._learned = frozenset(one.name for one in self.spec.with_grad)
        self._own = tuple(values)
        self._dtypes = {tensor.name: getattr(torch, tensor.dtype) for tensor in self.spec.arrays}
        known = {*self._dtypes, *(param.name for param in self.spec.params)}
        for name, value in values.items():
            if name not in known:
                raise CallError(f"{name} is given, and {self.spec.name} has no such value: it has {', '.join(sorted(known)) or 'none'}")
            if hasattr(self, name):
                raise CallError(f"{name} is a name that modules of PyTorch have: give it in each call, or rename it in the spec")
            if name in self._learned:
                setattr(self, name, torch.nn.Parameter(torch.as_tensor(value, dtype=torch.float32)))
            elif name in self._dtypes:
                self.register_buffer(name, torch.as_tensor(value))
            else:
                setattr(self, name, value)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **values: Any) -> Any:
        """o, or what the spec's outputs say, as (o, lse), of tensors as the spec's layout has them. Raises CallError."""
        if self._own:
            values = {name: self._value(name) for name in self._own if name not in values} | values
        return attention_of_spec(self._attention, self._told, q, k, v, values)

    def _value(self, name: str) -> Any:
        value, dtype = getattr(self, name), self._dtypes.get(name)
        return value if dtype is None or value.dtype == dtype or not value.is_floating_point() else value.to(dtype)

    def extra_repr(self) -> str:
        """The name of the spec, for `print(module)`."""
        return self.spec.name
