"""One call: causal attention on NumPy arrays. With a GPU they go there, else the plan runs on the CPU."""

import numpy as np

import flashgen


def main() -> None:
    random = np.random.default_rng(0)
    q = random.standard_normal((2, 300, 8, 64), np.float32)  # batch, queries, heads, columns
    k, v = random.standard_normal((2, 2, 300, 2, 64), np.float32)  # two key/value heads serve eight query heads
    o, lse = flashgen.attention(q, k, v, "causal", lse=True)
    print(f"o {o.shape} {o.dtype}, lse {lse.shape}")
    print(f"the first query sees one key, so its output is that value: off by {abs(o[:, 0, 0] - v[:, 0, 0]).max():.1e}")


if __name__ == "__main__":
    main()
