"""Keywords that other libraries of attention take, and what to write here instead."""

from collections.abc import Iterable, Mapping

from flashgen.errors import CallError, did_you_mean
from flashgen.spec.layout import LAYOUTS

_SCALE = "the factor of q.k is called scale: attention(..., scale=0.1), in a spec scale: 0.1"
_MASK = "a mask is an expression: 'causal', 'causal & window(255, 0)', or of a tensor that is given beside it: 'm[q_idx, kv_idx]', m=m"
_WINDOW = "a window is part of the mask: 'causal & window(255, 0)' sees 255 keys to the left"
_CAUSAL = "that is the mask 'causal', which attention(...) has without being told"
_SCORE = "a bias is part of the score, read from a tensor that is given beside it: score='s + bias[h, q_idx, kv_idx]', bias=bias"
_DROPOUT = "there is no dropout here: leave it out"
_FLOAT8 = "q, k and v are float16, bfloat16 or float32, and have no scales: leave it out"
_SOFTCAP = "that is part of the score: score='softcap * tanh(s / softcap)', softcap=50.0"
_LSE = "the log-sum-exp comes with attention(..., lse=True), in a spec outputs: [o, lse]"
_PACKED = next(name for name, row in LAYOUTS.items() if row.packed)
_CALL = f"attn = flashgen.compile({{'layout': '{_PACKED}', ...}}), attn(q, k, v, cu_seqlens_q=..., cu_seqlens_k=...)"
PACKED = f"a spec with layout {_PACKED} takes sequences one behind the other: {_CALL}"
_LENGTHS = "a spec with `cache: contiguous` takes them as kv_lens, int32 [b]; or say in the mask 'kv_idx < lens[b]' with int32 lens [b]"
_PAGES = "a spec with `cache: {page: 16}` takes pages as block_table, int32 [b, pages], beside kv_lens"
OF_SEQUENCES = (_LENGTHS, PACKED, _PAGES)
_SINK = "a sink is part of a spec's softmax: {sink: sinks[h]} with float32 sinks [hq]"
_LAYOUT = f"axes are told by layout: {' or '.join(LAYOUTS)}"
_SPEC = "that is a key of specs: flashgen.compile({'dtype': 'float16', 'head_dim': 128, 'mask': 'causal', ...}) takes it"

HABITS: Mapping[str, str] = {
    **dict.fromkeys(("softmax_scale", "sm_scale", "scaling", "scale_factor", "qk_scale"), _SCALE),
    **dict.fromkeys(("attn_mask", "attention_mask", "block_mask", "mask_mod", "mask_type"), _MASK),
    **dict.fromkeys(("key_padding_mask", "padding_mask", "seqused_k", "cache_seqlens", "seqlens", "actual_seq_lengths"), _LENGTHS),
    "kv_lens": _LENGTHS,
    **dict.fromkeys(("block_table", "block_tables", "page_table", "kv_page_indices", "paged_kv_indices"), _PAGES),
    **dict.fromkeys(("window_size", "window", "sliding_window", "window_size_left", "window_size_right", "window_left"), _WINDOW),
    **dict.fromkeys(("is_causal", "causal"), _CAUSAL),
    **dict.fromkeys(("attn_bias", "bias", "score_mod"), _SCORE),
    **dict.fromkeys(("dropout_p", "dropout", "dropout_rate", "p_dropout", "rng_state"), _DROPOUT),
    **dict.fromkeys(("q_scale", "k_scale", "v_scale", "q_descale", "k_descale", "v_descale"), _FLOAT8),
    **dict.fromkeys(("softcap", "soft_cap", "logits_soft_cap", "logit_softcapping", "attn_logit_softcapping"), _SOFTCAP),
    **dict.fromkeys(("return_lse", "return_attn_probs", "return_softmax_lse", "return_aux", "need_weights"), _LSE),
    **dict.fromkeys(("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen", "max_seqlen_q", "max_seqlen_k"), PACKED),
    **dict.fromkeys(("sinks", "s_aux", "learnable_sink"), _SINK),
    **dict.fromkeys(("tensor_layout", "qkv_format", "batch_first", "BSHD", "BHSD"), _LAYOUT),
    **dict.fromkeys(("softmax", "blocks", "cache", "outputs", "out_dtype", "backward", "group", "split", "schedule", "precision"), _SPEC),
    "alibi_slopes": "that is part of the score: score='s + slopes[h] * (kv_idx - q_idx)', slopes=alibi_slopes",
    "enable_gqa": "heads are grouped as the shapes of q and k say: leave it out",
    "deterministic": "every result is: leave it out",
}


def unknown(name: str, known: Iterable[str]) -> CallError:
    """The refusal of a keyword that nothing reads, with what it is called here. `known`: what a call takes."""
    hint, known = HABITS.get(name), list(known)
    if hint in OF_SEQUENCES and (lengths := [word for word in known if HABITS.get(word) in OF_SEQUENCES]):
        hint = f"of this spec, sequences are told by {', '.join(lengths)}"
    return CallError(f"unknown argument {name!r}: {hint or did_you_mean(name, known)}")
