"""Greedy generation with a small model of Llama's shape: prompts and single tokens in one kind of call, keys in pages, nothing but arrays.

Runs on CuPy where there is a GPU, else on NumPy. `layout: thd` with pages takes whatever an engine has at a time: first the prompts, one
behind the other, then a token of each sequence. `flashgen.append` turns new keys by their rotary embedding on their way into pages.
Standard attention, which meets whole sequences anew at every step, says the same tokens.
"""

from itertools import pairwise

import numpy as np
from cache import DTYPE, Cache
from llama import HEAD_DIM, HEADS, KV_HEADS, VOCABULARY, Llama, turned, xp

STEPS, LENGTHS = 12, (5, 1, 40, 18)  # tokens that are made; tokens of the prompts


def generate(model, prompts):
    cache, found = Cache(len(prompts)), []
    tokens = xp.concatenate(prompts)
    news = [len(prompt) for prompt in prompts]
    for _ in range(STEPS):
        cache.lens = cache.lens + np.array(news, np.int32)
        logits = model(tokens, cache.attend(news))
        tokens = logits[np.cumsum(news) - 1].argmax(-1)  # after the last token of each
        found.append(tokens.tolist())
        news = [1] * len(prompts)
    return [list(one) for one in zip(*found, strict=True)]


def standard(_layer, q, k, v):
    """Causal attention of one sequence, as the formula says."""
    positions = xp.arange(len(q))
    q, k = turned(q, positions), turned(k, positions)
    k, v = (xp.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
    scores = xp.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5
    scores = xp.where(positions[:, None] >= positions, scores, -xp.inf)
    weights = xp.exp(scores - scores.max(-1, keepdims=True))
    return xp.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)


def generate_anew(model, prompt):
    tokens = prompt.tolist()
    for _ in range(STEPS):
        tokens.append(int(model(xp.asarray(tokens), standard)[-1].argmax()))
    return tokens[len(prompt) :]


model, random = Llama(), np.random.default_rng(1)
prompts = [xp.asarray(random.integers(0, VOCABULARY, n)) for n in LENGTHS]
made = generate(model, prompts)
wanted = [generate_anew(model, prompt) for prompt in prompts]
for (begin, end), ours, theirs in zip(pairwise(np.cumsum([0, *LENGTHS])), made, wanted, strict=True):
    print(f"a prompt of {end - begin:2} tokens, then {' '.join(map(str, ours[:6]))} ...  as standard attention: {ours == theirs}")
print(f"{len(prompts)} sequences, {STEPS} tokens each, {DTYPE} on {xp.__name__}: all alike: {made == wanted}")
