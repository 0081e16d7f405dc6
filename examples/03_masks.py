"""Masks are expressions. Of each the planner derives which key tiles are loaded, and in which of them the mask is tested at all."""

import numpy as np

import flashgen
from flashgen.cli.picture import in_characters
from flashgen.plan import plan

MASKS = {
    "a window of 256 keys": "causal & window(255, 0)",
    "a prefix that all see": "prefix(300) | causal",
    "chunks": "chunk(384) & causal",
    "keys up to a length a sequence": "kv_idx < lens[b]",
    "every second query head sees everything": "(h % 2 == 0) | causal",
}


def main() -> None:
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 2, 1100, 2, 64), np.float32)
    lens = np.array([1100, 500], np.int32)
    for title, mask in MASKS.items():
        given = {"lens": lens} if "lens" in mask else {}
        tensors = {"lens": {"shape": ["b"], "dtype": "int32"}} if given else {}
        o = flashgen.attention(q, k, v, mask, **given)
        ranges = plan(flashgen.Spec(dtype="float16", head_dim=64, mask=mask, tensors=tensors), "sm_90a").attention.ranges
        print(f"\n{title}: {mask}, o[1, -1, 1, 0] = {o[1, -1, 1, 0]:+.3f}")
        print(*in_characters(ranges.classes(1100, 1100, {"b": 1, "h": 1, "hk": 1, **given})), sep="\n")


if __name__ == "__main__":
    main()
