"""Finds mistakes of types in what was traced, and tells them at the line of the function: nobody wrote the expression."""

import ast
from collections.abc import Mapping
from typing import Any

from flashgen.dtypes import READ
from flashgen.errors import Position, SpecError
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.masks import MASKS
from flashgen.expr.language.nodes import Type
from flashgen.expr.language.parse import Parser
from flashgen.expr.language.scope import INDICES, Scope
from flashgen.tracing.symbol import position

_KINDS: Mapping[str, Type] = {"bool": "bool", "int": "int", "uint": "int", "float": "float", "bfloat": "float"}  # that a cast keeps


def check(tree: ast.expr, text: str, kind: Type, values: Mapping[str, Any]) -> None:
    """Raises SpecError where the expression of a traced function has another type than `kind`, or none. `values`: what it captured."""
    arrays = {name: x for name, x in values.items() if getattr(x, "shape", ())}
    params: dict[str, Type] = {node.id: "int" for node in ast.walk(tree) if isinstance(node, ast.Name) and _unknown(node.id)}
    params |= {name: _type_of(x) for name, x in values.items() if name not in arrays}
    tensors = {name: (_type_of(x), tuple(x.shape)) for name, x in arrays.items()}
    names: dict[str, Type] = {**INDICES, "s": "float"} if kind == "float" else {**INDICES}
    try:
        Parser(Scope(params, tensors, names), text, Position("<traced>", 1, 1, text)).read(kind)
    except SpecError as error:
        at = _origin(tree, text, error.position.column - 1) if error.position else None
        raise SpecError(error.message, at or error.position, error.hint) from None


def _unknown(name: str) -> bool:
    return not (name in INDICES or name in FUNCTIONS or name in MASKS or name in ("s", "where", "sum"))


def _type_of(value: Any) -> Type:
    if isinstance(value, int | float):
        return "int" if isinstance(value, int) else "float"
    dtype = str(value.dtype).rpartition(".")[2]
    return READ[dtype][0] if dtype in READ else _KINDS.get(dtype.rstrip("0123456789"), "float")


def _origin(tree: ast.expr, text: str, column: int) -> Position | None:
    """The position in the function of what stands at a column of its expression."""
    made, read = ([node for node in ast.walk(each) if isinstance(node, ast.expr)] for each in (tree, ast.parse(text, mode="eval").body))
    if [*map(type, made)] != [*map(type, read)]:
        return None
    around = [
        (node.end_col_offset - node.col_offset, vars(own)["origin"])
        for own, node in zip(made, read, strict=True)
        if node.end_col_offset is not None and node.col_offset <= column < node.end_col_offset and vars(own).get("origin")
    ]
    return position(*min(around, key=lambda found: found[0])[1]) if around else None
