"""The cases that are measured: specs at lengths, and fresh random arrays for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from flashgen.bench.lists import every_block
from flashgen.dtypes import READ, by_name
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec, axes
from flashgen.spec.layout import DEFAULT, ROWS_FIRST
from flashgen.spec.tensors import Tensor

TOKENS, HIDDEN = 16384, 2048  # of the FlashAttention-3 paper's grid: in all, and of all heads together
HEAD_DIMS, LENGTHS = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)
DOCUMENT = 1111  # tokens of a document
FREE = 7  # entries along an axis whose name is bound by the array
_PER_HEAD = {"shape": ["hq"], "dtype": "float32"}

# What a spec says besides dtype and head dim. Peers say the same their own way, in flashgen.bench.peers.
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {"mask": "full"},
    "causal": {"mask": "causal"},
    "window": {"mask": "causal & window(1023, 0)"},
    "prefix": {"mask": "prefix(2048) | causal"},
    "chunk": {"mask": "causal & chunk(1024)"},
    "padding": {"mask": "kv_idx < lens[b]", "tensors": {"lens": {"shape": ["b"], "dtype": "int32"}}},
    "document": {"mask": "causal & document(ids)", "tensors": {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}},
    "strided": {"mask": "causal & ((q_idx - kv_idx) % 4 == 0)"},
    "dilated": {"mask": "causal & ((q_idx - kv_idx) % step == 0)", "params": {"step": 3}},
    "dense": {"mask": "causal & seen[b, q_idx, kv_idx]", "tensors": {"seen": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"}}},
    "softcap": {"mask": "causal", "score": "softcap * tanh(s / softcap)", "params": {"softcap": 50.0}},
    "alibi": {"mask": "causal", "score": "s + slopes[h] * (kv_idx - q_idx - kv_len + q_len)", "tensors": {"slopes": _PER_HEAD}},
    "bias": {
        "mask": "causal",
        "score": "s + bias[h, q_idx, kv_idx]",
        "tensors": {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "float32"}},
    },
    "t5": {
        "mask": "causal",
        "score": "s + table[min(where(q_idx - kv_idx < 16, q_idx - kv_idx, 16 + (q_idx - kv_idx) // 128), 31), h]",
        "tensors": {"table": {"shape": [32, "hq"], "dtype": "float32"}},
    },
    "bias_16": {
        "mask": "causal",
        "score": "s + bias[h, q_idx, kv_idx]",
        "tensors": {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "bfloat16"}},
    },
    "key_bias": {
        "mask": "causal",
        "score": "s + bias[b, kv_idx]",
        "tensors": {"bias": {"shape": ["b", "kv_len"], "dtype": "float32"}},
    },
    "forget": {
        "mask": "causal",
        "score": "s + gate[b, h, q_idx] - gate[b, h, kv_idx]",
        "tensors": {"gate": {"shape": ["b", "hq", "kv_len"], "dtype": "float32"}},
    },
    "distance": {
        "mask": "causal",
        "score": "s + table[h, q_idx - kv_idx]",
        "tensors": {"table": {"shape": ["hq", "kv_len"], "dtype": "float32"}},
    },
    "temperature": {"mask": "causal", "score": "temperature[h] * s", "tensors": {"temperature": _PER_HEAD}},
    "log_n": {"mask": "causal", "score": "s * log(max(q_idx, 1))"},
    "sink": {"mask": "causal", "softmax": {"sink": "sinks[h]"}, "tensors": {"sinks": _PER_HEAD}},
    "off_by_one": {"mask": "causal", "softmax": "off_by_one"},
    "sigmoid": {"mask": "causal", "score": "sigmoid(s - log(kv_len))", "softmax": "none"},
    "relu_squared": {"mask": "causal", "score": "max(s, 0.0) * max(s, 0.0)", "softmax": "none"},
}


@dataclass(frozen=True)
class Case:
    """A spec at one size. `variant`: its name in VARIANTS, "" where it is none of them."""

    spec: Spec
    seqlen: int  # keys of a sequence
    batch: int
    heads: int  # of q
    variant: str = ""
    queries: int = 0  # of a sequence; 0: as many as keys
    gradients: bool = False  # the backward alone is measured
    unequal: bool = False  # lengths of packed sequences rise from half of `seqlen` to one and a half, as many tokens in all

    @property
    def name(self) -> str:
        """The case as tables name it: variant or spec, head dim, dtype, length."""
        d = self.spec.head_dim
        sizes = f"batch {self.batch}, {self.seqlen}" if self.queries else f"{self.seqlen}{', unequal' * self.unequal}"
        return f"{self.variant or self.spec.name} {d.qk if d.qk == d.v else f'{d.qk}/{d.v}'} {self.spec.dtype} {sizes}"

    @property
    def q_len(self) -> int:
        """Queries of a sequence."""
        return self.queries or self.seqlen

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens before each of the packed sequences, and all.

        >>> case(Spec(head_dim=64, dtype="float16"), 8192).ends
        (0, 8192, 16384)
        """
        n, batch = self.seqlen, self.batch
        return tuple(n * i * (batch + i) // (2 * batch) if self.unequal else n * i for i in range(batch + 1))

    def of(self, b: int) -> "Case":
        """The same, all as long as sequence b."""
        return replace(self, seqlen=self.ends[b + 1] - self.ends[b], unequal=False) if self.unequal else self

    @property
    def sizes(self) -> Sizes:
        """The sizes of its call; of packed sequences, lengths are those of all together."""
        spec, kv_heads = self.spec, self.heads // (self.spec.group or 1)
        lengths = {"q_len": self.q_len, "kv_len": self.seqlen}
        q_len, kv_len = (n * (self.batch if word in spec.geometry.behind else 1) for word, n in lengths.items())
        if not spec.page:
            return Sizes(batch=self.batch, q_len=q_len, kv_len=kv_len, heads=self.heads, kv_heads=kv_heads)
        columns = -(-kv_len // spec.page)
        pages, places = self.batch * columns, columns * spec.page
        return Sizes(batch=self.batch, q_len=q_len, kv_len=places, heads=self.heads, kv_heads=kv_heads, pages=pages, page=spec.page)

    def operations(self, visible: float) -> float:
        """The FLOPs of both products, or of a backward's five, over the visible share of all pairs of a query and a key."""
        of_qk, of_v = (3, 2) if self.gradients else (1, 1)
        columns = of_qk * self.spec.head_dim.qk + of_v * self.spec.head_dim.v
        pairs = sum(self.of(b).q_len * self.of(b).seqlen for b in range(self.batch))
        return 2 * pairs * self.heads * columns * visible

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays of a call, besides what the spec reads."""
        return ("q", "k", "v", "do") if self.gradients else ("q", "k", "v")

    def differentiated(self) -> "Case":
        """The same of the backward."""
        return replace(self, spec=Spec(**(self.spec.to_json() | {"backward": True})), gradients=True)

    @property
    def key_bytes(self) -> int:
        """The bytes of k and v."""
        n = self.sizes
        keys = n.kv_len * (1 if self.spec.order.packed else self.batch)
        return keys * n.kv_heads * (self.spec.head_dim.qk + self.spec.head_dim.v) * self.spec.element.bytes

    @property
    def bytes(self) -> int:
        """The bytes of q, k, v and o together."""
        return sum(int(np.prod(shape)) for shape in (*self.shapes().values(), self.shapes()["q"])) * self.spec.element.bytes

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of q, k and v, by name."""
        n, d = self.sizes, self.spec.head_dim
        keys = (n.pages, n.page) if self.spec.page else (self.batch, n.kv_len)
        sizes = {"q": (self.batch, n.q_len, n.heads, d.qk), "k": (*keys, n.kv_heads, d.qk), "v": (*keys, n.kv_heads, d.v)}
        return {name: self.spec.order_of(name).arranged(**dict(zip(ROWS_FIRST, shape, strict=True))) for name, shape in sizes.items()}


def case(spec: Spec, seqlen: int, batch: int | None = None, heads: int | None = None) -> Case:
    """A case of the grid's size, or with the given batch and heads; heads are a multiple of the spec's group.

    >>> case(Spec(head_dim=128, dtype="float16"), 4096).batch
    4
    """
    group = spec.group or 1
    heads = heads or max(1, HIDDEN // spec.head_dim.qk // group) * group
    return Case(spec=spec, seqlen=seqlen, batch=batch or max(1, TOKENS // seqlen), heads=heads, variant=variant_of(spec))


def variant_of(spec: Spec) -> str:
    """The name under which peers know the spec, or nothing."""
    if spec.layout != DEFAULT or any((spec.cache, spec.scale, spec.out_dtype, spec.blocks, spec.weight, spec.output, spec.embedded)):
        return ""
    plain = {"head_dim": spec.head_dim, "dtype": spec.dtype}

    def says(given: Spec) -> tuple[Any, ...]:
        return given.mask, given.score, given.softmax, given.params, given.tensors

    return next((name for name, keys in VARIANTS.items() if says(Spec(**plain, **keys)) == says(spec)), "")


def grid(head_dims: Sequence[int] = HEAD_DIMS, lengths: Sequence[int] = LENGTHS, dtypes: Sequence[str] = ("bfloat16",)) -> list[Case]:
    """The cells of the FlashAttention-3 paper, full and causal."""
    cells = product(dtypes, head_dims, ("full", "causal"), lengths)
    return [case(Spec(head_dim=d, dtype=dtype, name=mask, mask=mask), length) for dtype, d, mask, length in cells]


def draw(case: Case, xp: Any) -> dict[str, Any]:
    """Normal q, k, v and what else the spec reads, by name, as arrays of CuPy or NumPy (`xp`); ALiBi's slopes as published (section 3)."""
    arrays = {name: rounded(xp.random.standard_normal(shape), case.spec.dtype) for name, shape in case.shapes().items()}
    arrays |= {tensor.name: draw_tensor(case.spec.given(tensor), case.sizes, xp) for tensor in case.spec.tensors}
    ends = {"kv_lens": xp.full(case.batch, case.seqlen, "int32")}
    ends |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), xp.asarray(case.ends, "int32"))
    ends["block_table"] = xp.random.permutation(case.sizes.pages).reshape(case.batch, -1).astype("int32")
    arrays |= {name: ends[name] for name, _ in case.spec.geometry.lengths}
    if case.gradients:
        arrays["do"] = rounded(xp.random.standard_normal((*case.shapes()["q"][:-1], case.spec.head_dim.v)), case.spec.out_element.name)
    if case.spec.blocks:
        arrays[case.spec.blocks.lists] = every_block(case.spec, case.sizes, xp)
    if case.variant == "alibi":
        arrays["slopes"] = (0.5 ** (8 * xp.arange(1, case.heads + 1) / case.heads)).astype("float32")
    return arrays


def draw_tensor(tensor: Tensor, sizes: Sizes, xp: Any, random: Any = None) -> Any:
    """A random array for a tensor of a spec: floats are normal, bools and bits (of queries) are either.

    Integers over positions number documents of 1,111 tokens, other integers hold the number of keys; those that `random`, as
    numpy.random.RandomState, draws lie anywhere from 0 to the number of keys.
    """
    shape, source = sizes.binding(tensor, FREE).shape(tensor), random or xp.random
    if tensor.dtype not in ("int32", "int64"):
        values = source.standard_normal(shape)
        if READ[tensor.dtype][0] == "float":
            return rounded(values, tensor.dtype)
        return values > 0 if tensor.dtype == "bool" else ((values > 0) * (values * 80)).astype(tensor.dtype)
    if tensor.shape[-1] == axes.ALIASES["q_words"]:
        high, low = (source.randint(0, 1 << 16, shape) for _ in range(2))
        return ((high << 16) + low).astype(tensor.dtype)
    if random:
        return random.randint(0, sizes.kv_len + 1, shape).astype(tensor.dtype)
    return xp.full(shape, xp.arange(shape[-1]) // DOCUMENT if tensor.shape[-1] in ("q_len", "kv_len") else sizes.kv_len, tensor.dtype)


def rounded(x: Any, dtype: str) -> Any:
    """The array rounded to a dtype, to nearest, ties to even. CuPy has no cast to bfloat16, so it is done by the bits."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype("float32").view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16").view(by_name(dtype).numpy)
