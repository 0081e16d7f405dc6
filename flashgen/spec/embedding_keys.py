"""The keys of a norm and of a rotary embedding, as pydantic models, and the plain values that they become."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidatorFunctionWrapHandler

from flashgen.dtypes import float32
from flashgen.spec import forms
from flashgen.spec.embedding import BOTH, SIDES, Angles, Norm, Rotary
from flashgen.spec.faults import refusal
from flashgen.spec.keys import Closed, Number, Positive, ValueName, one_of

Roles = Annotated[tuple[str, ...], BeforeValidator(forms.roles, json_schema_input_type=list[Literal["q", "k"]])]


class AnglesKeys(Closed):
    """The tensors of angles of a rotary embedding."""

    query: ValueName | None = Field(None, description="the tensor of q's angles, float32 [q_len, columns / 2] or [b, q_len, columns / 2]")
    key: ValueName | None = Field(None, description="the tensor of k's angles, float32 [kv_len, columns / 2] or [b, kv_len, columns / 2]")


class RotaryKeys(Closed):
    """A rotary embedding; see flashgen.spec.embedding.Rotary."""

    kind: Annotated[str, one_of("halves", "interleaved")] = Field(
        description="how columns make pairs: i and i + columns / 2, or 2 i and 2 i + 1", examples=["halves"]
    )
    columns: Positive | None = Field(None, description="the first columns of q and k, which are turned; without it all")
    angles: AnglesKeys | None = Field(None, description="tensors of angles in radians, a row a token, a column a pair of columns")
    base: Number | None = Field(None, description="without angles: pair i turns by position * base ** (-2 i / columns)", examples=[10000.0])
    of: Roles = Field(BOTH, validate_default=True, description="which of q and k are turned")


class NormKeys(Closed):
    """A norm of rows; see flashgen.spec.embedding.Norm."""

    eps: Number = Field(1e-6, description="added to the mean of a row's squares")
    query: ValueName | None = Field(None, description="the tensor of columns by which q is multiplied after its norm, [head_dim.qk]")
    key: ValueName | None = Field(None, description="the same of k")
    of: Roles = Field(BOTH, validate_default=True, description="which of q and k have a norm")


def to_norm(given: object, keys: ValidatorFunctionWrapHandler) -> Norm:
    """The Norm of a mapping. Raises a refusal for columns of an array that has none."""
    read: NormKeys = keys(forms.norm(given))
    eps = float32(read.eps)
    if eps < 0:
        raise refusal(f"expected 0 or more, got {eps}", "it is added to a mean of squares: 1.0e-6", within=("eps",))
    _check_sides(read, read.of)
    return Norm(eps=eps, query=read.query, key=read.key, of=read.of)


def to_rotary(given: object, keys: ValidatorFunctionWrapHandler) -> Rotary:
    """The Rotary of a mapping, whose columns may still be 0: all. Raises a refusal where angles and base do not go together."""
    read: RotaryKeys = keys(forms.rotary(given))
    if (read.angles is None) == (read.base is None):
        raise refusal("it takes its angles from tensors or from a base", "one of angles: {query: tq, key: tk} and base: 10000.0")
    if read.base is not None and read.base <= 0:
        raise refusal(f"expected a positive number, got {read.base}", "for example 10000.0", within=("base",))
    if read.angles:
        _check_sides(read.angles, read.of, "angles")
        for role in read.of:
            if getattr(read.angles, SIDES[role]) is None:
                raise refusal(
                    f"{role} is turned, and has no angles", f"angles: {{{SIDES[role]}: t}}, or of: without {role}", within=("angles",)
                )
    angles = Angles(query=read.angles.query, key=read.angles.key) if read.angles else None
    base = None if read.base is None else float32(read.base)
    return Rotary(kind=read.kind, columns=read.columns or 0, angles=angles, base=base, of=read.of)


def _check_sides(read: AnglesKeys | NormKeys, of: tuple[str, ...], *within: str) -> None:
    for role, side in SIDES.items():
        if role not in of and getattr(read, side) is not None:
            raise refusal(f"it is of {role}, and `of` has no {role}", f"of: [q, k], or leave {side} out", within=(*within, side))


def fitting(given: Norm | Rotary, spec: Mapping[str, Any]) -> Norm | Rotary:
    """A norm or a rotary embedding in a spec of these fields, its columns known.

    Raises a refusal for keys of a cache, and for columns that are no pairs.
    """
    if "k" in given.of and spec.get("cache"):
        why = "keys of a cache are not changed at each call: they lie there as attention takes them"
        raise refusal(why, "of: [q]; flashgen.append turns keys on their way into a cache", within=("of",))
    if not isinstance(given, Rotary) or not (head_dim := spec.get("head_dim")):
        return given
    columns = given.columns or head_dim.qk
    if columns % 2 or columns > head_dim.qk:
        hint = f"an even number up to {head_dim.qk}, the columns of q and k"
        raise refusal(f"{columns} columns cannot be turned in pairs", hint, within=("columns",))
    return replace(given, columns=columns)
