"""One softmax, five schedules: from the textbook, with all scores in memory, to one pass that rescales only when it must."""

import numpy as np

import flashgen

SCHEDULES = {
    "standard": "all scores at once",
    "three_pass": "maximum, sum, output: safe softmax",
    "two_pass": "maximum and sum together: online softmax",
    "FlashAttention 1": {"passes": 1, "normalize": "each_step", "rescale": "always", "outer": "kv"},
    "FlashAttention 2": {"passes": 1, "normalize": "end", "rescale": "always"},
    "FlashAttention 4": {"passes": 1, "normalize": "end", "rescale": {"lazy": 8}},
}


def main() -> None:
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 1, 500, 2, 64), np.float32)
    results = {}
    for name, what in SCHEDULES.items():
        schedule = what if isinstance(what, dict) else name
        attention = flashgen.compile({"dtype": "float32", "head_dim": 64, "mask": "causal", "schedule": schedule}, backend="interpreter")
        results[name] = attention(q, k, v)
        softmax, difference = attention.program.softmax, abs(results[name] - results["standard"]).max()
        print(f"{name:16}  {softmax.passes} passes over k, differs by {difference:.1e} from the first  ({what})")


if __name__ == "__main__":
    main()
