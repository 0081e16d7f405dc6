"""The mappings inside a spec, as pydantic models, and the plain values that they become."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidatorFunctionWrapHandler

from flashgen.dtypes import TENSOR_DTYPES, number_text
from flashgen.spec import forms
from flashgen.spec.faults import refusal
from flashgen.spec.geometry import CACHES, Pages
from flashgen.spec.parts import Block, HeadDim, Let, Param
from flashgen.spec.softmax import SCHEDULES, SOFTMAXES, Schedule, Softmax
from flashgen.spec.tensors import Blocks, Tensor


def one_of(*words: str | int) -> BeforeValidator:
    """A validator that takes one of these words, and says so in the JSON Schema."""
    return BeforeValidator(forms.choice(*words), json_schema_input_type=Literal.__getitem__(words))


def element_of(*words: str) -> BeforeValidator:
    """A validator that takes one of these dtypes, and says so in the JSON Schema."""
    return BeforeValidator(forms.element(*words), json_schema_input_type=Literal.__getitem__(words))


LIST_KINDS, LIST_HEADS = ("indices", "bitmap"), ("hq", "hk")  # of blocks
Integer = Annotated[int, BeforeValidator(forms.integer)]
Positive = Annotated[int, Field(ge=1, le=forms.INT32), BeforeValidator(forms.positive)]
Number = Annotated[int | float, BeforeValidator(forms.number)]
Auto = Annotated[int | None, BeforeValidator(forms.auto, json_schema_input_type=int | Literal["auto"])]
Axis = Annotated[str | int, BeforeValidator(forms.axis, json_schema_input_type=Positive | str)]
Axes = Annotated[list[Axis], Field(min_length=1, max_length=forms.MAX_RANK)]
Expression = Annotated[str, Field(min_length=1), BeforeValidator(forms.expression)]
ValueName = Annotated[str, BeforeValidator(forms.value_name)]
LetName = Annotated[str, BeforeValidator(forms.let_name)]
Flag = Annotated[bool, BeforeValidator(forms.flag)]


class Closed(BaseModel):
    """A mapping that has these keys and no others."""

    model_config = ConfigDict(extra="forbid")


class HeadDimKeys(Closed):
    """Columns of q and k, and of v and o, where they differ."""

    qk: Integer = Field(description="columns of q and k", examples=[192])
    v: Integer = Field(description="columns of v and o", examples=[128])


class BlockKeys(Closed):
    """Rows and columns of a tile, pinned."""

    m: Auto = Field(None, description="query rows of a tile")
    n: Auto = Field(None, description="keys of a tile")


class BlocksKeys(Closed):
    """Blocks of keys that a call lists for blocks of queries."""

    m: Positive = Field(description="queries of a block, which have one list", examples=[128])
    n: Positive = Field(description="keys of a block", examples=[64])
    lists: ValueName = Field(
        description="the array of a call that holds the lists, int32 [b or 1, heads or 1, q_len / m, ...]; rounded up", examples=["idx"]
    )
    kind: Annotated[str, one_of(*LIST_KINDS)] = Field(
        "indices", description="indices: [..., k] numbers of key blocks, in any order, -1 behind the last; bitmap: [..., kv_len / n / 32]"
    )
    heads: Annotated[str, one_of(*LIST_HEADS)] = Field(
        "hq", description="heads that have lists of their own: hq; or hk, one for all query heads of a key/value head"
    )


class PagesKeys(Closed):
    """Keys in pages."""

    page: Annotated[int, Field(ge=1, le=forms.MAX_PAGE), BeforeValidator(forms.page)] = Field(
        description="keys of a page, a power of two", examples=[16]
    )


class TensorKeys(Closed):
    """An array of a call that expressions read."""

    shape: Annotated[tuple[Axis, ...], BeforeValidator(forms.shape, json_schema_input_type=Axes)] = Field(
        description="axes: numbers, b, hq, hk, q_len, kv_len, names that the array binds, or expressions of these, as 2 * kv_len - 1",
        examples=["[hq]"],
    )
    dtype: Annotated[str, element_of(*TENSOR_DTYPES)] = Field(description="element type", examples=["float32"])
    grad: Flag = Field(False, description="the backward gives its gradient, float32; of a tensor of floats, and where backward is true")


class ParamKeys(Closed):
    """A number of a call that expressions read."""

    default: Number = Field(description="its value where a call gives none; an integer makes it an integer", examples=[50.0])
    min: Number | None = Field(None, description="the least value that a call may give")
    max: Number | None = Field(None, description="the greatest value that a call may give")
    grad: Flag = Field(False, description="the backward gives its gradient; of a float, and where backward is true")


class LazyKeys(Closed):
    """A reference of exponents that may stay behind the maximum."""

    lazy: Annotated[Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)], BeforeValidator(forms.number)] = Field(
        description="log2 units that the maximum of a row grows before o and l are rescaled"
    )


class ScheduleKeys(Closed):
    """The order in which a softmax is computed, pinned in parts."""

    passes: Annotated[int | None, one_of(1, 2, 3)] = Field(None, description="passes over the keys")
    normalize: Annotated[str | None, one_of("end", "each_step")] = Field(None, description="when o is divided by the sum of exponentials")
    rescale: Annotated[str | float | None, BeforeValidator(forms.rescale, json_schema_input_type=Literal["always", "lazy"] | LazyKeys)] = (
        Field(None, description="when o and l follow a new maximum of the row")
    )
    outer: Annotated[str | None, one_of("q", "kv")] = Field(None, description="the outer loop: over query tiles or over key tiles")


class SoftmaxKeys(Closed):
    """A softmax with a sink."""

    sink: Expression = Field(description="a logit: exp(sink) is one more term in the sum of a row, with no value", examples=["sinks[h]"])


def to_head_dim(given: object, keys: ValidatorFunctionWrapHandler) -> HeadDim:
    """The HeadDim of a number or a mapping."""
    return HeadDim(**dict(keys(forms.head_dim(given))))


def to_block(given: object, keys: ValidatorFunctionWrapHandler) -> Block:
    """The Block of `auto` or a mapping."""
    return Block(**dict(keys(forms.block(given))))


def to_blocks(given: object, keys: ValidatorFunctionWrapHandler) -> Blocks:
    """The Blocks of a mapping."""
    return Blocks(**dict(keys(forms.blocks(given))))


def to_cache(given: object, keys: ValidatorFunctionWrapHandler) -> str | Pages:
    """The cache that a word or a mapping says."""
    return given if isinstance(given, str) and given in CACHES else Pages(**dict(keys(forms.cache(given))))


def to_schedule(given: object, keys: ValidatorFunctionWrapHandler) -> Schedule:
    """The Schedule of a name or a mapping."""
    if isinstance(given, str) and given in SCHEDULES:
        return SCHEDULES[given]
    pinned = dict(keys(forms.schedule(given)))
    if isinstance(pinned["rescale"], float):
        pinned |= {"rescale": "lazy", "threshold": pinned["rescale"]}
    return Schedule(**pinned)


def to_softmax(given: object, keys: ValidatorFunctionWrapHandler) -> Softmax:
    """The Softmax of a name or a mapping."""
    if isinstance(given, str) and given in SOFTMAXES:
        return SOFTMAXES[given]
    return Softmax(**dict(keys(forms.softmax(given))))


def to_param(given: object, keys: ValidatorFunctionWrapHandler) -> ParamKeys:
    """The keys of a param, given as a number or a mapping; bounds become numbers of its type."""
    read: ParamKeys = keys(given if isinstance(given, dict) else {"default": forms.number(given)})
    kind = type(read.default)
    for key in ("min", "max"):
        if (bound := getattr(read, key)) is not None:
            if kind is int and isinstance(bound, float):
                nearest = math.ceil(bound) if key == "min" else math.floor(bound)
                raise refusal(f"{number_text(bound)} bounds an integer", f"write {nearest}, or a default with a point", within=(key,))
            setattr(read, key, kind(bound))
    if read.min is not None and read.max is not None and read.min > read.max:
        what = f"no number is {number_text(read.min)} or more and {number_text(read.max)} or less"
        raise refusal(what, "min is at most max", within=("min",))
    if (read.min is not None and read.default < read.min) or (read.max is not None and read.default > read.max):
        bounds = " and ".join(f"{key} is {number_text(getattr(read, key))}" for key in ("min", "max") if getattr(read, key) is not None)
        raise refusal(f"its default is {number_text(read.default)}, and {bounds}", "a default is within the bounds", within=("default",))
    return read


def to_params(given: dict[str, ParamKeys]) -> tuple[Param, ...]:
    """The params in the order of the spec."""
    return tuple(Param(name=name, **dict(keys)) for name, keys in given.items())


def to_tensors(given: dict[str, TensorKeys]) -> tuple[Tensor, ...]:
    """The tensors in the order of the spec."""
    return tuple(Tensor(name=name, shape=keys.shape, dtype=keys.dtype, grad=keys.grad) for name, keys in given.items())


def to_let(given: dict[str, str]) -> tuple[Let, ...]:
    """The lets in the order of the spec."""
    return tuple(Let(name=name, text=text) for name, text in given.items())
