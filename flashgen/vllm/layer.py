"""An attention layer of an inference engine, whose keys lie in pages: its specs, and its calls on arrays of any library."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flashgen.api import Attention
from flashgen.appending import append
from flashgen.attend import compiled
from flashgen.runtime.arrays import name_of
from flashgen.spec import Spec
from flashgen.spec.layout import DEFAULT, TOKENS_FIRST


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer as an engine describes it.

    `window`: the keys that a query sees, its own among them; `softcap`: the bound of scores; None: there is none. `sinks`: the dtype of a
    logit for each query head; `slopes`: that of its slope, as ALiBi has it.
    """

    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: str | None = None
    slopes: str | None = None

    def spec(self, dtype: str, page: int, layout: str) -> Spec:
        """The spec of calls on arrays of a dtype, with so many keys in a page."""
        score = "s" if self.softcap is None else "softcap * tanh(s / softcap)"
        read = {"sinks": self.sinks, "slopes": self.slopes}
        return Spec(
            dtype=dtype,
            head_dim=self.head_dim,
            scale="scaling",
            score=score + (" + slopes[h] * (kv_idx - q_idx - kv_len + q_len)" if self.slopes else ""),
            mask="causal" if self.window is None else f"causal & window({self.window - 1}, 0)",
            softmax={"sink": "sinks[h]"} if self.sinks else None,
            params={"scaling": self.scale} | ({} if self.softcap is None else {"softcap": self.softcap}),
            tensors={name: {"shape": ["hq"], "dtype": dtype} for name, dtype in read.items() if dtype},
            layout=layout,
            cache={"page": page},
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The sequences of a step, as their arrays on the device say.

    `cu_seqlens_q`: int32 [B + 1], where the new tokens of each begin; `kv_lens`: int32 [B], how many keys each has, the new ones among
    them; `block_table`: int32 [B, columns], their pages. `tokens`: the new ones of all; `longest`: at most so many are of one sequence.
    Sequences that only fill the batch up come last, without tokens.
    """

    cu_seqlens_q: Any
    kv_lens: Any
    block_table: Any
    tokens: int
    longest: int

    @property
    def single(self) -> bool:
        """True if each sequence has one token, or is one that only fills the batch up, beside a token that does."""
        return self.longest == 1 and self.tokens == len(self.kv_lens)


def keep(layer: Layer, cache: Any, batch: Batch, k: Any, v: Any) -> None:
    """Writes the new keys and values of a batch to their pages. k, v: [tokens or more, Hk, D]; `cache`: as `attend` has it."""
    k_pages, v_pages = _pages(layer, cache)
    places = {"kv_lens": batch.kv_lens, "block_table": batch.block_table, "cu_seqlens": batch.cu_seqlens_q}
    append(k_pages, v_pages, k[: batch.tokens], v[: batch.tokens], layout=TOKENS_FIRST, **places)


def attend(layer: Layer, q: Any, cache: Any, batch: Batch, out: Any, values: Mapping[str, Any]) -> None:
    """Writes the attention of a batch to `out`.

    q, out: [tokens or more, Hq, D]; `cache`: [pages, Hk, page, 2 D], of any strides, a key before its value; `values`: sinks and slopes,
    [Hq]. Rows of `out` beyond those of sequences hold anything. Raises CallError, PlanError, BackendError.
    """
    k_pages, v_pages = _pages(layer, cache)
    q, out = q[: batch.tokens], out[: batch.tokens]
    places = {"kv_lens": batch.kv_lens, "block_table": batch.block_table}
    if batch.single:  # tiles of all query heads that share keys, and shares of keys
        q, out = q[:, None], out[:, None]
    else:
        places |= {"cu_seqlens_q": batch.cu_seqlens_q}
    attn = _attention(layer, name_of(q.dtype), k_pages.shape[1], DEFAULT if batch.single else TOKENS_FIRST)
    attn(q, k_pages, v_pages, out=out, **places, **values)


def _pages(layer: Layer, cache: Any) -> tuple[Any, Any]:
    """Keys and values, each [pages, page, Hk, D]."""
    rows = cache.swapaxes(1, 2)
    return rows[..., : layer.head_dim], rows[..., layer.head_dim :]


@lru_cache(256)
def _attention(layer: Layer, dtype: str, page: int, layout: str) -> Attention:
    return compiled(layer.spec(dtype, page, layout))
