"""What a variant costs: each beside the plain kernel of the same run, at B 2, S 8192, hidden size 2048, bfloat16.

    python benchmarks/variants.py                         # written to benchmarks/results/variants_<card>.json

`expected` is the plain causal time times the key tiles that the variant visits over those that causal visits. Needs PyTorch and a GPU.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forward import environment, measure

import flashgen
from flashgen.expr import reference

BATCH, LENGTH, HIDDEN = 2, 8192, 2048
PER_HEAD = {"shape": ["hq"], "dtype": "float32"}
VARIANTS: dict[str, dict[str, Any]] = {
    "causal": {"mask": "causal"},
    "full": {"mask": "full"},
    "window": {"mask": "causal & window(1023, 0)"},
    "prefix": {"mask": "prefix(2048) | causal"},
    "chunk": {"mask": "causal & chunk(1024)"},
    "padding": {"mask": "kv_idx < lens[b]", "tensors": {"lens": {"shape": ["b"], "dtype": "int32"}}},
    "document": {"mask": "causal & document(ids)", "tensors": {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}},
    "strided": {"mask": "causal & ((q_idx - kv_idx) % 4 == 0)"},
    "softcap": {"mask": "causal", "score": "softcap * tanh(s / softcap)", "params": {"softcap": 50.0}},
    "alibi": {"mask": "causal", "score": "s + slopes[h] * (kv_idx - q_idx)", "tensors": {"slopes": PER_HEAD}},
    "bias": {
        "mask": "causal",
        "score": "s + bias[h, q_idx, kv_idx]",
        "tensors": {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "float32"}},
    },
    "temperature": {"mask": "causal", "score": "temperature[h] * s", "tensors": {"temperature": PER_HEAD}},
    "log-n": {"mask": "causal", "score": "s * log(max(q_idx, 1))"},
    "sink": {"mask": "causal", "softmax": {"sink": "sinks[h]"}, "tensors": {"sinks": PER_HEAD}},
    "off by one": {"mask": "causal", "softmax": "off_by_one"},
    "sigmoid": {"mask": "causal", "score": "sigmoid(s - log(kv_len))", "softmax": "none"},
    "relu squared": {"mask": "causal", "score": "max(s, 0.0) * max(s, 0.0)", "softmax": "none"},
}


def tensors(spec: flashgen.Spec, length: int) -> dict[str, torch.Tensor]:
    """What the expressions read, on the GPU; documents of 1,111 tokens."""
    sizes = {"b": BATCH, "hq": HIDDEN // spec.head_dim.qk, "q_len": length, "kv_len": length}
    made = {}
    for tensor in spec.tensors:
        shape = [sizes[str(axis)] for axis in tensor.shape]
        made[tensor.name] = (
            torch.rand(shape, device="cuda") if tensor.dtype == "float32" else torch.full(shape, length, dtype=torch.int32, device="cuda")
        )
        if tensor.name == "ids":
            made[tensor.name][:] = torch.arange(length, device="cuda") // 1111
    return made


def inputs(spec: flashgen.Spec, length: int) -> list[torch.Tensor]:
    """Fresh q, k, v: [B, S, H, D]."""
    return [torch.randn(BATCH, length, HIDDEN // spec.head_dim.qk, spec.head_dim.qk, device="cuda").bfloat16() for _ in range(3)]


def check(name: str, attn: flashgen.Attention) -> None:
    """Raises where a variant is off."""
    spec, length = attn.spec, 700
    q, k, v = inputs(spec, length)
    values = tensors(spec, length)
    want, _ = reference(spec, *(x.float().cpu().numpy() for x in (q, k, v)), **{n: x.cpu().numpy() for n, x in values.items()})
    got = attn(q, k, v, **values).float().cpu().numpy()
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    if not error < 6e-3:
        raise SystemExit(f"{name}, head dim {spec.head_dim.qk}: relative error {error:.1e}")


def key_tiles(attn: flashgen.Attention, values: dict[str, torch.Tensor]) -> float:
    """Keys that a query tile visits, on average."""
    known = (
        {name: x.cpu().numpy() for name, x in values.items()} | {p.name: p.default for p in attn.spec.params} | {"b": 0, "h": 0, "hk": 0}
    )
    begin, end = attn.plan.ranges.evaluate(LENGTH, LENGTH, known)
    return float((end - begin).sum(0).mean()) * attn.plan.tile.block_n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS))
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--commit", help="where the checkout has no git")
    a = parser.parse_args()
    found, rows = environment(), []
    found["commit"] = a.commit or found["commit"]
    for head_dim in a.head_dims:
        specs = {
            name: flashgen.Spec(head_dim=head_dim, dtype="bfloat16", name=name.replace(" ", "_").replace("-", "_"), **VARIANTS[name])
            for name in a.only
        }
        compiled = {name: flashgen.compile(spec) for name, spec in specs.items()}
        for name, attn in compiled.items():
            check(name, attn)
        values = {name: tensors(spec, LENGTH) for name, spec in specs.items()}
        runs = {name: (lambda q, k, v, attn=attn, extra=values[name]: attn(q, k, v, **extra)) for name, attn in compiled.items()}
        times = measure(runs, inputs(specs[a.only[0]], LENGTH), a.repetitions)
        plain = times["causal"] / key_tiles(compiled["causal"], {})
        for name, ms in times.items():
            expected = plain * key_tiles(compiled[name], values[name])
            tile, spills = compiled[name].plan.tile.text, compiled[name].kernels[0].binary.spill_bytes
            row = {"suite": "variants", "head_dim": head_dim, "seqlen": LENGTH, "variant": name, "tile": tile, "spill_bytes": spills}
            rows.append({**row, "ms": round(ms, 4), "expected": round(expected, 4)})
            relative = f"{ms / expected:.2f} of what causal predicts, {ms / times['causal']:.2f} of causal"
            print(f"{head_dim:3} {name:13} {tile:8} {ms:6.3f} ms, {relative}", flush=True)
    output = a.output or Path(__file__).parent / "results" / f"variants_{str(found['gpu']).replace(' ', '_')}.json"
    output.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
