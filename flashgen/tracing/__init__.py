"""Masks and scores as Python functions, as users of FlexAttention write them, traced into the language."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from flashgen.dtypes import TENSOR_DTYPES
from flashgen.errors import SpecError
from flashgen.expr.language.reads import EXTENT_OF, indices, over
from flashgen.expr.language.scope import words
from flashgen.spec import Spec
from flashgen.tracing.capture import Captured
from flashgen.tracing.symbol import Symbol, position, tracing, tree
from flashgen.tracing.types import check

__all__ = ["Traced", "trace"]

_INDICES = ("b", "h", "q_idx", "kv_idx")


@dataclass(frozen=True)
class Traced:
    """A function, as expressions of the language.

    `mask` and `score`: expressions; what a score function hides by -inf is part of the mask. `values`: numbers and arrays that they
    captured, by the names that the expressions give them: keywords of a call.

    >>> flashgen.attention(q, k, v, found.mask, score=found.score, **found.values)
    """

    mask: str = "full"
    score: str = "s"
    values: dict[str, Any] = field(default_factory=dict)

    def spec(self, **keys: Any) -> Spec:
        """The spec of a compiled attention, of these other keys of a spec.

        >>> attn = flashgen.compile(trace(mask=mine).spec(head_dim=128, dtype="bfloat16"))

        Numbers that were captured are the defaults of params. An axis of an array that is indexed by b, h, q_idx or kv_idx has that extent.
        """
        arrays = {name: x for name, x in self.values.items() if getattr(x, "shape", ())}
        numbers = {name: x.item() if hasattr(x, "item") else x for name, x in self.values.items() if name not in arrays}
        declared = {name: {"shape": ["kv_len"] * len(x.shape), "dtype": _dtype(name, x)} for name, x in arrays.items()}
        texts = {"mask": self.mask, "score": self.score, "params": numbers}
        for name, axes in indices(Spec(**keys, **texts, tensors=declared)).items():
            extents = zip(axes, arrays[name].shape, strict=True)
            declared[name]["shape"] = [EXTENT_OF[over(axis)[0]] if over(axis) else n for axis, n in extents]
        return Spec(**keys, **texts, tensors=declared)


def trace(mask: Callable[..., Any] | None = None, score: Callable[..., Any] | None = None) -> Traced:
    """Traces a mask function of (b, h, q_idx, kv_idx), a score function of (s, b, h, q_idx, kv_idx), or both into expressions.

    >>> slopes = np.array([0.5, 0.25])
    >>> def soft(s, b, h, q_idx, kv_idx):
    ...     return 20.0 * np.tanh(s / 20.0) + (kv_idx - q_idx) * slopes[h]
    >>> trace(score=soft)
    Traced(mask='full', score='20.0 * tanh(s / 20.0) + (kv_idx - q_idx) * slopes[h]', values={'slopes': array([0.5 , 0.25])})

    Each is called once, with symbols. It may use operators, `where` and other functions of NumPy, PyTorch and JAX, and helpers of its own.
    A captured number becomes a param and a captured array a tensor. Raises SpecError, at the line that cannot be traced.
    """
    captured = Captured(words())
    score_tree, seen = (ast.Name("s"), None) if score is None else _without_infinity(_run(score, captured, ("s", *_INDICES)))
    found = None if mask is None else _run(mask, captured, _INDICES)
    parts = [part for part in (found, seen) if part is not None and not _is_true(part)]
    mask_tree = reduce(lambda x, y: ast.BinOp(x, ast.BitAnd(), y), parts) if parts else ast.Name("full")
    texts = {"mask": _text(mask_tree), "score": _text(score_tree)}
    check(mask_tree, texts["mask"], "bool", captured.values)
    check(score_tree, texts["score"], "float", captured.values)
    named = {node.id for text in texts.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return Traced(**texts, values={name: x for name, x in captured.values.items() if name in named})


def _run(function: Callable[..., Any], captured: Captured, arguments: tuple[str, ...]) -> ast.expr:
    """Calls a function with symbols, and gives the tree of its result."""
    if not callable(function):
        raise SpecError(f"a {type(function).__name__} cannot be traced", hint="expected a Python function")
    given = inspect.signature(function)
    try:
        given.bind(*arguments)
    except TypeError:
        kind, count = "score" if "s" in arguments else "mask", len(given.parameters)
        hint = f"expected ({', '.join(arguments)})"
        raise SpecError(f"the {kind} function {_name(function)} takes {count} arguments", hint=hint) from None
    rebuilt = captured.rebuilt(function)
    with tracing(captured.codes):
        found = rebuilt(*(Symbol(ast.Name(name)) for name in arguments))
        if found is None:
            code = getattr(rebuilt, "__code__", None)
            at = position(code, 0, code.co_firstlineno) if code else None
            raise SpecError(f"{_name(function)} returns nothing", at, "write return before the expression")
        return tree(found)


def _dtype(name: str, array: Any) -> str:
    """The dtype that a spec declares for an array. Raises SpecError."""
    dtype = str(array.dtype).rpartition(".")[2]  # torch.int32
    if dtype not in TENSOR_DTYPES:
        raise SpecError(f"{name} is {dtype}", hint=f"expressions read {', '.join(TENSOR_DTYPES)}: cast it")
    return dtype


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _text(found: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(found))


def _is_true(found: ast.expr) -> bool:
    return isinstance(found, ast.Constant) and found.value is True


def _without_infinity(score: ast.expr) -> tuple[ast.expr, ast.expr | None]:
    """A score, and the condition of a key to be seen, where the score is -inf for the others."""
    match score:
        case ast.Call(ast.Name("where"), [condition, shown, hidden]) if _hides(hidden):
            inner, seen = _without_infinity(shown)
            return inner, _both(condition, seen)
        case ast.Call(ast.Name("where"), [condition, hidden, shown]) if _hides(hidden):
            inner, seen = _without_infinity(shown)
            return inner, _both(ast.UnaryOp(ast.Invert(), condition), seen)
        case ast.Call(ast.Name("where") as where, [condition, yes, no]):
            (then, of_yes), (other, of_no) = _without_infinity(yes), _without_infinity(no)
            if of_yes is not None or of_no is not None:
                parts = _both(condition, of_yes), _both(ast.UnaryOp(ast.Invert(), condition), of_no)
                return ast.Call(where, [condition, then, other], []), ast.BinOp(parts[0], ast.BitOr(), parts[1])
    return score, None


def _both(condition: ast.expr, seen: ast.expr | None) -> ast.expr:
    return condition if seen is None else ast.BinOp(condition, ast.BitAnd(), seen)


def _hides(value: ast.expr) -> bool:
    match value:
        case ast.UnaryOp(ast.USub(), ast.Constant(number)):
            return number == float("inf")
    return False
