"""`append`: new keys and values become the last of their sequences in a cache, in pages or in one piece."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashgen import arch as arches
from flashgen.dtypes import ATTENTION_DTYPES
from flashgen.errors import CallError, did_you_mean
from flashgen.expr.meaning.embedding import turned
from flashgen.plan.appending import AppendPlan
from flashgen.runtime import alone
from flashgen.runtime.arguments import rows_first
from flashgen.runtime.arrays import FAMILIES, Layout, Like, liken
from flashgen.runtime.device import device
from flashgen.spec.layout import DEFAULT, LAYOUTS, ROWS_FIRST, AxisOrder, axis_order

Array = NDArray[Any]
CACHES = ("k_cache", "v_cache")
ROLES = ("k", "v", *CACHES)
AXES = {"kv_lens": 1, "block_table": 2, "cu_seqlens": 1, "cos": 2, "sin": 2}  # of the other arrays


def append(
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    kv_lens: Any,
    *,
    block_table: Any = None,
    cu_seqlens: Any = None,
    rotary: tuple[Any, Any] | None = None,
    interleaved: bool = False,
    layout: str = DEFAULT,
) -> None:
    """Writes k and v into caches, as the last keys of sequences that have `kv_lens` of them then: before the attention on the same lengths.

    >>> flashgen.append(k_pages, v_pages, k, v, kv_lens, block_table=block_table, rotary=(cos, sin))

    k, v: [B, n, Hk, D], S and H swapped for layout bhsd; for layout thd [tokens, Hk, D], where `cu_seqlens`, int32 [B + 1], says where the
    new tokens of each sequence begin. k_cache, v_cache: [B, S, Hk, D], or with a `block_table`, int32 [B, columns], [pages, page, Hk, D],
    S and H swapped for bhsd. kv_lens: int32 [B]. `rotary`: cos and sin, float32 [positions, R / 2]: the first R columns of k are turned
    by the angles of their position (beyond the last, those of the last), columns 2i and 2i + 1 if `interleaved`, else i and i + R / 2.
    All of NumPy, CuPy or PyTorch, on one device. A token without a place, as beyond the pages that there are, or of no sequence, is left
    out. Raises CallError where arrays do not fit, BackendError, CompileError. Source of the embedding: Su et al., 2104.09864.
    """
    named = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "kv_lens": kv_lens}
    named |= {"block_table": block_table, "cu_seqlens": cu_seqlens} | _angles(rotary)
    arrays = {name: x for name, x in named.items() if x is not None}
    if layout not in list(LAYOUTS):
        raise CallError(f"unknown layout {layout!r}: {did_you_mean(str(layout), LAYOUTS)}")
    call = planned(arrays, layout, interleaved)
    if not call.scalars["tokens"]:
        return
    if call.on is None:
        _write(call.plan, {name: FAMILIES[type(x)].to_numpy(x) for name, x in arrays.items()}, call.scalars, layout)
    else:
        alone.launch(call.plan, arrays, call.strides, call.scalars, call.scalars["tokens"], call.on)


def _angles(rotary: Any) -> dict[str, Any]:
    """Cosines and sines by name. Raises CallError."""
    if rotary is None:
        return {}
    if not isinstance(rotary, (tuple, list)) or len(rotary) != 2 or any(x is None for x in rotary):
        given = f"{[type(x).__name__ for x in rotary]}" if isinstance(rotary, (tuple, list)) else f"a {type(rotary).__name__}"
        raise CallError(f"rotary is {given}: expected two arrays, (cos, sin), float32 [positions, columns / 2]")
    return {"cos": rotary[0], "sin": rotary[1]}


class Planned(NamedTuple):
    """The kernel of a call, and what it is given besides addresses: strides of arrays as [B, S, H, D], in elements, and sizes."""

    plan: AppendPlan
    strides: dict[str, tuple[int, ...]]
    scalars: dict[str, int]
    on: int | None  # the GPU; None: the host


def planned(arrays: Mapping[str, Any], layout: str, interleaved: bool) -> Planned:
    """The plan that serves these arrays, by the names of arguments. Raises CallError."""
    for name, x in arrays.items():
        if FAMILIES[type(x)] is None:
            raise CallError(f"{name} is a {type(x).__name__}: append takes arrays of NumPy, CuPy and PyTorch, and writes to two of them")
        if name in CACHES and isinstance(x, np.ndarray) and not x.flags.writeable:
            raise CallError(f"{name} is read-only: append writes to it")
    return _planned(tuple([liken(x, name) for name, x in arrays.items()]), layout, interleaved)


@lru_cache(512)
def _planned(likes: tuple[Like, ...], layout: str, interleaved: bool) -> Planned:
    """The plan for arrays like these, made once. Raises CallError."""
    layouts = {like.name: like.layout for like in likes}
    _check_layouts(layouts, layout)
    by_rows = {name: rows_first(layouts[name], _order(name, layout).name) for name in ROLES}
    on = layouts["k"].device
    plan = AppendPlan(
        arch=arches.DEFAULT if on is None else device(on).arch.name,
        dtype=layouts["k"].dtype,
        qk=layouts["k"].shape[-1],
        v=layouts["v"].shape[-1],
        rotary=2 * layouts["cos"].shape[1] if "cos" in layouts else 0,
        interleaved=interleaved,
        packed="cu_seqlens" in layouts,
        paged="block_table" in layouts,
    )
    return Planned(plan, {name: x.strides for name, x in by_rows.items()}, _checked(layouts, by_rows, layout), on)


def _order(name: str, layout: str) -> AxisOrder:
    """The axes of new tokens, and of caches, which have sequences or pages in any layout."""
    order = axis_order(layout)
    return axis_order(ROWS_FIRST) if name in CACHES and order.packed else order


def _check_layouts(found: Mapping[str, Layout], layout: str) -> None:
    """Raises CallError for arrays that are not of the right number of axes, kind and place."""
    if ("cu_seqlens" in found) != axis_order(layout).packed:
        given = "given" if "cu_seqlens" in found else "missing"
        raise CallError(f"layout is {layout}, and cu_seqlens is {given}: it goes with sequences one behind the other")
    for name, x in found.items():
        axes = len(_order(name, layout).axes) if name in ROLES else AXES[name]
        if len(x.shape) != axes:
            raise CallError(f"{name} has {len(x.shape)} axes, shape {list(x.shape)}: expected {axes}")
        if name not in ROLES and not x.contiguous:
            raise CallError(f"{name} has strides {x.strides}: it has to be contiguous")
        of_others = (found["k"].dtype,) if name in ROLES else ("float32",) if name in ("cos", "sin") else ("int32",)
        wanted = ATTENTION_DTYPES if name == "k" else of_others
        if x.dtype not in wanted:
            raise CallError(f"{name} is {x.dtype}: expected {', '.join(wanted)}")
        if x.device != found["k"].device:
            raise CallError(f"{name} lies elsewhere than k: all arrays of a call lie on one device")


def _checked(layouts: Mapping[str, Layout], by_rows: Mapping[str, Layout], layout: str) -> dict[str, int]:
    """The sizes of a launch. Raises CallError for shapes that do not fit."""
    packed = axis_order(layout).packed
    if packed and not layouts["cu_seqlens"].shape[0]:
        raise CallError("cu_seqlens has shape [0]: expected [B + 1], where sequences begin, and where the last ends")
    given, rows, heads, columns = by_rows["k"].shape
    batch = layouts["cu_seqlens"].shape[0] - 1 if packed else given
    pages, page = by_rows["k_cache"].shape[:2]
    table = layouts["block_table"].shape if "block_table" in layouts else (batch, 1)
    wanted = {
        "v": (given, rows, heads, by_rows["v"].shape[3]),
        "k_cache": (pages if "block_table" in layouts else batch, page, heads, columns),
        "v_cache": (pages if "block_table" in layouts else batch, page, heads, by_rows["v"].shape[3]),
    }
    found: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [(name, by_rows[name].shape, shape) for name, shape in wanted.items()]
    found += [("kv_lens", layouts["kv_lens"].shape, (batch,)), ("block_table", table, (batch, table[1]))]
    if "cos" in layouts:
        cos = positions, columns_of_cos = layouts["cos"].shape
        found += [("cos", cos, (max(1, positions), min(columns_of_cos, columns // 2))), ("sin", layouts["sin"].shape, cos)]
    for name, shape, expected in found:
        if shape != expected:
            what = ", as [B, S, H, D]," if name in ROLES else ""
            raise CallError(f"{name} has shape {list(shape)}{what} beside k {list(layouts['k'].shape)}: expected {list(expected)}")
    if batch < 1 and given * rows:
        raise CallError("cu_seqlens has no sequence, and k has tokens")
    sizes = {"tokens": given * rows, "each": rows, "batch": batch, "heads": heads, "pages": pages, "page": page, "columns": table[1]}
    return sizes | {"positions": layouts["cos"].shape[0] if "cos" in layouts else 0}


def _write(plan: AppendPlan, arrays: Mapping[str, Array], scalars: Mapping[str, int], layout: str) -> None:
    """The same in NumPy."""
    pages, rows, positions = _places(arrays, scalars)
    there = pages >= 0
    k, v = (_order(name, layout).by_rows(arrays[name]).reshape(scalars["tokens"], scalars["heads"], -1)[there] for name in ("k", "v"))
    if plan.rotary:
        k, angles = k.astype(np.float32), np.minimum(positions[there], scalars["positions"] - 1)
        cos, sin = (arrays[name][angles][:, None] for name in ("cos", "sin"))
        k = turned(k, cos, sin, (plan.step, plan.distance))
    for name, new in (("k_cache", k), ("v_cache", v)):
        cache = arrays[name].transpose(_order(name, layout).to_rows_first)
        cache[pages[there], rows[there]] = new.astype(cache.dtype)


def _places(arrays: Mapping[str, Array], scalars: Mapping[str, int]) -> tuple[Array, Array, Array]:
    """The page of each token, -1 where it has none, its row in that, and its position among the keys of its sequence."""
    tokens, page, columns = scalars["tokens"], scalars["page"], scalars["columns"]
    pages, positions = np.full(tokens, -1), np.zeros(tokens, np.int64)
    ends = np.clip(arrays["cu_seqlens"], 0, tokens) if "cu_seqlens" in arrays else np.arange(scalars["batch"] + 1) * scalars["each"]
    for b, (begin, end) in enumerate(pairwise(ends.tolist())):
        own = np.clip(arrays["kv_lens"][b], 0, columns * page) - end + np.arange(begin, max(begin, end))
        own_pages = arrays["block_table"][b] if "block_table" in arrays else np.array([b])
        found = np.where(own >= 0, own_pages[np.maximum(own, 0) // page] if columns else -1, -1)
        pages[begin:end], positions[begin:end] = np.where((found >= 0) & (found < scalars["pages"]), found, -1), own
    return pages, positions % max(1, page), positions
