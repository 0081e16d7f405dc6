"""Masks whose key tiles follow from data or from formulas that ranges do not tell, for tests and benchmarks of skipped tiles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.spec import Spec

Array = NDArray[Any]
Drawn = Callable[[np.random.RandomState, int, int], Array]  # random, sequence length, query heads
NEAR = "abs(kv_idx {of} {w} - min(max(q_idx {of} {w}, {r}), {last} - {r})) <= {r}"


@dataclass(frozen=True)
class Row:
    """A mask, what it reads, and how such arrays are drawn."""

    mask: str
    params: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, tuple[list[str | int], str, Drawn]] = field(default_factory=dict)  # axes, dtype, arrays

    def spec(self, head_dim: int, dtype: str = "bfloat16", **more: Any) -> Spec:
        """The spec with this mask."""
        tensors = {name: {"shape": shape, "dtype": kind} for name, (shape, kind, _) in self.tensors.items()}
        return Spec(head_dim=head_dim, dtype=dtype, mask=self.mask, params=dict(self.params), tensors=tensors, **more)

    def arrays(self, length: int, heads: int, seed: int = 0) -> dict[str, Array]:
        """The arrays of a call with one sequence, by name; the same for the same seed."""
        random = np.random.RandomState(seed)
        return {name: drawn(random, length, heads).astype(kind) for name, (_, kind, drawn) in self.tensors.items()}


def _documents(_: np.random.RandomState, n: int, __: int) -> Array:
    found: Array = np.searchsorted(np.array([0.2, 0.5, 0.6]) * n, np.arange(n), "right")[None]
    return found


def _prefixes(random: np.random.RandomState, n: int, heads: int) -> Array:
    """True in the first third of each document."""
    ids = _documents(random, n, heads)[0]
    begin = np.searchsorted(ids, ids)
    found: Array = np.arange(n) - begin < np.bincount(ids)[ids] / 3
    return found[None]


def _images(random: np.random.RandomState, n: int, _: int) -> Array:
    """0 in text, and 1, 2, ... in six images of a sixteenth of the sequence each."""
    ids = np.zeros((1, n), np.int32)
    for number, begin in enumerate(np.linspace(n // 20, n - n // 8, 6) + random.randint(0, n // 40, 6)):
        ids[0, int(begin) : int(begin) + n // 16] = 1 + number
    return ids


def _rolled(_: np.random.RandomState, n: int, __: int) -> Array:
    """The positions of keys that a rolling cache holds: the newest have overwritten the oldest."""
    return np.roll(np.arange(n), n // 3)[None]


def _ascending(random: np.random.RandomState, n: int, _: int) -> Array:
    return np.sort(random.random_sample((1, n)) * n, axis=-1)


def _columns(share: float) -> Drawn:
    """True for a share of the keys, in clusters of 64 that each head has of its own."""
    return lambda random, n, heads: (random.random_sample((1, heads, -(-n // 64))) < share).repeat(64, -1)[..., :n]


def _few_columns(random: np.random.RandomState, n: int, _: int) -> Array:
    marked = np.zeros((1, n), np.bool_)
    marked[0, random.randint(0, n, 16)] = True
    return marked


def _blocks(random: np.random.RandomState, n: int, _: int) -> Array:
    return random.random_sample((1, -(-n // 128), -(-n // 128))) < 0.42


def _pairs(random: np.random.RandomState, n: int, heads: int) -> Array:
    """Blocks of 128 queries and keys, element by element."""
    return _blocks(random, n, heads).repeat(128, 1).repeat(128, 2)[:, :n, :n]


def _chosen(random: np.random.RandomState, n: int, heads: int) -> Array:
    """For each block of 128 queries 3 of the blocks of 512 keys."""
    order = random.random_sample((1, heads, -(-n // 128), -(-n // 512))).argsort(-1)
    return (order < 3).repeat(128, 2)[:, :, :n]


def _grid(w: str, r: str) -> str:
    """Neighbourhoods in 64 rows of w columns, clamped at the borders."""
    return f"({NEAR.format(of='//', w=w, r=r, last=63)}) & ({NEAR.format(of='%', w=w, r=r, last=f'{w} - 1')})"


IDS: dict[str, Any] = {"ids": (["b", "kv_len"], "int32", _documents)}
IMAGES: dict[str, Any] = {"image": (["b", "kv_len"], "int32", _images)}
KEPT: dict[str, Any] = {"kept": (["b", "hq", "kv_len"], "bool", _columns(0.2))}
FRAME = "(abs(kv_idx // 32 % 32 - q_idx // 32 % 32) <= 4) & (abs(kv_idx % 32 - q_idx % 32) <= 4)"
CLEAN = "(kv_idx >= n) & ((kv_idx - n) // 16 < where(q_idx < n, q_idx // 16, (q_idx - n) // 16 + 1))"
BLOCKS = "abs(q_idx // 64 - kv_idx // 64) <= 1"
ROWS = {
    "document, prefix": Row(
        "(ids[b, q_idx] == ids[b, kv_idx]) & (causal | prompt[b, kv_idx])", tensors=IDS | {"prompt": (["b", "kv_len"], "bool", _prefixes)}
    ),
    "transfusion": Row("causal | ((image[b, kv_idx] == image[b, q_idx]) & (image[b, q_idx] > 0))", tensors=IMAGES),
    "local, image spans": Row(
        "(causal & window(1023, 0)) | ((image[b, kv_idx] == image[b, q_idx]) & (image[b, q_idx] > 0))", tensors=IMAGES
    ),
    "neighbourhood": Row(_grid("128", "8")),
    "neighbourhood by params": Row(_grid("w", "r"), {"w": 128, "r": 8}),
    "windows of video": Row(f"(abs(kv_idx // 1024 - q_idx // 1024) <= 1) & {FRAME}"),
    "windows in all frames": Row(FRAME),
    "tiled windows": Row("kv_idx // 512 % 4 == q_idx // 512 % 4"),
    "fixed": Row("causal & (chunk(1024) | (kv_idx % 1024 >= 768))"),
    "temporal heads": Row("abs(kv_idx % 1560 - q_idx % 1560) <= 128"),
    "striped": Row("kv_idx * n + kr <= q_idx * n + qr", {"n": 4, "kr": 1, "qr": 2}),
    "zigzag": Row("where(kv_idx < half, kv_idx, kv_idx + skip) <= where(q_idx < half, q_idx, q_idx + skip)", {"half": 4096, "skip": 8192}),
    "compressed": Row("stride * kv_idx + 31 <= q_idx", {"stride": 16}),
    "block diffusion": Row(f"((q_idx < n) & (kv_idx < n) & (kv_idx // 16 == q_idx // 16)) | ({CLEAN})", {"n": 4096}),
    "bigbird": Row(
        f"({BLOCKS}) | (kv_idx // 64 == 0) | (kv_idx // 64 == (kv_len - 1) // 64) | rest[b, q_idx // 128, kv_idx // 128]",
        tensors={"rest": (["b", "(q_len + 127) // 128", "(kv_len + 127) // 128"], "bool", _blocks)},
    ),
    "longformer": Row(
        "window(256, 256) | marked[b, kv_idx] | marked[b, q_idx]", tensors={"marked": (["b", "kv_len"], "bool", _few_columns)}
    ),
    "vertical, slash": Row(
        "causal & (kept[b, h, kv_idx] | slash[b, h, q_idx - kv_idx])",
        tensors=KEPT | {"slash": (["b", "hq", "kv_len"], "bool", _columns(0.1))},
    ),
    "heavy hitters": Row("causal & (kept[b, h, kv_idx] | window(255, 0))", tensors=KEPT),
    "same user, window of time": Row(
        "(ids[b, q_idx] == ids[b, kv_idx]) & (at[b, kv_idx] <= at[b, q_idx]) & (at[b, q_idx] - at[b, kv_idx] <= 900)",
        tensors=IDS | {"at": (["b", "kv_len"], "int32", lambda _, n, __: np.arange(n)[None])},
    ),
    "rolling cache": Row("(at[b, kv_idx] <= q_idx) & (at[b, kv_idx] > q_idx - 2048)", tensors={"at": (["b", "kv_len"], "int32", _rolled)}),
    "float timestamps": Row("at[b, kv_idx] <= at[b, q_idx]", tensors={"at": (["b", "kv_len"], "float32", _ascending)}),
    "block-sparse": Row(
        "seen[b, q_idx // 128, kv_idx // 128]",
        tensors={"seen": (["b", "(q_len + 127) // 128", "(kv_len + 127) // 128"], "bool", _blocks)},
    ),
    "block-sparse by elements": Row("seen[b, q_idx, kv_idx]", tensors={"seen": (["b", "q_len", "kv_len"], "bool", _pairs)}),
    "top-k blocks": Row(
        "causal & (chunk(512) | chosen[b, h, q_idx, kv_idx // 512])",
        tensors={"chosen": (["b", "hq", "q_len", "(kv_len + 511) // 512"], "bool", _chosen)},
    ),
}
