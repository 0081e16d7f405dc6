"""Models of Hugging Face transformers with flashgen's attention beside SDPA: a forward over a prompt, and steps of generation.

    python benchmarks/models.py                           # needs a GPU, PyTorch and transformers
    python benchmarks/models.py --length 8192 --layers 4
    python benchmarks/models.py --without-cudnn           # SDPA by its other backends: cuDNN's prepares anew for each number of keys

Weights are random, of the sizes of published models but with few layers, bfloat16, one sequence. `prompt` is one forward over all tokens,
`step` one token after them with a growing cache; milliseconds, medians of seven in turns. `off`: how far logits are from its,
relative to their norm. Models with softcap and sinks stand beside `eager`, as SDPA has neither.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import flashgen.transformers

TURNS = 7
SHARED = {"vocab_size": 32000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
HEADS_OF_128 = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
HEADS_OF_256 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
HEADS_OF_64 = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 4}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "Llama": (LLAMA, "sdpa"),
    "Mistral": ({**LLAMA, "sliding_window": 1024}, "sdpa"),
    "Qwen3": ({"hidden_size": 2048, "intermediate_size": 6144, **HEADS_OF_128}, "sdpa"),
    "Gemma2": ({"hidden_size": 2304, "intermediate_size": 9216, **HEADS_OF_256}, "eager"),
    "GptOss": ({"hidden_size": 2880, **HEADS_OF_64}, "eager"),
}


def model(name: str, sizes: dict[str, Any], layers: int, attention: str) -> Any:
    """A model of transformers with an attention, of random weights."""
    torch.manual_seed(0)
    config, kind = (getattr(transformers, f"{name}{part}") for part in ("Config", "ForCausalLM"))
    given = config(**SHARED, **sizes, num_hidden_layers=layers)
    with torch.device("cuda"):
        return kind._from_config(given, attn_implementation=attention, dtype=torch.bfloat16).eval()


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
    both = {which: model(name, sizes, layers, which) for which in (peer, flashgen.transformers.register())}
    tokens = torch.randint(3, 32000, (1, length), device="cuda")
    caches = {which: one(tokens, use_cache=True).past_key_values for which, one in both.items()}
    logits = {which: one(tokens, use_cache=False, logits_to_keep=64).logits.float() for which, one in both.items()}
    theirs, ours = logits.values()
    prompt = in_turns({which: lambda one=one: one(tokens, use_cache=False, logits_to_keep=1) for which, one in both.items()})
    step = in_turns({which: lambda which=which, one=one: one(tokens[:, -1:], past_key_values=caches[which]) for which, one in both.items()})
    rows = [
        f"{what}: {peer} {x[peer]:8.2f} ms, flashgen {x[flashgen.transformers.NAME]:8.2f} ms"
        for what, x in (("prompt", prompt), ("step", step))
    ]
    print(f"{name:8} {length:6}  {'  '.join(rows)}  off {(ours - theirs).norm() / theirs.norm():.1e}", flush=True)


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
