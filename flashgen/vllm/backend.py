"""The classes that vLLM asks an attention backend for. Names and signatures are those of vLLM 0.33."""

from typing import Any, ClassVar

import torch

try:
    from vllm.v1.attention.backend import (
        AttentionBackend,
        AttentionCGSupport,
        AttentionImpl,
        AttentionMetadataBuilder,
        AttentionType,
        CommonAttentionMetadata,
    )
except ImportError as error:
    raise ImportError("flashgen.vllm.backend works in vLLM 0.33 or later, which is not here: pip install vllm") from error

from flashgen.runtime.arrays import name_of
from flashgen.vllm.layer import Batch, Layer, attend, keep

PAGES = (16, 32, 64, 128, 256)  # keys of a page that kernels take, and vLLM divides its blocks into
_UNQUANTIZED = ("auto", "float16", "bfloat16")


class FlashgenBackend(AttentionBackend):  # type: ignore[misc]
    """The backend by name: it serves decoder layers of float16 and bfloat16, with windows, softcap, sinks and ALiBi."""

    @staticmethod
    def get_name() -> str:
        """The name under which vLLM registers a backend of somebody else."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["FlashgenImpl"]:
        """The class of a layer's attention."""
        return FlashgenImpl

    @staticmethod
    def get_builder_cls() -> type["BatchBuilder"]:
        """The class that makes the Batch of a step."""
        return BatchBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:  # noqa: ARG004
        """Keys of a page that kernels take."""
        return list(PAGES)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """True for multiples of 8 up to 512."""
        return head_size % 8 == 0 and head_size <= 512

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """True from 8.0 on."""
        return bool(capability.major >= 8)

    @classmethod
    def supports_sink(cls) -> bool:
        """True: a layer may have sinks."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """True: a layer may have a window."""
        return True


class BatchBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Makes the Batch of a step. All that differs from step to step is read on the device, so any batch may be in a CUDA graph."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> Batch:  # noqa: ARG002
        """The Batch. Raises NotImplementedError for queries that see keys behind them."""
        given = common_attn_metadata
        if given.causal is not True:
            raise NotImplementedError("flashgen's backend of vLLM is causal: for attention that is not, choose another --attention-backend")
        return Batch(
            cu_seqlens_q=given.query_start_loc,
            kv_lens=given.seq_lens,
            block_table=given.block_table_tensor,
            tokens=given.num_actual_tokens,
            longest=given.max_query_len,
        )


class FlashgenImpl(AttentionImpl):  # type: ignore[misc]
    """The attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ):
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attn_type is {attn_type}: flashgen's backend of vLLM serves decoder layers")
        if kv_cache_dtype not in _UNQUANTIZED:
            raise NotImplementedError(f"kv_cache_dtype is {kv_cache_dtype}: flashgen's backend of vLLM takes {', '.join(_UNQUANTIZED)}")
        if sinks is not None and sinks.shape != (num_heads,):
            raise ValueError(f"sinks has shape {list(sinks.shape)}: expected [{num_heads}], a logit for each query head")
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, float(scale), num_kv_heads or num_heads
        self.kv_cache_dtype, self.kv_sharing_target_layer_name, self.sinks = kv_cache_dtype, kv_sharing_target_layer_name, sinks
        values = {"sinks": sinks, "slopes": None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)}
        self._values = {name: x for name, x in values.items() if x is not None}
        self._layer = Layer(
            head_dim=head_size,
            scale=self.scale,
            window=sliding_window,
            softcap=logits_soft_cap or None,  # 0 is none
            **{name: name_of(x.dtype) for name, x in self._values.items()},
        )

    def forward(
        self,
        layer: Any,  # noqa: ARG002
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Batch | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Keeps the new keys and values, and writes `output`, which it returns.

        query, output: [tokens, Hq, D], key, value: [tokens, Hk, D], of which those beyond the batch only fill it up; kv_cache: [pages, Hk,
        page, 2 D]. Without metadata, as when vLLM measures memory, `output` is 0. Raises CallError; NotImplementedError for outputs of
        other dtypes.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("output_scale is given: flashgen's backend of vLLM writes outputs of the dtype of queries")
        if attn_metadata is None:
            return output.fill_(0)
        if key is not None and value is not None and self.kv_sharing_target_layer_name is None:
            keep(self._layer, kv_cache, attn_metadata, key, value)
        attend(self._layer, query, kv_cache, attn_metadata, output, self._values)
        return output
