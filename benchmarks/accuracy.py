"""Errors of float32 attention against float64, beside standard attention on cuBLAS and PyTorch's efficient backend.

    python benchmarks/accuracy.py                    # every case, to benchmarks/results/accuracy_<card>.json, .md and .png
    python benchmarks/accuracy.py --head-dims 64 --cases scale

Each case is one head dim, mask and kind of operands; the errors of o are the relative norm, the largest difference over the largest
value, and the relative norm of the worst row. Needs PyTorch and a GPU.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashgen
from flashgen.bench.results import card_name, environment
from flashgen.bench.standard import standard

HEADS = 2
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # q, k, v: [1, S, H, D]
Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
RELATIVE_NORM, LARGEST, WORST_ROW = "relative_norm", "largest", "worst_row"


def normal(seed: int, rows: int, head_dim: int, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers [1, rows, HEADS, head_dim], times a scale, on the GPU."""
    values = np.random.default_rng(seed).standard_normal((1, rows, HEADS, head_dim), dtype=np.float32)
    return torch.from_numpy(values * np.float32(scale)).cuda()


def operands(head_dim: int, q_len: int, kv_len: int, scale: float = 1.0) -> Operands:
    """Draws q, k and v."""
    return tuple(normal(seed, n, head_dim, scale) for seed, n in enumerate((q_len, kv_len, kv_len), 1))


def cases(head_dim: int, causal: bool) -> Iterator[tuple[str, Operands]]:
    """Operands by name; where only some rows see the large ones, a causal mask is the hard case."""
    lengths = [(1024, 1024), (4096, 4096)] + ([] if causal else [(1024, 65536)])
    for (q_len, kv_len), scale in product(lengths, (1e-3, 1, 30)):
        yield f"{q_len} x {kv_len}, scale {scale:g}", operands(head_dim, q_len, kv_len, scale)
    q, k, v = operands(head_dim, 2048, 2048)
    channel = torch.ones(head_dim, device="cuda")
    channel[[3, 40]] = 60
    decades = torch.logspace(-6, 6, 2048, device="cuda")[None, :, None, None]
    shuffled = decades[:, torch.from_numpy(np.random.default_rng(0).permutation(2048)).cuda()]
    channels = torch.logspace(-6, 6, head_dim, device="cuda")
    yield "two channels of q and k at 60", (q * channel, k * channel, v)
    yield "v over 12 decades by key, ascending", (q, k, v * decades)
    yield "v over 12 decades by key, shuffled", (q, k, v * shuffled)
    yield "v over 12 decades by channel", (q, k, v * channels)
    yield "k over 12 decades by key", (q, k * shuffled / 1e5, v)
    yield "q over 12 decades by channel, k against it", (q * channels, k / channels, v)
    yield "q 1e15, k 1e-15, v 1e-25", (q * 1e15, k * 1e-15, v * 1e-25)
    yield "k and v subnormal", (q * 1e30, k * 1e-40, v * 1e-40)
    yield "logits of 1e4", (q * 35, k * 35, v)
    yield "one key has all weight", (k.sign() * 30, k.sign(), v)
    yield "equal weights, one-signed v", (q * 1e-3, k, v.abs() + 1)
    yield "equal weights, v cancels", (q * 1e-3, k, torch.cat([v[:, 1::2] + 1e3, -v[:, 1::2] - 1e3], 2).reshape(v.shape))


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Standard attention in the dtype of its operands."""
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device="cuda").triu(1) if causal else None
    return standard(torch, q, k, v, hidden)


def implementations(head_dim: int, causal: bool) -> dict[str, Run]:
    """Returns the implementations that are judged, by name."""

    def efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(
                1, 2
            )

    mask = "causal" if causal else "full"
    spec = {"name": mask, "head_dim": head_dim, "dtype": "float32", "mask": mask}
    return {
        "flashgen ieee": flashgen.compile(spec),
        "flashgen tf32": flashgen.compile({**spec, "precision": "tf32"}),
        "standard, cuBLAS float32": lambda q, k, v: plain(q, k, v, causal),
        "PyTorch efficient": efficient,
    }


def errors(o: torch.Tensor, want: torch.Tensor) -> dict[str, float]:
    """Returns the errors of o against float64, by kind."""
    off = o.double() - want
    rows = off.norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-300)
    found = {RELATIVE_NORM: off.norm() / want.norm(), LARGEST: off.abs().max() / want.abs().max(), WORST_ROW: rows.max()}
    return {kind: float(f"{float(error):.3g}") for kind, error in found.items()}


def table(found: dict[str, object]) -> str:
    """Markdown: a row a case, the relative norm and in brackets that of the worst row."""
    rows = found["rows"]
    names = list(dict.fromkeys(r["implementation"] for r in rows))
    lines = [f"{found['gpu']}, driver {found['driver']}, commit {found['commit']}. Relative norm of the error of o (of its worst row).", ""]
    lines += ["| head dim | mask | case | " + " | ".join(names) + " |", "|---" * (len(names) + 3) + "|"]
    for key in dict.fromkeys((r["head_dim"], r["causal"], r["case"]) for r in rows):
        of_case = {r["implementation"]: r for r in rows if (r["head_dim"], r["causal"], r["case"]) == key}
        cells = [f"{of_case[name][RELATIVE_NORM]:.1e} ({of_case[name][WORST_ROW]:.1e})" for name in names]
        lines.append(f"| {key[0]} | {'causal' if key[1] else 'full'} | {key[2]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(found: dict[str, object], path: Path) -> None:
    """A panel a head dim and mask, a line a case, a mark an implementation."""
    panels = list(dict.fromkeys((r["head_dim"], r["causal"]) for r in found["rows"]))
    figure, axes = plt.subplots(1, len(panels), figsize=(4 + 4 * len(panels), 7), sharey=True, squeeze=False)
    names = list(dict.fromkeys(r["case"] for r in found["rows"]))
    for (head_dim, causal), axis in zip(panels, axes[0], strict=True):
        for name, mark in zip(dict.fromkeys(r["implementation"] for r in found["rows"]), "os^D", strict=False):
            chosen = [r for r in found["rows"] if (r["head_dim"], r["causal"], r["implementation"]) == (head_dim, causal, name)]
            axis.plot([r[RELATIVE_NORM] for r in chosen], [names.index(r["case"]) for r in chosen], mark, label=name)
        axis.set(xscale="log", title=f"head dim {head_dim}, {'causal' if causal else 'full'}", xlabel="relative norm of the error of o")
        axis.grid(alpha=0.3)
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    axes[0][0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--cases", default="", help="only those whose name holds this")
    parser.add_argument("--output", type=Path, help="a file without suffix")
    a = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    found = environment()
    rows: list[dict[str, object]] = []
    for head_dim, causal in product(a.head_dims, (False, True)):
        runs = implementations(head_dim, causal)
        for case, (q, k, v) in cases(head_dim, causal):
            if a.cases not in case:
                continue
            want = plain(q.double(), k.double(), v.double(), causal)
            shape = {"suite": "accuracy", "head_dim": head_dim, "causal": causal, "case": case}
            of_case = [{**shape, "implementation": name, **errors(run(q, k, v), want)} for name, run in runs.items()]
            print(
                f"{head_dim} {causal!s:5} {case:42} " + "  ".join(f"{r[RELATIVE_NORM]:.1e} ({r[WORST_ROW]:.1e})" for r in of_case),
                flush=True,
            )
            rows += of_case
    output = a.output or Path(__file__).parent / "results" / f"accuracy_{card_name(found)}"
    output.parent.mkdir(parents=True, exist_ok=True)
    result = {**found, "rows": rows}
    output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    output.with_suffix(".md").write_text(table(result))
    plot(result, output.with_suffix(".png"))


if __name__ == "__main__":
    main()
