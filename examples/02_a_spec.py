"""A spec: compiled once, called often; its params change from call to call without a new compilation."""

from pathlib import Path

import numpy as np

import flashgen

SPECS = Path(__file__).parent.parent / "specs"


def main() -> None:
    attention = flashgen.compile(SPECS / "softcap.yaml")
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 1, 200, 4, 128), np.float32).astype(attention.spec.element.numpy)
    for softcap in (50.0, 5.0, 0.5):
        o, lse = attention(q, k, v, softcap=softcap)
        print(f"softcap {softcap:4}: o {o.shape} {o.dtype}, lse of the last query {lse[0, 0, -1]:.3f}")
    print(attention.explain())


if __name__ == "__main__":
    main()
