"""The keys of a spec, as pydantic models: they check what YAML or Python gives, and are the JSON Schema that editors read."""

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, WrapValidator, field_validator

from flashgen.dtypes import ATTENTION_DTYPES
from flashgen.errors import Position
from flashgen.spec import axes, forms
from flashgen.spec.embedding import Norm, Rotary
from flashgen.spec.embedding_keys import NormKeys, RotaryKeys, fitting, to_norm, to_rotary
from flashgen.spec.faults import refusal, spec_error
from flashgen.spec.geometry import CACHES, Pages, geometry_of
from flashgen.spec.keys import (
    Auto,
    BlockKeys,
    BlocksKeys,
    Closed,
    Expression,
    Flag,
    HeadDimKeys,
    LetName,
    PagesKeys,
    ParamKeys,
    Positive,
    ScheduleKeys,
    SoftmaxKeys,
    TensorKeys,
    ValueName,
    element_of,
    one_of,
    to_block,
    to_blocks,
    to_cache,
    to_head_dim,
    to_let,
    to_param,
    to_params,
    to_schedule,
    to_softmax,
    to_tensors,
)
from flashgen.spec.layout import DEFAULT, LAYOUTS, axis_order
from flashgen.spec.model import KEY, Path
from flashgen.spec.outputs import OUTPUTS
from flashgen.spec.parts import Let, Param
from flashgen.spec.softmax import SCHEDULES, SOFTMAXES
from flashgen.spec.tensors import Blocks, Tensor


class SpecKeys(Closed):
    """An attention variant. Only dtype and head_dim are required."""

    name: Annotated[str, BeforeValidator(forms.name)] = Field(
        "attention", description="names the files and the kernel; of a spec in a file, by default that of the file"
    )
    dtype: Annotated[str, element_of(*ATTENTION_DTYPES)] = Field(description="of q, k and v; sums are float32", examples=["bfloat16"])
    out_dtype: Annotated[str, element_of(*ATTENTION_DTYPES)] | None = Field(None, description="of o; without it, that of q, k and v")
    precision: Annotated[str, one_of("ieee", "tf32")] = Field(
        "ieee", description="of float32 products: ieee, as sums of float32 numbers err, or tf32, 11 bits and less than half the time"
    )
    head_dim: Annotated[HeadDimKeys, WrapValidator(to_head_dim, json_schema_input_type=int | HeadDimKeys)] = Field(
        description="columns of a head: one number, or {qk: 192, v: 128}", examples=[128]
    )
    group: Positive | None = Field(None, description="query heads per key/value head; without it, as the arrays have it")
    layout: Annotated[str, BeforeValidator(forms.layout, json_schema_input_type=Literal.__getitem__(tuple(LAYOUTS)))] = Field(
        DEFAULT, description="axes of q, k, v and o, outermost first"
    )
    cache: Annotated[PagesKeys | None, WrapValidator(to_cache, json_schema_input_type=Literal.__getitem__(tuple(CACHES)) | PagesKeys)] = (
        Field(
            None,
            description="contiguous: k and v have place for more keys than sequences have, and a call gives kv_lens, int32 [B]; "
            "{page: 16}: they lie in pages, which block_table, int32 [B, pages], names",
        )
    )
    scale: Annotated[str | None, BeforeValidator(forms.scale, json_schema_input_type=int | float | str)] = Field(
        None, description="factor of q.k: a number, or an expression of d = head_dim.qk; without it 1/sqrt(d)"
    )
    norm: Annotated[NormKeys | None, WrapValidator(to_norm, json_schema_input_type=NormKeys)] = Field(
        None,
        description="rows of q and k over the root of the mean of their squares, times learned columns: {eps: 1.0e-6, query: wq, key: wk}",
    )
    rotary: Annotated[RotaryKeys | None, WrapValidator(to_rotary, json_schema_input_type=RotaryKeys)] = Field(
        None, description="pairs of columns of q and k are turned by their positions, after the norm: {kind: halves, base: 10000.0}"
    )
    score: Expression = Field("s", description="expression of s, the scaled q.k", examples=["softcap * tanh(s / softcap)"])
    mask: Annotated[str, BeforeValidator(forms.mask)] = Field("full", description="true where a query sees a key", examples=["causal"])
    softmax: Annotated[
        SoftmaxKeys, WrapValidator(to_softmax, json_schema_input_type=Literal.__getitem__(tuple(SOFTMAXES)) | SoftmaxKeys)
    ] = Field("softmax", validate_default=True, description="how scores become weights: softmax, off_by_one, none, or {sink: a logit}")
    weight: Expression | None = Field(
        None, description="a factor of what a key's value counts for, after the softmax: an expression without s", examples=["g[b, kv_idx]"]
    )
    output: Expression | None = Field(
        None,
        description="what o becomes before it is written: an expression of o, b, h, hk, q_idx and v_idx, its column",
        examples=["o * sigmoid(gate[b, q_idx, h, v_idx])"],
    )
    backward: Flag = Field(False, description="the kernel has gradients: attn.backward gives them, and lse is among the outputs")
    deterministic: Flag = Field(False, description="gradients are the same bits in every run; where backward is true")
    params: Annotated[
        dict[ValueName, Annotated[ParamKeys, WrapValidator(to_param, json_schema_input_type=int | float | ParamKeys)]],
        AfterValidator(to_params),
    ] = Field(
        {},
        validate_default=True,
        description="run-time scalars, each with its default, or with {default: 128, min: 0, max: 65536, grad: false}",
    )
    tensors: Annotated[dict[ValueName, TensorKeys], AfterValidator(to_tensors)] = Field(
        {}, validate_default=True, description="run-time arrays of the expressions"
    )
    let: Annotated[dict[LetName, Expression], AfterValidator(to_let)] = Field(
        {}, validate_default=True, description="named subexpressions, each of those above it", examples=["{d: q_idx - kv_idx}"]
    )
    outputs: Annotated[
        tuple[str, ...], BeforeValidator(forms.outputs, json_schema_input_type=list[Literal.__getitem__(tuple(OUTPUTS))])
    ] = Field(("o",), validate_default=True, description="; ".join(f"{name}: {row.text}" for name, row in OUTPUTS.items()))
    block: Annotated[BlockKeys, WrapValidator(to_block, json_schema_input_type=Literal["auto"] | BlockKeys)] = Field(
        "auto", validate_default=True, description="tile: auto or {m: 128, n: 128}"
    )
    blocks: Annotated[BlocksKeys, WrapValidator(to_blocks, json_schema_input_type=BlocksKeys)] | None = Field(
        None, description="blocks of keys that a call lists for each block of queries; a key is seen if it is listed and the mask holds"
    )
    stages: Auto = Field(None, description="key and value tiles in flight: auto or a number")
    warps: Auto = Field(None, description="warps that compute: auto or a number")
    schedule: Annotated[
        ScheduleKeys, WrapValidator(to_schedule, json_schema_input_type=Literal.__getitem__(tuple(SCHEDULES)) | ScheduleKeys)
    ] = Field("auto", validate_default=True, description="how softmax is rescaled: auto, a name, or what to pin of it")
    split: Annotated[int | str, BeforeValidator(forms.split, json_schema_input_type=Literal["invariant", "auto"] | int)] = Field(
        "invariant",
        description="how blocks share a query tile's keys: invariant, by a sequence's own lengths; auto, by the whole call; or a number",
    )

    @field_validator("norm", "rotary")
    @classmethod
    def _fitting(cls, given: Norm | Rotary | None, info: ValidationInfo) -> Norm | Rotary | None:
        return given and fitting(given, info.data)

    @field_validator("backward")
    @classmethod
    def _whole(cls, backward: bool, info: ValidationInfo) -> bool:
        if backward and (cache := info.data.get("cache")):
            what = "keys in pages have no gradients: sequences may share a page, and their gradients would meet in it"
            what = what if isinstance(cache, Pages) else "a cache has no gradients: of its keys only some are of the call"
            hint = "leave backward out; in training, layout: thd takes sequences of any lengths, or the mask says them: kv_idx < lens[b]"
            raise refusal(what, hint)
        return backward

    @field_validator("cache")
    @classmethod
    def _unpacked(cls, cache: str | Pages | None, info: ValidationInfo) -> str | Pages | None:
        if isinstance(cache, str) and axis_order(info.data.get("layout", DEFAULT)).packed:
            why = f"cache: {cache} is of arrays [b, ...], and layout is {info.data['layout']}"
            raise refusal(why, "cache: {page: 16}, or leave cache out")
        return cache

    @field_validator("out_dtype")
    @classmethod
    def _other(cls, out_dtype: str | None, info: ValidationInfo) -> str | None:
        return None if out_dtype == info.data.get("dtype") else out_dtype

    @field_validator("precision")
    @classmethod
    def _rounded(cls, precision: str, info: ValidationInfo) -> str:
        if precision == "tf32" and info.data.get("dtype", "float32") != "float32":
            raise refusal(f"tf32 is of float32, and dtype is {info.data['dtype']}", "leave precision out")
        return precision

    @field_validator("outputs")
    @classmethod
    def _defined(cls, outputs: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        softmax, output = info.data.get("softmax"), info.data.get("output")
        of_rows = [word for word in outputs if not OUTPUTS[word].like_o]
        if of_rows and softmax is not None and not softmax.normalized:
            raise refusal(f"{of_rows[0]} is of a row's maximum and sum, and softmax: none has neither", "outputs: [o]")
        if "o_raw" in outputs and not output:
            raise refusal("o_raw is what o was before `output`, and there is none", "o itself, or output: an expression of o")
        if not info.data.get("backward"):
            return outputs
        needed = {"lse": softmax is not None and softmax.normalized, "o_raw": output}
        return tuple(word for word in OUTPUTS if word in outputs or needed.get(word))

    @field_validator("deterministic")
    @classmethod
    def _of_gradients(cls, deterministic: bool, info: ValidationInfo) -> bool:
        if deterministic and not info.data.get("backward", True):
            raise refusal("it is of the backward, and this kernel has none", "backward: true, or leave deterministic out")
        return deterministic

    @field_validator("params", "tensors")
    @classmethod
    def _differentiable(cls, given: tuple[Param | Tensor, ...], info: ValidationInfo) -> tuple[Param | Tensor, ...]:
        for one in given:
            if not one.grad:
                continue
            if not info.data.get("backward", True):
                raise refusal("a gradient is of the backward, and this kernel has none", "backward: true", within=(one.name, "grad"))
            if isinstance(one, Param) and one.type == "int":
                hint = f"write its default with a point, {one.default}.0, or leave grad out"
                raise refusal(f"{one.name} is an integer, which has no gradient", hint, within=(one.name, "grad"))
            if isinstance(one, Tensor) and one.dtype not in ATTENTION_DTYPES:
                raise refusal(
                    f"{one.name} is {one.dtype}, which has no gradient", "dtype: float32, or leave grad out", within=(one.name, "grad")
                )
        return given

    @field_validator("tensors", "let")
    @classmethod
    def _distinct(cls, given: tuple[Tensor | Let, ...], info: ValidationInfo) -> tuple[Tensor | Let, ...]:
        for one, kind in product(given, ("param", "tensor")):
            if any(one.name == other.name and one is not other for other in info.data.get(f"{kind}s", ())):
                what = "tensor" if isinstance(one, Tensor) else "let"
                raise refusal(f"{one.name!r} is a {kind} too", f"a {kind} and a {what} cannot share a name", within=(one.name, KEY))
        return given

    @field_validator("blocks")
    @classmethod
    def _listed(cls, blocks: Blocks | None, info: ValidationInfo) -> Blocks | None:
        if blocks is None:
            return None
        for kind in ("params", "let"):
            if any(blocks.lists == one.name for one in info.data.get(kind, ())):
                raise refusal(f"{blocks.lists!r} is among the {kind} too", "the array of lists has a name of its own", within=("lists",))
        wanted = blocks.array(geometry_of(info.data.get("cache"), axis_order(info.data.get("layout", DEFAULT)).packed).behind)
        for tensor in info.data.get("tensors", ()):
            fits = tensor.dtype == wanted.dtype and len(tensor.shape) == 4 and tensor.shape[1] in (wanted.shape[1], 1)
            if tensor.name == blocks.lists and not fits:
                axes_given, expected = (f"[{', '.join(map(str, shape))}]" for shape in (tensor.shape, wanted.shape))
                what = f"{blocks.lists} is {tensor.dtype} {axes_given} among the tensors"
                raise refusal(f"{what}, and lists are int32 {expected}", "say so there, or leave it out there", within=("lists",))
        return blocks

    @field_validator("tensors")
    @classmethod
    def _own_axes(cls, tensors: tuple[Tensor, ...], info: ValidationInfo) -> tuple[Tensor, ...]:
        taken = dict.fromkeys((p.name for p in info.data.get("params", ())), "param") | dict.fromkeys((t.name for t in tensors), "tensor")
        for tensor in tensors:
            for i, axis in enumerate(tensor.shape):
                if axes.named(axis) and axis in taken:
                    hint = "an axis is a number, a word of a call, a name of its own, or an expression of these"
                    raise refusal(f"{axis!r} is a {taken[str(axis)]}", hint, within=(tensor.name, "shape", i))
        return tensors

    @field_validator("tensors")
    @classmethod
    def _joined(cls, tensors: tuple[Tensor, ...], info: ValidationInfo) -> tuple[Tensor, ...]:
        geometry = geometry_of(info.data.get("cache"), axis_order(info.data.get("layout", DEFAULT)).packed)
        for tensor in tensors:
            if fault := geometry.fault(tensor.shape):
                hint = "packed sequences have [b, q_len] or [b, kv_len], which together are one axis, total_q or total_k"
                raise refusal(f"{tensor.name} {fault}", hint, within=(tensor.name, "shape"))
        return tensors


_MAPPINGS: dict[str | int, type[Closed]] = {
    "params": ParamKeys,
    "norm": NormKeys,
    "rotary": RotaryKeys,
    "head_dim": HeadDimKeys,
    "block": BlockKeys,
    "blocks": BlocksKeys,
    "cache": PagesKeys,
    "schedule": ScheduleKeys,
    "softmax": SoftmaxKeys,
    "tensors": TensorKeys,
}


def _examples(path: Path) -> dict[str, str]:
    model = _MAPPINGS[path[0]] if path else SpecKeys
    return {key: str((field.examples or [""])[0]) for key, field in model.model_fields.items()}


def validate(given: Mapping[str, Any], positions: Mapping[Path, Position]) -> dict[str, Any]:
    """The fields of a Spec. Raises SpecError for the first fault, at its position."""
    try:
        fields = dict(SpecKeys.model_validate(given))
        if blocks := fields["blocks"]:  # lists may be among the tensors too, and no expression reads them
            fields["tensors"] = tuple(tensor for tensor in fields["tensors"] if tensor.name != blocks.lists)
        return fields
    except ValidationError as error:
        raise spec_error(error, positions, _examples) from None


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the YAML form, for editors."""
    schema = SpecKeys.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "flashgen spec"}
