"""Masks of models: what a model says as a function of positions, as an expression and the arrays that it reads."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import masking_utils as known

from flashgen.errors import CallError
from flashgen.tracing import trace
from flashgen.tracing.symbol import symbol


@dataclass(frozen=True, kw_only=True)
class Mask:
    """The mask of a layer: an expression, and the values that it reads. It stands where transformers has masks as tensors.

    `lengths`: the keys of each sequence, int32 [B], where k and v have place for more; None: they are all there.
    """

    text: str
    values: dict[str, Any] = field(default_factory=dict)
    lengths: torch.Tensor | None = None
    shape: tuple[int, int, int, int]
    ndim: int = 4  # transformers asks

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {_OWN}")

    def __radd__(self, scores: Any) -> Any:
        raise CallError(_OWN)


_OWN = "this model computes with its mask by itself, in place of an attention that is registered: take attn_implementation='eager'"


@torch.compiler.disable  # type: ignore[untyped-decorator]
def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = known.causal_mask_function,
    attention_mask: torch.Tensor | Mask | None = None,
    **_: Any,
) -> Mask:
    """The mask of layers whose queries stand at q_offset and later, and whose keys at kv_offset and later.

    `mask_function`: of (b, h, position of a query, position of a key); `attention_mask`: bool [B, positions], False where nothing is,
    or a Mask that was made before. Raises SpecError for a function that cannot be traced.
    """
    if isinstance(attention_mask, Mask):
        return attention_mask
    lengths = None
    if isinstance(q_offset, torch.Tensor):  # of a static cache: read on the device
        lengths = (q_offset + q_length).to(torch.int32).expand(batch_size).contiguous()
    last = lengths is not None or q_offset - kv_offset == kv_length - q_length  # queries are the last of the sequence
    ahead, before = "kv_len - q_len" if last else "ahead", kv_offset
    if (pattern := _pattern(mask_function)) is None:
        text, values = _traced(mask_function, ahead, before)
    else:
        before, values = 0, {}
        if (pattern, ahead) not in _TEXTS:
            _TEXTS[pattern, ahead], _ = _traced(mask_function, ahead, before)
        text = _TEXTS[pattern, ahead]
    numbers = {"before": before} if last else {"before": before, "ahead": q_offset - kv_offset}
    values |= {name: x for name, x in numbers.items() if re.search(rf"\b{name}\b", text)}
    if attention_mask is not None and not (padding := _fitted(attention_mask, kv_length, kv_offset)).all():
        text, values = f"({text}) & padding[b, kv_idx]", values | {"padding": padding}
    return Mask(text=text, values=values, lengths=lengths, shape=(batch_size, 1, q_length, kv_length))


_COMBINED = {combine(known.causal_mask_function).__code__ for combine in (known.and_masks, known.or_masks)}
_RELATIVE = {
    known.causal_mask_function.__code__,
    known.bidirectional_mask_function.__code__,
    known.sliding_window_overlay(1).__code__,
    known.sliding_window_bidirectional_overlay(1).__code__,
}
_TEXTS: dict[tuple[Any, str], str] = {}  # of patterns, which a model asks for in every step


def _pattern(function: Any) -> Any:
    """A key that tells apart the masks of transformers' own that read nothing but how far a key is from a query, so that it
    does not matter where both begin; None for another."""
    code, inside = getattr(function, "__code__", None), [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if code in _COMBINED:
        parts = tuple(_pattern(part) for part in inside[0])
        return None if None in parts else (code, parts)
    return (code, *inside) if code in _RELATIVE else None


def _traced(function: Callable[..., Any], ahead: str, before: int) -> tuple[str, dict[str, Any]]:
    """The expression of a mask function, and the arrays that it reads. `ahead`: what a query's position among the keys is more than q_idx;
    `before`: keys before the first."""
    more = " + before" if before else ""
    query, key = symbol(f"q_idx + {ahead}{more}"), symbol(f"kv_idx{more}")

    def placed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # noqa: ARG001
        return function(b, h, query, key)

    found = trace(mask=placed)
    arrays = {name: x for name, x in found.values.items() if isinstance(x, torch.Tensor) and x.dim()}
    numbers = {name: ast.Constant(x) for name, x in found.values.items() if name not in arrays}
    text = ast.unparse(_Numbers(numbers).visit(ast.parse(found.mask, mode="eval")))
    return text, {name: _as_read(name, x, text) for name, x in arrays.items()}


def _as_read(name: str, x: torch.Tensor, text: str) -> torch.Tensor:
    """An array as an expression reads it: of int64 the nearest integers, if it takes no others, as tiles are found by what is computed of
    them; ids are compared as they are."""
    if x.dtype != torch.int64 or text.count(f"int({name}[") != len(re.findall(rf"\b{name}\[", text)):
        return x
    return x.clamp(-(2**31), 2**31 - 1).to(torch.int32)


class _Numbers(ast.NodeTransformer):
    """Puts numbers in the place of names."""

    def __init__(self, numbers: dict[str, ast.Constant]):
        self.numbers = numbers

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.numbers.get(node.id, node)


def _fitted(padding: torch.Tensor, kv_length: int, kv_offset: int) -> torch.Tensor:
    """The part of a padding mask that keys have; what it does not reach is hidden."""
    there = padding[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    return torch.nn.functional.pad(there, (0, kv_length - there.shape[1]))
