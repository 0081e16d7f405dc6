"""`attention`: a call without a spec, which it writes from what it is given."""

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from flashgen.api import Attention, default_arch
from flashgen.dtypes import ATTENTION_DTYPES, TENSOR_DTYPES
from flashgen.errors import CallError, did_you_mean
from flashgen.expr.language.functions import SHORTENED
from flashgen.expr.language.identifiers import Names
from flashgen.expr.language.nodes import V_IDX, Name, Node
from flashgen.expr.language.reads import EXTENT_OF, indices, over
from flashgen.expr.language.scope import words as language_words
from flashgen.expr.prove.integers import Integers, of_language
from flashgen.further import WORDS, embedded, expressions, further, keys, shape
from flashgen.runtime import autograd
from flashgen.runtime.arguments import checked_number, rows_first
from flashgen.runtime.arrays import Layout, adopt, contiguous_strides, liken, name_of
from flashgen.runtime.habits import HABITS, PACKED, unknown
from flashgen.runtime.tensors import shape_text
from flashgen.spec import Spec
from flashgen.spec.geometry import CACHES
from flashgen.spec.layout import DEFAULT, LAYOUTS, LETTERS, axis_order
from flashgen.texts import as_texts


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: str | Callable[..., Any] = "causal",
    *,
    score: str | Callable[..., Any] = "s",
    scale: str | float | None = None,
    weight: str | None = None,
    output: str | None = None,
    let: Mapping[str, str] | None = None,
    norm: Mapping[str, Any] | None = None,
    rotary: Mapping[str, Any] | None = None,
    layout: str = DEFAULT,
    lse: bool = False,
    out: Any = None,
    **values: Any,
) -> Any:
    """o = softmax(score(scale * q k^T) where mask) v, compiled at the first call with these head dims, dtype and expressions.

    >>> attention(q, k, v, "causal & window(255, 0)")
    >>> attention(q, k, v, score="softcap * tanh(s / softcap)", softcap=50.0)
    >>> o, lse = attention(q, k, v, score="s + slopes[h] * (kv_idx - q_idx)", slopes=slopes, lse=True)

    q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv], o: [B, Sq, Hq, Dv], S and H swapped for layout bhsd; lse: [B, Hq, Sq]
    float32, natural log. `values`: what the expressions name, numbers and arrays. mask and score may be functions, as `trace` takes them.
    weight, output, let, norm and rotary are what the keys of a spec are; those two name arrays of `values`. Tensors of PyTorch that
    require gradients get them. Raises SpecError, CallError, PlanError, BackendError.
    """
    mask, score, values = as_texts(mask, score, values)
    if scale is not None and not isinstance(scale, str):
        scale = _as_param(scale, values, mask, score)
    more = further(weight, output, let, norm, rotary)
    sketch = Sketch(mask=mask, score=score, scale=scale, layout=layout, outputs=("o", "lse") if lse else ("o",), more=more)
    return run(sketch, q, k, v, values, out)


class Sketch(NamedTuple):
    """The part of a spec that a call without one says; dtype, head dims and shapes follow from its arrays."""

    mask: str
    score: str
    scale: str | None
    layout: str
    outputs: tuple[str, ...]
    sink: str | None = None
    cache: str | None = None
    more: str = ""  # further keys, as `flashgen.further` writes them
    sought: tuple[str, ...] | None = None  # values that have gradients beside q, k and v; None: nothing has

    @property
    def words(self) -> frozenset[str]:
        """The words that the expressions name, and lengths of sequences."""
        named = _words(self.mask, self.score, self.scale, self.sink, *expressions(self.more))
        return named | self.lengths | embedded(self.more).keys()

    @property
    def lengths(self) -> frozenset[str]:
        """The lengths of sequences among the values of a call."""
        return frozenset(name for name, _ in CACHES[self.cache].lengths) if self.cache else frozenset()


def run(sketch: Sketch, q: Any, k: Any, v: Any, values: Mapping[str, Any], out: Any = None) -> Any:
    """The outputs of a call. Raises SpecError, CallError, PlanError, BackendError."""
    if not autograd.wanted(q, k, v, *values.values()):
        return attention_of(sketch, (q, k, v), values)(q, k, v, out=out, **values)
    sought = tuple([name for name, x in values.items() if autograd.requires(x)]) if values else ()
    results = attention_of(sketch, (q, k, v), values, sought).differentiated(q, k, v, values, out)
    return results[: len(sketch.outputs)] if len(sketch.outputs) > 1 else results[0]


def attention_of(sketch: Sketch, qkv: tuple[Any, Any, Any], values: Mapping[str, Any], sought: tuple[str, ...] | None = None) -> Attention:
    """The attention of a call. `sought`: as a Sketch has it; None: as this one has it. Raises CallError."""
    return _for(sketch, tuple(map(_array, qkv, "qkv")), _kinds(values, sketch) if values else (), sought)


def _as_param(scale: Any, values: dict[str, Any], *texts: str) -> str:
    """The name of a param that holds the scale, so that one compilation serves every number. Raises CallError."""
    if not isinstance(scale, int | float | np.number) and getattr(scale, "shape", None) != ():
        raise CallError(f"scale is a {type(scale).__name__}: expected a number, or an expression of d and params, as '1/sqrt(d)'")
    name = "given_scale"
    while name in values or name in _words(*texts):
        name = f"a_{name}"
    number = checked_number("scale", "float", scale)
    values[name] = scale if getattr(scale, "requires_grad", False) else number
    return name


@functools.lru_cache(1024)
def _words(*texts: str | None) -> frozenset[str]:
    """The words that expressions name."""
    return frozenset(word for text in texts if text for word in re.findall(r"[A-Za-z_]\w*", text))


def check_words(sketch: Sketch, names: Collection[str]) -> None:
    """Raises CallError for a keyword that no expression names."""
    words = sketch.words
    for name in names:
        if name not in words or (name in language_words() and name in HABITS and name not in sketch.lengths):
            raise unknown(name, [*sorted(words - language_words() - set(names)), "mask", "score", "scale", *WORDS, "layout", "lse", "out"])


def _kinds(values: Mapping[str, Any], sketch: Sketch) -> tuple[tuple[str, "_Kind"], ...]:
    """The declaration of each keyword, by name. Raises CallError for one that no expression names."""
    check_words(sketch, values)
    sized = not sketch.words.isdisjoint(SHORTENED)
    return tuple([(name, _kind(name, value, sized)) for name, value in sorted(values.items())])


Number = tuple[int | float, str]  # a default, and its type
_Array = tuple[tuple[int, ...], Any]  # a shape, and a dtype as the library has it
_Kind = Number | _Array


def _kind(name: str, value: Any, sized: bool) -> _Kind:
    """The declaration that a keyword stands for: a default of the value's type and sign, and that type; or what the array is like.

    `sized`: the default also is of the value's size, by which tanh and sigmoid take their form. An array without axes is the number that
    it holds.
    """
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float)):  # a union takes three times as long
        return number(value, sized)
    return _array(value, name)


def _array(x: Any, name: str) -> _Array:
    """All that a spec says of an array. Raises CallError for what is none."""
    x = adopt(x, name)
    try:
        return x.shape, x.dtype
    except RuntimeError:  # of a tensor that is several, which this refuses
        return liken(x, name).key[:3:2]


def _layout(array: _Array) -> Layout:
    shape = tuple(array[0])
    return Layout(shape, contiguous_strides(shape), name_of(array[1]), None, 0)


def number(value: int | float, sized: bool = False) -> Number:
    """The declaration of a number, as `_kind` has it."""
    default = (int(value > 0) - int(value < 0)) * (_size(value) if sized else 1)
    return (int(default), "int") if isinstance(value, int) else (float(default), "float")


def _size(value: int | float) -> float:
    """The power of 4 at most a factor of 2 away, of 1 at least for an integer, as far as float32 and 32 bits hold it."""
    if value == 0 or not math.isfinite(value):
        return 1.0
    least, most = (0, 15) if isinstance(value, int) else (-63, 63)
    return 4.0 ** min(most, max(least, round(math.log2(abs(value)) / 2)))


@functools.lru_cache(1024)
def _for(sketch: Sketch, qkv: tuple[_Array, ...], kinds: tuple[tuple[str, _Kind], ...], sought: tuple[str, ...] | None) -> Attention:
    """The attention for q, k, v and keywords like these. Raises CallError."""
    if all(len(shape) == 4 for shape, _ in qkv) and not any(isinstance(kind[0], tuple) for _, kind in kinds):
        qkv = tuple([((1, 1, 1, shape[3]), dtype) for shape, dtype in qkv])  # no array has their lengths: a cache may grow
    return _made(sketch, qkv, kinds, sought)


@functools.lru_cache(1024)
def _made(sketch: Sketch, qkv: tuple[_Array, ...], kinds: tuple[tuple[str, _Kind], ...], sought: tuple[str, ...] | None) -> Attention:
    """The attention for q, k, v and keywords like these, made once. Raises CallError."""
    sketch = sketch if sought is None else sketch._replace(sought=sought)
    declared = {name: _layout(kind) if isinstance(kind[0], tuple) else kind for name, kind in kinds}
    return compiled(autograd.differentiable(spec_of(sketch, dict(zip("qkv", map(_layout, qkv), strict=True)), declared), default_arch()))


def spec_of(sketch: Sketch, layouts: Mapping[str, Layout], values: Mapping[str, Number | Layout]) -> Spec:
    """The spec of a call without one. `layouts`: of q, k and v; `values`: what each keyword is. Sizes may be symbols of a compiler.

    Raises CallError, SpecError.
    """
    dims, axes = _sizes(sketch.layout, layouts)
    values = {name: kind for name, kind in values.items() if name not in sketch.lengths}
    read = {name: kind for name, kind in values.items() if isinstance(kind, Layout)}
    dtypes = {name: _dtype(name, array) for name, array in read.items()}
    shapes: dict[str, tuple[str | int, ...]] = {name: ("kv_len",) * len(array.shape) for name, array in read.items()}
    known = {name: shape(rows, read[name].shape) for name, rows in embedded(sketch.more).items() if name in read}

    def spec(shapes: Mapping[str, tuple[str | int, ...]]) -> Spec:
        declared = tuple([(name, (shapes[name], dtypes[name]) if isinstance(kind, Layout) else kind) for name, kind in values.items()])
        return _spec(sketch, layouts["q"].dtype, dims, declared)

    if not read:
        return spec({})
    reads, free = indices(spec(shapes | known)), Names(values)
    return spec({name: known.get(name) or _shape(array, axes, reads[name], free) for name, array in read.items()})


def _sizes(layout: str, layouts: Mapping[str, Layout]) -> tuple[tuple[int, int], dict[str, int]]:
    """The head dims of q and k, and of v; and the extents of axes by their words. Raises CallError."""
    if layout not in LAYOUTS:
        raise CallError(f"layout is {layout!r}: {did_you_mean(str(layout).lower(), LAYOUTS)} {LETTERS}")
    if axis_order(layout).packed:
        raise CallError(f"layout is {layout}: {PACKED}")
    dtype = layouts["q"].dtype
    for name, found in layouts.items():
        if len(found.shape) != 4:
            expected = shape_text(tuple(axis_order(layout).axes.upper()))
            raise CallError(f"{name} has {len(found.shape)} axes, shape {list(found.shape)}: expected 4, {expected}")
    if dtype not in ATTENTION_DTYPES:
        takes = f"attention takes {', '.join(ATTENTION_DTYPES)}"
        raise CallError(f"q is {dtype}: {takes}. Cast it, q.astype('float32') (PyTorch: q.to(torch.float32))")
    for name in "kv":
        if (other := layouts[name].dtype) != dtype:
            raise CallError(f"{name} is {other}, beside q {dtype}: cast it, {name}.astype({dtype!r}) (PyTorch: {name}.to(torch.{dtype}))")
    b, q_len, heads, qk = rows_first(layouts["q"], layout).shape
    _, kv_len, kv_heads, v_columns = rows_first(layouts["v"], layout).shape
    return (int(qk), int(v_columns)), {"b": b, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len}


def _dtype(name: str, layout: Layout) -> str:
    """The dtype that a spec declares for such an array: its own, or one of its kind, where another width wants a cast."""
    if layout.dtype in TENSOR_DTYPES:
        return layout.dtype
    kinds = {"bool": "bool", "int": "int32", "uint": "int32", "float": "float32", "bfloat": "float32"}
    kind = layout.dtype.rstrip("0123456789")
    if kind not in kinds:
        raise CallError(f"{name} is {layout.dtype}: expressions read arrays of {', '.join(TENSOR_DTYPES)}")
    return kinds[kind]


def _shape(layout: Layout, axes: Mapping[str, int], read: tuple[tuple[Node, ...], ...], free: Names) -> tuple[str | int, ...]:
    """The shape that a spec declares for such an array; an axis that an index runs over has the word of its extent, another whose
    indices no number of the text bounds, below 2^16, a name, so that one kernel serves every extent."""
    integers = Integers(of_language)

    def axis(n: int, found: tuple[Node, ...]) -> str | int:
        exact = [EXTENT_OF[index] for index in over(found)]
        if exact:
            return next((word for word in exact if axes[word] == n), exact[0])
        if Name(V_IDX, "int") in found or all(integers.extent(index)[1] < 2**16 for index in found):
            return int(n)
        return next((word for word, m in axes.items() if m == n), None) or free.fresh("n")

    return tuple(axis(n, found) for n, found in zip(layout.shape, read, strict=True))


@functools.lru_cache(256)
def compiled(spec: Spec) -> Attention:
    """The attention of a spec, made once."""
    return Attention(spec)


@functools.lru_cache(256)
def _spec(sketch: Sketch, dtype: str, dims: tuple[int, int], declared: tuple[tuple[str, Any], ...]) -> Spec:
    sought = sketch.sought or ()
    numbers = {name: kind for name, kind in declared if not isinstance(kind[0], tuple)}
    arrays = {name: kind for name, kind in declared if isinstance(kind[0], tuple)}
    return Spec(
        dtype=dtype,
        head_dim={"qk": dims[0], "v": dims[1]},
        mask=sketch.mask,
        score=sketch.score,
        scale=sketch.scale,
        layout=sketch.layout,
        outputs=list(sketch.outputs),
        softmax={"sink": sketch.sink} if sketch.sink else None,
        cache=sketch.cache,
        backward=sketch.sought is not None or None,
        params={name: {"default": default, "grad": name in sought} for name, (default, _) in numbers.items()},
        tensors={name: {"shape": list(shape), "dtype": dtype, "grad": name in sought} for name, (shape, dtype) in arrays.items()},
        **keys(sketch.more),
    )
