"""The time of gradients of variants, of one run, each beside what it is compared with: bfloat16, the backward's kernels alone.

    python benchmarks/gradients.py           # all groups; needs a GPU, CuPy and PyTorch; a file with --save
    python benchmarks/gradients.py --groups documents packed

| group | compared |
|---|---|
| groups | 32 query heads on 8 or 2 key/value heads, beside 32 on 32, which computes as much, and beside cuDNN |
| scores | tanh softcap and ALiBi, beside plain causal |
| deterministic | the same bits in every run, beside any order |
| documents | documents of 1,111 tokens in sequences of 8,192, beside 15 sequences of 1,111, 2 % more tokens |
| packed | sequences one behind the other, beside dense ones; and lengths that differ |
| shapes | window(127, 0), head dims 192 and 128: beside FlashAttention-4 where it is installed |
| mma_sync | the kernel of older architectures on this card, beside PyTorch's flash backend |
"""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from compiling import Asked, compiled

import flashgen
from flashgen.bench import DeviceClock
from flashgen.bench.cases import rounded
from flashgen.bench.results import card_name, environment, save_json
from flashgen.bench.timing import measure
from flashgen.runtime import arrays, device
from flashgen.spec import Spec

RESULTS = Path(__file__).parent / "results"
TOKENS, HIDDEN, DOCUMENT = 16384, 2048, 1111
SOFTCAP: dict[str, Any] = {"score": "softcap * tanh(s / softcap)", "params": {"softcap": 50.0}}
ALIBI: dict[str, Any] = {"score": "s + slopes[h] * (kv_idx - q_idx)", "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32"}}}
DOCUMENTS: dict[str, Any] = {"mask": "causal & document(ids)", "tensors": {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}}


@dataclass(frozen=True)
class Case:
    """A call of a backward."""

    name: str
    head_dim: Any
    batch: int
    length: int
    heads: tuple[int, int]  # of q, of k and v
    says: dict[str, Any] = field(default_factory=lambda: {"mask": "causal"})  # of the spec, besides
    lengths: tuple[int, ...] = ()  # of packed sequences
    arch: str | None = None

    @property
    def spec(self) -> Spec:
        """Its spec."""
        layout = {"layout": "thd"} if self.lengths else {}
        return Spec(head_dim=self.head_dim, dtype="bfloat16", backward=True, **layout, **self.says)

    def prepared(self) -> Callable[[], Any]:
        """The call on fresh random arrays, from what its forward gives."""
        cp, spec = arrays.cupy(), self.spec
        rows = (sum(self.lengths),) if self.lengths else (self.batch, self.length)
        columns = {"q": (self.heads[0], spec.head_dim.qk), "k": (self.heads[1], spec.head_dim.qk), "v": (self.heads[1], spec.head_dim.v)}
        q, k, v = (_draw(*rows, *columns[name]) for name in "qkv")
        values: dict[str, Any] = {}
        if self.lengths:
            ends = cp.asarray(np.cumsum([0, *self.lengths], dtype=np.int32))
            values = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        if "slopes" in str(self.says):
            values["slopes"] = cp.asarray(-(2.0 ** -np.arange(1, self.heads[0] + 1, dtype=np.float32)))
        if "ids" in str(self.says):
            values["ids"] = cp.asarray(np.tile(np.arange(self.length, dtype=np.int32) // DOCUMENT, (self.batch, 1)))
        attention = flashgen.compile(spec, self.arch)
        o, lse = attention(q, k, v, **values)
        do = _draw(*o.shape)
        return lambda: attention.backward(do, q, k, v, o, lse, **values)


def _draw(*shape: int) -> Any:
    return rounded(arrays.cupy().random.standard_normal(shape), "bfloat16")


def of_pytorch(backend: str, head_dim: int, length: int, heads: tuple[int, int], batch: int = 0) -> Callable[[], Any]:
    """The causal backward of one of PyTorch's backends; without a batch of 16k tokens."""
    torch, attention = importlib.import_module("torch"), importlib.import_module("torch.nn.attention")
    shapes = ((batch or TOKENS // length, count, length, head_dim) for count in (heads[0], heads[1], heads[1]))
    leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
        o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=heads[0] != heads[1])
    do = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)


def of_flash_attn(case: Case, **words: Any) -> "Runs":
    """The backward of FlashAttention-4 in a case, where it is installed and takes it."""
    if not (importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.cute")):
        return {}
    torch = importlib.import_module("torch")
    dims, (hq, hk) = case.spec.head_dim, case.heads
    shapes = ((case.batch, case.length, heads, columns) for heads, columns in ((hq, dims.qk), (hk, dims.qk), (hk, dims.v)))
    leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    try:
        found = importlib.import_module("flash_attn.cute").flash_attn_func(*leaves, **words)
        o = found[0] if isinstance(found, tuple) else found
        do = torch.randn_like(o)
        torch.autograd.grad(o, leaves, do, retain_graph=True)
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError) as error:
        print(f"flash-attn 4 does not take {case.name}: {str(error).splitlines()[:1]}")
        return {}
    return {f"flash-attn 4 {case.name}": lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)}


def grid(name: str, head_dim: int, length: int, says: dict[str, Any], arch: str | None = None) -> Case:
    """A case of the grid: 16k tokens, hidden size 2048."""
    heads = HIDDEN // head_dim
    return Case(name, head_dim, TOKENS // length, length, (heads, heads), says, arch=arch)


Runs = Mapping[str, Case | Callable[[], Any]]


def asked(case: Case) -> Asked:
    """Lists what a case has to have compiled."""
    return Asked(case.spec, case.arch or device.current().arch.name, case.length)


def scores() -> Iterator[tuple[str, Runs]]:
    """Scores with a slope beside the plain one."""
    cases = {"causal": {}, "softcap": SOFTCAP, "alibi": ALIBI}
    for d in (64, 128):
        yield f"scores {d} 8192", {name: grid(name, d, 8192, {"mask": "causal"} | says) for name, says in cases.items()}


def deterministic() -> Iterator[tuple[str, Runs]]:
    """Sums in the order of the tiles beside sums in any order."""
    for d in (64, 128, 256):
        for length in (4096, 16384):
            for mask in ("full", "causal", "causal & window(1023, 0)"):
                cases = {"any order": {}, "deterministic": {"deterministic": True}}
                runs = {name: grid(name, d, length, {"mask": mask} | says) for name, says in cases.items()}
                yield f"deterministic {d} {mask} {length}", runs


def documents() -> Iterator[tuple[str, Runs]]:
    """Documents told apart by ids, and packed, beside as many sequences."""
    for d in (64, 128):
        heads = (HIDDEN // d,) * 2
        count = -(-TOKENS // DOCUMENT)
        runs = {"dense": Case("dense", d, count, DOCUMENT, heads), "documents": Case("documents", d, 2, 8192, heads, DOCUMENTS)}
        runs["packed"] = Case("packed", d, count, DOCUMENT, heads, lengths=(DOCUMENT,) * count)
        yield f"documents {d}", runs


def packed() -> Iterator[tuple[str, Runs]]:
    """Packed sequences beside as many tokens in sequences of one length."""
    mixed = (16384, *np.random.default_rng(0).integers(100, 501, 63).tolist())
    for d in (64, 128, 256):
        heads = (HIDDEN // d,) * 2
        for length in (1024, 4096):
            dense, one = grid("dense", d, length, {"mask": "causal"}), (length,) * (TOKENS // length)
            runs = {"dense": dense, "packed": Case("packed", d, len(one), length, heads, lengths=one)}
            yield f"packed {d} {len(one)} x {length}", runs
    heads = (HIDDEN // 128,) * 2
    parts = {"longest alone": Case("longest", 128, 1, 16384, heads), "packed": Case("packed", 128, 64, 16384, heads, lengths=mixed)}
    yield "packed 128, 16384 and 63 of 100 to 500", parts


def shapes() -> Iterator[tuple[str, Runs]]:
    """A window on shared heads, and head dims of latent attention."""
    window = Case("window", 64, 2, 8192, (64, 8), {"mask": "causal & window(127, 0)"})
    wide = {mask: Case(mask, {"qk": 192, "v": 128}, 2, 8192, (128, 128), {"mask": mask}) for mask in ("full", "causal")}
    yield "window(127, 0), B2, 64/8 heads, 8192, 64", {"window": window, **of_flash_attn(window, causal=True, window_size=(127, 0))}
    peers = of_flash_attn(wide["full"]) | of_flash_attn(wide["causal"], causal=True)
    yield "192/128, B2, 128 heads, 8192", wide | peers


def mma_sync() -> Iterator[tuple[str, Runs]]:
    """The kernel of mma.sync beside PyTorch's flash backend."""
    for d in (64, 128):
        for length in (4096, 16384):
            ours = grid("ours", d, length, {"mask": "causal"}, arch="sm_90")
            flash = of_pytorch("FLASH_ATTENTION", d, length, (HIDDEN // d,) * 2)
            yield f"mma_sync {d} causal {length}", {"pytorch flash": flash, "mma_sync": ours}


def groups() -> Iterator[tuple[str, Runs]]:
    """Query heads that share keys and values, beside as many that do not."""
    for batch, length in ((1, 2048), (1, 4096), (1, 8192), (8, 2048)):
        runs = {f"{h} of {kv}": Case("gqa", 128, batch, length, (h, kv)) for h, kv in ((32, 32), (32, 8), (32, 2))}
        yield f"groups 128 causal {batch} x {length}", runs | {"cudnn, 32 of 8": of_pytorch("CUDNN_ATTENTION", 128, length, (32, 8), batch)}


GROUPS = {one.__name__: one for one in (groups, scores, deterministic, documents, packed, shapes, mma_sync)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="a file under benchmarks/results")
    a = parser.parse_args()
    rows, chosen = [], [(group, name, runs) for group in a.groups for name, runs in GROUPS[group]()]
    compiled(asked(case) for *_, runs in chosen for case in runs.values() if isinstance(case, Case))
    for group, name, given in chosen:
        runs = {one: case.prepared() if isinstance(case, Case) else case for one, case in given.items()}
        taken = {one: timing.ms for one, timing in measure(runs, DeviceClock(), a.repetitions).items()}
        first = next(iter(taken.values()))
        print(f"{name:48} " + "  ".join(f"{one} {ms:.3f} ms ({ms / first:.2f})" for one, ms in taken.items()), flush=True)
        rows.append({"group": group, "case": name, "ms": {one: round(ms, 4) for one, ms in taken.items()}})
    if a.save:
        found = environment()
        save_json({**found, "suite": "gradients", "rows": rows}, RESULTS / f"gradients_{card_name(found)}.json")


if __name__ == "__main__":
    main()
