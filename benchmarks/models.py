"""Models of Hugging Face transformers with flashgen's attention beside SDPA: a forward over a prompt, and steps of generation.

    python benchmarks/models.py                           # needs a GPU, PyTorch and transformers
    python benchmarks/models.py --length 8192 --layers 4
    python benchmarks/models.py --without-cudnn           # SDPA by its other backends: cuDNN's prepares anew for each number of keys

Weights are random, of the sizes of published models but with few layers, and few experts, bfloat16, one sequence. `prompt` is one forward
over all tokens, of T5 with 64 tokens behind them; `step` one token more with a growing cache, which BERT has not; milliseconds, medians of
seven in turns. `off`: how far logits are from its, relative to their norm. Models with softcap and sinks stand beside `eager`, as SDPA has
neither.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import flashgen.transformers

TURNS, KEPT = 7, 64  # logits of so many tokens
SHARED = {"vocab_size": 32000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
HEADS_OF_128 = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
HEADS_OF_256 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
HEADS_OF_64 = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 4}
HEADS_OF_96 = {"num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047}
LATENT = {"num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 1536, "n_routed_experts": 8, "n_group": 1, "topk_group": 1}
T5 = {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_heads": 16}
BERT = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "max_position_embeddings": 32768}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "Llama": (LLAMA, "sdpa"),
    "Mistral": ({**LLAMA, "sliding_window": 1024}, "sdpa"),
    "Qwen3": ({"hidden_size": 2048, "intermediate_size": 6144, **HEADS_OF_128}, "sdpa"),
    "Phi3": ({"hidden_size": 3072, "intermediate_size": 8192, **HEADS_OF_96}, "sdpa"),
    "Gemma3": ({"hidden_size": 2560, "intermediate_size": 10240, **HEADS_OF_256}, "sdpa"),
    "DeepseekV3": ({"hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408, **LATENT}, "sdpa"),
    "T5": (T5, "sdpa"),
    "Bert": (BERT, "sdpa"),
    "Gemma2": ({"hidden_size": 2304, "intermediate_size": 9216, **HEADS_OF_256}, "eager"),
    "GptOss": ({"hidden_size": 2880, **HEADS_OF_64}, "eager"),
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
KINDS = {"T5": "ForConditionalGeneration", "Bert": "ForMaskedLM"}


def model(name: str, sizes: dict[str, Any], layers: int, attention: str) -> Any:
    """A model of transformers with an attention, of random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, CONFIGS.get(name, f"{name}Config"))
    kind = getattr(transformers, name + KINDS.get(name, "ForCausalLM"))
    given = config(**SHARED, **sizes, num_hidden_layers=layers)
    with torch.device("cuda"):
        return kind._from_config(given, attn_implementation=attention, dtype=torch.bfloat16).eval()


def calls(name: str, one: Any, tokens: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """A forward over a prompt, and a step of generation behind it where the model has one."""
    match KINDS.get(name):
        case "ForMaskedLM":
            return {"prompt": lambda: one(tokens)}
        case "ForConditionalGeneration":
            first = one(tokens, decoder_input_ids=tokens[:, :KEPT], use_cache=True)
            more = {"encoder_outputs": (first.encoder_last_hidden_state,), "past_key_values": first.past_key_values}
            return {
                "prompt": lambda: one(tokens, decoder_input_ids=tokens[:, :KEPT], use_cache=False),
                "step": lambda: one(decoder_input_ids=tokens[:, -1:], **more),
            }
    cache = one(tokens, use_cache=True, logits_to_keep=1).past_key_values
    return {
        "prompt": lambda: one(tokens, use_cache=False, logits_to_keep=KEPT),
        "step": lambda: one(tokens[:, -1:], past_key_values=cache),
    }


def milliseconds(run: Callable[[], Any]) -> float:
    """The milliseconds of a call, host and device."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def in_turns(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median milliseconds of calls that take turns."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            times[name].append(milliseconds(run))
    return {name: statistics.median(found) for name, found in times.items()}


@torch.no_grad()
def compare(name: str, layers: int, length: int) -> None:
    """Prints prefill and decode of a model with both attentions, and how far their logits differ."""
    sizes, peer = MODELS[name]
    tokens = torch.randint(3, 32000, (1, length), device="cuda")
    both = {which: calls(name, model(name, sizes, layers, which), tokens) for which in (peer, flashgen.transformers.register())}
    theirs, ours = (runs["prompt"]().logits[:, -KEPT:].float() for runs in both.values())
    rows = []
    for what in both[peer]:
        took = in_turns({which: runs[what] for which, runs in both.items()})
        rows.append(f"{what}: {peer} {took[peer]:8.2f} ms, flashgen {took[flashgen.transformers.NAME]:8.2f} ms")
    print(f"{name:10} {length:6}  {'  '.join(rows)}  off {(ours - theirs).norm() / theirs.norm():.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--without-cudnn", action="store_true")
    given = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(not given.without_cudnn)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}, {given.layers} layers")
    for name in MODELS:
        compare(name, given.layers, given.length)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
