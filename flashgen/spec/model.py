"""The frozen form of a spec. Every way to make one goes through the same checks (flashgen.spec.schema)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashgen.dtypes import DType, by_name, float32_text
from flashgen.errors import Position
from flashgen.spec.embedding import ROLES, Angles, Norm, Rotary
from flashgen.spec.geometry import Geometry, Pages, geometry_of
from flashgen.spec.layout import ROWS_FIRST, AxisOrder, axis_order
from flashgen.spec.outputs import OUTPUTS
from flashgen.spec.parts import Block, HeadDim, Let, Param
from flashgen.spec.softmax import SCHEDULES, SOFTMAXES, Schedule, Softmax
from flashgen.spec.tensors import MOST, Blocks, Lengths, Lists, Tensor

Path = tuple[str | int, ...]  # of a value: ("params", "softcap")
KEY = "[key]"  # last in the path of a key rather than its value


@dataclass(frozen=True, init=False)
class Spec:
    """An attention variant.

    >>> spec = Spec(head_dim=128, dtype="bfloat16", score="softcap * tanh(s / softcap)", params={"softcap": 50.0})
    >>> spec.head_dim, spec.mask
    (HeadDim(qk=128, v=128), 'full')

    Keywords are the keys of the YAML form and take its values, or those of another Spec; None stands for the default. Raises SpecError.
    """

    name: str
    dtype: str
    out_dtype: str | None  # of o; None: that of q, k and v
    precision: str  # of float32 products: ieee, tf32
    head_dim: HeadDim
    group: int | None  # query heads per key/value head; None: as the arrays have it
    layout: str  # see flashgen.spec.layout
    cache: str | Pages | None  # k and v have place for more keys than a sequence has: contiguous, or in pages; None: they have as many
    scale: str | None  # an expression of d, the head dim of q and k; None: 1/sqrt(d)
    norm: Norm | None  # of rows of q and k, before anything else
    rotary: Rotary | None  # of q and k, after the norm
    score: str
    mask: str
    softmax: Softmax
    weight: str | None  # a factor of what a key's value counts for, after the softmax: an expression without s; None: 1
    output: str | None  # what o becomes before it is written: an expression of o and of its row and column; None: o
    backward: bool  # the kernel has gradients, and lse is among the outputs
    deterministic: bool  # gradients are the same bits in every run
    params: tuple[Param, ...]
    tensors: tuple[Tensor, ...]
    let: tuple[Let, ...]
    outputs: tuple[str, ...]
    block: Block
    blocks: Blocks | None  # of keys that a call lists for blocks of queries; None: all
    stages: int | None
    warps: int | None
    schedule: Schedule
    split: str | int  # of a query tile's keys among blocks: invariant, auto, or a number of shares
    positions: Mapping[Path, Position] = dataclasses.field(init=False, repr=False, compare=False)

    def __init__(self, **given: Any) -> None:
        self._fill({key: _python(_plain(value)) for key, value in given.items() if value is not None}, {})

    @classmethod
    def located(cls, given: Mapping[str, Any], positions: Mapping[Path, Position]) -> "Spec":
        """The spec that a file gives, where `positions` tells the position of each value, and of each key (path + KEY)."""
        spec = cls.__new__(cls)
        spec._fill(given, positions)
        return spec

    def _fill(self, given: Mapping[str, Any], positions: Mapping[Path, Position]) -> None:
        from flashgen.spec.schema import validate  # pydantic: as long to import as everything else

        for name, value in {**validate(given, positions), "positions": positions}.items():
            object.__setattr__(self, name, value)

    @property
    def element(self) -> DType:
        """The row of `dtype`."""
        return by_name(self.dtype)

    @property
    def native(self) -> bool:
        """True if products take q, k and v as they are."""
        return self.element.operand == "native"

    @property
    def out_element(self) -> DType:
        """The row of the dtype of o."""
        return by_name(self.out_dtype or self.dtype)

    def output_element(self, name: str) -> DType:
        """The row of the dtype of an output."""
        dtype = OUTPUTS[name].dtype
        return by_name(dtype) if dtype else self.out_element

    @property
    def kept(self) -> str:
        """The output that a backward takes as o: what the attention itself gave."""
        return "o_raw" if "o_raw" in self.outputs else "o"

    @property
    def exact(self) -> bool:
        """True if functions of the score are CUDA's, right to float32, and not the special function unit's."""
        return self.dtype == "float32" and self.precision == "ieee"

    @property
    def order(self) -> AxisOrder:
        """The row of `layout`."""
        return axis_order(self.layout)

    @property
    def page(self) -> int:
        """The keys of a page; 0: k and v are not in pages."""
        return self.cache.page if isinstance(self.cache, Pages) else 0

    def layout_of(self, role: str) -> str:
        """The layout of q, k, v, o or a gradient: of pages, which take the place of sequences, k and v have all axes."""
        return ROWS_FIRST if self.page and role in ("k", "v") and self.order.packed else self.layout

    def order_of(self, role: str) -> AxisOrder:
        """The row of that layout."""
        return axis_order(self.layout_of(role))

    @property
    def embedded(self) -> tuple[str, ...]:
        """The roles, of q and k, that a norm or a rotary embedding changes before products."""
        found = {role for each in (self.norm, self.rotary) if each for role in each.of}
        return tuple(role for role in ROLES if role in found)

    def norm_of(self, role: str) -> Norm | None:
        """The norm of rows of q or of k; None: they have none."""
        return self.norm if self.norm and role in self.norm.of else None

    def rotary_of(self, role: str) -> Rotary | None:
        """The rotary embedding of rows of q or of k; None: they have none."""
        return self.rotary if self.rotary and role in self.rotary.of else None

    @property
    def geometry(self) -> Geometry:
        """The row of how its sequences lie in arrays."""
        return geometry_of(self.cache, self.order.packed)

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """The arrays of a call besides q, k, v and outputs: those of the expressions, the lengths of sequences, lists of blocks."""
        lengths = (Lengths(name=name, shape=axes, dtype="int32") for name, axes in self.geometry.lengths)
        return (*map(self.given, self.tensors), *lengths, *([self.lists] if self.lists else []))

    @property
    def lists(self) -> Lists | None:
        """The array of a call that lists blocks of keys."""
        return self.blocks.array(self.geometry.behind) if self.blocks else None

    @property
    def sizing(self) -> tuple[str, ...]:
        """The names of the arrays whose shapes tell sizes of a call, besides q and k: lengths, and lists of numbers of blocks."""
        listed = (self.lists.name,) if self.lists and self.lists.shape[-1] == MOST else ()
        return (*(name for name, _ in self.geometry.lengths), *listed)

    def given(self, tensor: Tensor) -> Tensor:
        """A tensor as a call gives it: of packed sequences b and a length are one axis, total_q or total_k."""
        at = self.geometry.joined(tensor.shape)
        return tensor if at is None else dataclasses.replace(tensor, shape=tensor.shape[:at] + tensor.shape[at + 1 :])

    @property
    def with_grad(self) -> "tuple[Tensor | Param, ...]":
        """The tensors, then the params, whose gradients the backward gives after those of q, k and v."""
        return (*(tensor for tensor in self.tensors if tensor.grad), *(param for param in self.params if param.grad))

    def position(self, path: str) -> Position:
        """The position of a key's value: `mask`, `params.softcap`. Without a file, the value itself stands for it."""
        text: Any = self
        for name in path.split("."):
            text = {one.name: one for one in text}.get(name) if isinstance(text, tuple) else getattr(text, name, None)
        text = text.text if isinstance(text, Let) else text
        position = self.positions.get(tuple(path.split(".")))
        return position.shift(0) if position else Position(f"<{path}>", 1, 1, text if isinstance(text, str) else path)

    def axis_position(self, tensor: str, axis: int, text: str) -> Position:
        """The position of an axis of a tensor."""
        place = self.positions.get(("tensors", tensor, "shape", axis))
        return place.shift(0) if place else Position(f"<tensors.{tensor}.shape>", 1, 1, text)

    def name_position(self, key: str, name: str) -> Position:
        """The position of the name of a param, a tensor or a let: `name_position("params", "softcap")`."""
        return self.positions.get((key, name, KEY)) or Position(f"<{key}>", 1, 1, name)

    def to_json(self) -> dict[str, Any]:
        """The spec as YAML would give it: `Spec(**spec.to_json()) == spec`."""
        precision = None if self.precision == "ieee" else self.precision
        split = None if self.split == "invariant" else self.split
        others = ("out_dtype", "group", "scale", "weight", "output", "stages", "warps")
        in_full = {
            "cache": _plain(self.cache),
            "norm": _plain(self.norm),
            "rotary": _plain(self.rotary),
            "blocks": vars(self.blocks) if self.blocks else None,
        }
        optional = {"precision": precision, "split": split, **in_full, **{key: getattr(self, key) for key in others}}
        plain = {key: _plain(getattr(self, key)) for key in ("softmax", "params", "tensors", "head_dim", "block", "schedule")}
        texts = {key: getattr(self, key) for key in ("name", "dtype", "layout", "score", "mask")}
        let = {"let": _plain(self.let)} if self.let else {}
        flags = {key: True for key in ("backward", "deterministic") if getattr(self, key)}
        return {**texts, **plain, "outputs": list(self.outputs), **{k: v for k, v in optional.items() if v is not None}, **flags, **let}


def _plain(value: Any) -> Any:
    """A field's value in the form that YAML gives."""
    match value:
        case Schedule():
            name = next((name for name, schedule in SCHEDULES.items() if schedule == value), None)
            pinned = _pinned(value) | ({"rescale": {"lazy": value.threshold}} if value.threshold is not None else {})
            return name or {k: v for k, v in pinned.items() if k != "threshold"}
        case Softmax():
            return next((name for name, softmax in SOFTMAXES.items() if softmax == value), {"sink": value.sink})
        case Block():
            return _pinned(value) or "auto"
        case Norm() | Rotary() | Angles():
            return {key: _of_embedding(x) for key, x in _pinned(value).items() if key != "pairs"}
        case HeadDim() | Pages():
            return _pinned(value)
        case (Param(), *_):
            return {p.name: _of_param(p) for p in value}
        case (Tensor(), *_):
            return {t.name: {"shape": list(t.shape), "dtype": t.dtype} | ({"grad": True} if t.grad else {}) for t in value}
        case (Let(), *_):
            return {one.name: one.text for one in value}
        case ():
            return {}
    return value


def _of_embedding(value: Any) -> Any:
    match value:
        case float():
            return float(float32_text(value))
        case tuple():
            return list(value)
    return _plain(value)


def _of_param(param: Param) -> Any:
    """Its default, or with what else is said of it a mapping."""
    numbers = {key: getattr(param, key) for key in ("default", "min", "max") if getattr(param, key) is not None}
    keys = {key: x if isinstance(x, int) else float(float32_text(x)) for key, x in numbers.items()} | ({"grad": True} if param.grad else {})
    return keys if len(keys) > 1 else keys["default"]


def _python(value: Any) -> Any:
    """A value with NumPy's scalars as Python's."""
    match value:
        case np.generic() | np.ndarray(shape=()):
            return value.item()
        case dict():
            return {key: _python(one) for key, one in value.items()}
        case list() | tuple():
            return [_python(one) for one in value]
    return value


def _pinned(value: Any) -> dict[str, Any]:
    return {k: v for k, v in vars(value).items() if v is not None}
