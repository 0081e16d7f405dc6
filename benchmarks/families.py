"""The families of kernels that faults are planted in, and calls of each: arrays, what they should give, and what differs from that."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import flashgen
from flashgen.appending import Planned, planned
from flashgen.arch import by_name
from flashgen.bench.lists import some_blocks
from flashgen.bench.paged import in_pages, table
from flashgen.emulate import EmulationFault, Given, HostKernel, emulate, emulate_backward
from flashgen.emulate.memory import Watched, fence
from flashgen.expr.meaning.reference import reference, reference_outputs
from flashgen.expr.meaning.reference_backward import backward
from flashgen.merge import planned as plan_merge
from flashgen.plan import Program, plan
from flashgen.plan.alone import record
from flashgen.plan.backward import plan_backward
from flashgen.plan.backward_kernel import Backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.shares import Demand
from flashgen.render import Source, render
from flashgen.render.source import render_alone
from flashgen.runtime.arrays import liken
from flashgen.spec import Spec
from flashgen.spec.layout import axis_order

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
GATE = {"gate": {"shape": ["b", "hk", "kv_len"], "dtype": "float32"}}
BIAS = {"bias": {"shape": ["hq", "kv_len"], "dtype": "float32", "grad": True}}
TANH = {"score": "cap * tanh(s / cap)", "params": {"cap": 20.0}}
BENT = {"score": "cap * tanh(s / cap) + bias[h, kv_idx]", "params": {"cap": {"default": 5.0, "grad": True}}, "tensors": BIAS}
EMBEDDED = {"norm": {"eps": 1e-5}, "rotary": {"kind": "interleaved", "columns": 16, "base": 100.0}}
REPEATED = "kv_idx // 64 % 3 == q_idx // 64 % 3"
BIGBIRD = "(abs(q_idx // 64 - kv_idx // 64) <= 1) | (kv_idx < 64) | (kv_idx // 64 == (kv_len - 1) // 64)"  # more runs than loops
WGMMA, MMA_SYNC = {"block": {"m": 64, "n": 64}}, {"block": {"m": 64, "n": 32}}  # small tiles, so that short sequences have several
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "sm_90a causal": ("sm_90a", {"mask": "causal", "block": {"m": 128, "n": 64}, "stages": 2}),
    "sm_90a softcap": ("sm_90a", {**TANH, "block": {"m": 192, "n": 64}, "stages": 3}),
    "sm_80 pipelined": ("sm_80", {"mask": "causal", **MMA_SYNC, "stages": 2}),
    "sm_80 one stage": ("sm_80", {"mask": "causal & window(100, 0)", **MMA_SYNC, "stages": 1}),
    "sm_90a document": ("sm_90a", {"mask": "document(ids)", "tensors": IDS, **WGMMA}),
    "sm_90a float32": ("sm_90a", {"mask": "causal", "dtype": "float32"}),
    "sm_90a float32 in place": ("sm_90a", {"mask": "causal", "dtype": "float32", "head_dim": {"qk": 40, "v": 64}}),
    "sm_80 float32": ("sm_80", {"mask": "causal", "dtype": "float32"}),
    "three passes": ("sm_80", {"mask": "causal", "schedule": "three_pass"}),
    "keys outer": ("sm_80", {"mask": "causal", "schedule": {"normalize": "each_step", "outer": "kv"}}),
    "standard": ("sm_80", {"mask": "causal", "schedule": "standard"}),
    "sm_90a sigmoid": ("sm_90a", {"score": "sigmoid(s)", "softmax": "none", "outputs": ["o"], **WGMMA}),
    "sm_80 entropy": ("sm_80", {"mask": "causal", "softmax": "off_by_one", "outputs": ["o", "entropy"], **MMA_SYNC}),
    "sm_90a head maximum": ("sm_90a", {"outputs": ["o", "lse", "max_logit"], **WGMMA}),
    "sm_90a numbers of keys": ("sm_90a", {"mask": "causal", "score": "s + gate[b, hk, kv_idx]", "tensors": GATE, **WGMMA}),
    "sm_90a weight": ("sm_90a", {"mask": "causal", "weight": "gate[b, hk, kv_idx]", "tensors": GATE, **WGMMA}),
    "sm_90a packed": ("sm_90a", {"mask": "causal", "layout": "thd", **WGMMA}),
    "sm_80 packed": ("sm_80", {"layout": "thd", **MMA_SYNC}),
    "sm_90a cached": ("sm_90a", {"mask": "causal", "cache": "contiguous", **WGMMA}),
    "sm_80 cached": ("sm_80", {"cache": "contiguous", **MMA_SYNC}),
    "sm_90a pages": ("sm_90a", {"mask": "causal & window(100, 0)", "cache": {"page": 16}, **WGMMA, "stages": 2}),
    "sm_80 pages": ("sm_80", {"mask": "causal", "cache": {"page": 4}, **MMA_SYNC}),
    "sm_90a packed pages": ("sm_90a", {"mask": "causal", "layout": "thd", "cache": {"page": 64}, **WGMMA, "stages": 2}),
    "sm_80 packed pages": ("sm_80", {"mask": "causal", "layout": "thd", "cache": {"page": 16}, **MMA_SYNC}),
    "sm_80 float32 pages": ("sm_80", {"dtype": "float32", "mask": "causal", "layout": "thd", "cache": {"page": 16}, **MMA_SYNC}),
    "sm_90a packed shares": ("sm_90a", {"mask": "causal", "layout": "thd", "split": 3, **WGMMA}),
    "sm_90a lists": ("sm_90a", {"mask": "causal", "blocks": {"m": 64, "n": 64, "lists": "idx"}, **WGMMA}),
    "sm_80 lists": ("sm_80", {"mask": "causal", "blocks": {"m": 64, "n": 64, "lists": "idx", "kind": "bitmap"}, **MMA_SYNC}),
    "sm_90a lists of pages": ("sm_90a", {"mask": "causal", "cache": {"page": 16}, "blocks": {"m": 64, "n": 64, "lists": "idx"}, **WGMMA}),
    "sm_90a embedding": ("sm_90a", {"mask": "causal", **EMBEDDED, **WGMMA}),
    "sm_90a made lists": ("sm_90a", {"mask": REPEATED, **WGMMA}),
    "sm_80 made lists": ("sm_80", {"mask": f"document(ids) | ({REPEATED})", "tensors": IDS, **MMA_SYNC}),
    "sm_80 lists of keys": ("sm_80", {"mask": "causal", "blocks": {"m": 64, "n": 5, "lists": "idx"}, **MMA_SYNC}),
    "sm_80 backward lists": ("sm_80", {"mask": "causal", "backward": True, "blocks": {"m": 64, "n": 64, "lists": "idx"}}),
    "sm_90a backward lists": ("sm_90a", {"mask": "causal", "backward": True, "blocks": {"m": 64, "n": 128, "lists": "idx"}}),
    "sm_90a many runs": ("sm_90a", {"mask": BIGBIRD, **WGMMA}),
    "sm_90a shares": ("sm_90a", {"mask": "causal", "split": 2, **WGMMA}),
    "sm_90a few rows": ("sm_90a", {"mask": "causal", "split": 3}),
    "sm_80 shares": ("sm_80", {"split": 2, **MMA_SYNC}),
    "sm_80 backward": ("sm_80", {"mask": "causal", "backward": True}),
    "sm_90a backward": ("sm_90a", {"mask": "causal", "backward": True}),
    "sm_90a gradients": ("sm_90a", {"mask": "causal", "backward": True, **BENT}),
    "sm_80 packed backward": ("sm_80", {"mask": "causal", "layout": "thd", "backward": True}),
    "sm_90a packed backward": ("sm_90a", {"mask": "causal", "layout": "thd", "backward": True}),
    "sm_90a pair": ("sm_90a", {"mask": "causal", "backward": True, "head_dim": 256}),
    "sm_90a deterministic": ("sm_90a", {"mask": "causal", "backward": True, "deterministic": True}),
    "sm_90a deterministic pair": ("sm_90a", {"mask": "causal", "backward": True, "deterministic": True, "head_dim": 256}),
    "sm_90a embedded backward": ("sm_90a", {"mask": "causal", "backward": True, **EMBEDDED}),
    "sm_90a head shares": ("sm_90a", {"mask": "causal", "backward": True}),
    "sm_80 deterministic": ("sm_80", {"mask": "document(ids)", "tensors": IDS, "backward": True, "deterministic": True}),
}
FEW, APPEND, MERGE = "sm_90a few rows", "append", "merge"  # a query tile with the rows of a group; new keys in a cache; states of attention
HEAD_SHARES = "sm_90a head shares"
HOW: dict[str, dict[str, Any]] = {
    FEW: {"demand": Demand(shared=True, rows=16)},
    "sm_90a float32 in place": {"length": 1024},
    HEAD_SHARES: {"head_shares": 2},
}
SHAPES = [(1, 300, 420, 2, 1), (2, 300, 30, 2, 2), (1, 600, 0, 1, 1)]  # batch, queries, keys, heads of q, of k: one key tile and none too
FEW_SHAPES = [(1, 3, 420, 8, 2), (2, 2, 30, 4, 2), (1, 1, 0, 4, 1)]
NEWS = [(5, 0, 1), (5, 2), (5,)]  # new tokens of the sequences of a call
CACHES = ("k_cache", "v_cache")
GRADIENTS = ("dq", "dk", "dv")
LARGER = (1.0, 4.0)  # q of a draw, in 16 bits: maxima that grow by less and by more than a lazy rescale lets pass
ROUNDING = 6e-7  # at least, relative to a row's norm, as float32 sums are rounded too
DOCUMENTS = (0, 0, 1, 2)  # the first as long as the two behind it, so that tiles lie inside of it from the first on
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a kernel: what runs a text of it under a seed, and what that should give, by name."""

    run: Callable[[Source, int], dict[str, Array]]
    wanted: dict[str, Array]
    rounding: float  # of o and of gradients, relative
    within: float = 2e-4  # what others may be off by, absolute and relative

    def wrong(self, name: str, found: Array) -> int:
        """The numbers, or rows of an array, that are off by more than rounding; of a gradient relative to its longest row."""
        want = self.wanted[name]
        if name not in ("o", *GRADIENTS):
            return int((~np.isclose(found.astype(np.float64), want, rtol=self.within, atol=self.within)).sum())
        norm = np.linalg.norm(want, axis=-1)
        norm = norm.max(initial=0) if name in GRADIENTS else norm
        return int((~(np.linalg.norm(found.astype(np.float64) - want, axis=-1) <= 3 * self.rounding * norm + 1e-6)).sum())

    def finding(self, source: Source, seed: int) -> str:
        """Says in a line what is wrong with a text; nothing if nothing is."""
        try:
            got = self.run(source, seed)
        except EmulationFault as fault:
            return fault.what.splitlines()[0]
        wrong = {name: self.wrong(name, got[name]) for name in self.wanted}
        return "wrong values: " + ", ".join(f"{count} {name}" for name, count in wrong.items()) if any(wrong.values()) else ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kernel as it is emitted, and its calls, of a shape each, by the number of a draw."""

    name: str
    source: Source
    calls: Callable[[int], Iterator[Call]]


def families() -> Iterator[Family]:
    """Every family of kernels."""
    for name, (arch, options) in KERNELS.items():
        spec = Spec(**{"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "lse"], **options})
        program = (plan_backward if spec.backward else plan)(spec, arch, **HOW.get(name, {}))
        assert not name.endswith("made lists") or program.attention.dealing.listed == "mask", name
        source = render(program)
        yield Family(name=name, source=source, calls=partial(calls_of, program, FEW_SHAPES if name == FEW else SHAPES))
    yield Family(name=APPEND, source=render_alone(appended(np.random.RandomState(0), NEWS[0])[1].plan), calls=appending_calls)
    yield Family(name=MERGE, source=render_alone(merged(np.random.default_rng(0))[1]), calls=merging_calls)


def calls_of(program: Program, shapes: list[tuple[int, ...]], draw: int) -> Iterator[Call]:
    """A call of each shape."""
    rng, larger = np.random.default_rng(draw), 1.0 if program.spec.backward or program.spec.dtype == "float32" else LARGER[draw]
    for shape in shapes:
        yield call_of(program, rng, shape, larger)


def call_of(program: Program, rng: np.random.Generator, shape: tuple[int, ...], larger: float) -> Call:
    """A call with normal q, k and v, NaN where no sequence has keys."""
    spec, d = program.spec, program.spec.head_dim
    b, sq, sk, h, hk = shape
    sk = -(-sk // max(1, spec.page)) * max(1, spec.page)  # whole pages
    values = lengths_of(spec, rng, b, sq, sk)
    of_q, of_k = (1 if word in spec.geometry.behind else len(values.get("kv_lens", range(b))) for word in ("q_len", "kv_len"))
    shapes = ((of_q, h, sq, d.qk), (of_k, hk, sk, d.qk), (of_k, hk, sk, d.v), (of_q, h, sq, d.v))
    q, k, v, do = (rng.standard_normal(shape).astype(program.dtype.numpy) for shape in shapes)
    q *= larger
    k[:, :, 400::7] *= 1e-8  # more than float16 planes hold: float32's last query tile goes another way
    if spec.dtype == "float32" and sk:
        k[..., 5], q[0, 0, 5, 5] = -np.abs(k[..., 5]), np.inf  # a row whose scores are all -inf, which no plane holds
    for batch, n in enumerate(values.get("kv_lens", ())):
        k[batch, :, n:] = v[batch, :, n:] = np.nan
    q, do = (spec.order.given(x.transpose(spec.order.from_heads_first)) for x in (q, do))
    if spec.page:
        k, v = (in_pages(spec, x, values["block_table"]) for x in (k, v))
    else:
        k, v = (spec.order.given(x.transpose(spec.order.from_heads_first)) for x in (k, v))
    for tensor in spec.tensors:
        numbers = rng.standard_normal({"gate": (b, hk, sk), "bias": (h, sk)}.get(tensor.name, ()))
        values[tensor.name] = np.sort(rng.choice(np.int32(DOCUMENTS), (b, sk))) if tensor.name == "ids" else numbers.astype(np.float32)
    if spec.blocks:
        values[spec.blocks.lists] = some_blocks(spec, Sizes(b, sq, sk, h, hk), np.random.RandomState(rng.integers(1 << 30)))
    wanted = reference_outputs(spec, q, k, v, **values) if spec.softmax.normalized else {"o": reference(spec, q, k, v, **values)[0]}
    o, lse = wanted["o"].astype(program.dtype.numpy), np.float32(wanted.get("lse", 0))
    given = Given(q=q, k=k, v=v, o=o, do=do, lse=lse)
    if isinstance(program.main, Backward):
        true = backward(spec, q, k, v, do, **values)
        wanted = {**dict(zip(GRADIENTS, (true.q, true.k, true.v), strict=True)), **{x.name: true.values[x.name] for x in spec.with_grad}}

    def run(source: Source, seed: int) -> dict[str, Array]:
        if isinstance(program.main, Backward):
            return emulate_backward(program, source, given, values, seed=seed)
        return emulate(program, source, q, k, v, values, seed=seed, blocks=2)

    within = 2e-2 if spec.with_grad else 2e-4  # a sum of what was rounded to 16 bits
    return Call(run=run, wanted=wanted, rounding=max(ROUNDING, program.dtype.rounding), within=within)


def lengths_of(spec: Spec, rng: np.random.Generator, b: int, sq: int, sk: int) -> dict[str, Array]:
    """The lengths of a call's sequences, and their pages: four where they lie one behind the other."""
    names, found = [name for name, _ in spec.geometry.lengths], dict[str, Array]()
    for name, total in (("cu_seqlens_q", sq), ("cu_seqlens_k", sk)):
        if name in names:
            found[name] = np.array([0, *np.sort(rng.integers(0, total + 1, 3)), total], np.int32)
    if "kv_lens" in names:
        found["kv_lens"] = rng.integers(sk // 2, sk + 1, 4 if found else b).astype(np.int32)
    if spec.page:
        there = -(-found["kv_lens"] // spec.page)
        pages = table(len(there), sk // spec.page, np.random.RandomState(rng.integers(1 << 30)))
        found["block_table"] = np.where(np.arange(pages.shape[1]) < there[:, None], pages, -1).astype(np.int32)
    return found


def appending_calls(draw: int) -> Iterator[Call]:
    """New keys for a cache in pages, turned on their way: what NumPy writes is what the kernel should."""
    random = np.random.RandomState(draw)
    for news in NEWS:
        arrays, call = appended(random, news)
        wanted = {name: x.copy() for name, x in arrays.items()}
        rotary = wanted.pop("cos"), wanted.pop("sin")
        flashgen.append(**wanted, rotary=rotary, layout="thd")

        def run(source: Source, seed: int, arrays: dict[str, Array] = arrays, call: Planned = call) -> dict[str, Array]:
            given = {name: fence(x.copy()) for name, x in arrays.items()}
            watched = {name: Watched(x, "update" if "cache" in name else "constant") for name, x in given.items()}
            held = record(call.plan, {name: x.ctypes.data for name, x in given.items()}, call.strides, call.scalars)
            kernel = HostKernel(source.text, "append", "append.cu")
            kernel.launch(call.scalars["tokens"], call.plan.threads, 0, held, seed, arrays=watched, arch=by_name(call.plan.arch))
            return given

        yield Call(run=run, wanted={name: wanted[name].astype(np.float64) for name in CACHES}, rounding=0.0, within=2e-3)


def appended(random: np.random.RandomState, news: tuple[int, ...]) -> tuple[dict[str, Array], Planned]:
    """The arrays of a call, and its plan: 3 heads, pages of 4 keys, 24 a sequence; the last page of the first sequence is none."""
    tokens, batch = sum(news), len(news)
    shapes = {"k": (tokens, 3, 10), "v": (tokens, 3, 6), **{f"{x}_cache": (6 * batch + 2, 4, 3, n) for x, n in (("k", 10), ("v", 6))}}
    arrays = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    arrays["kv_lens"] = np.int32([random.randint(n, 25) for n in news])
    arrays["kv_lens"][0] = 24  # some of its tokens have no place
    arrays["block_table"] = table(batch, 6, random)
    arrays["block_table"][0, -1] = -1
    arrays["cu_seqlens"] = np.cumsum([0, *news], dtype=np.int32)
    angles = random.standard_normal((24, 4))
    arrays |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    return arrays, planned(arrays, "thd", interleaved=False)


def merging_calls(draw: int) -> Iterator[Call]:
    """States of attention, some of rows without keys: what NumPy makes of two is what the kernel should."""
    rng = np.random.default_rng(draw)
    for _ in range(2):
        arrays, of_merge, *said = merged(rng)
        wanted = flashgen.merge_states(arrays["o_a"], arrays["lse_a"], arrays["o_b"], arrays["lse_b"])

        def run(source: Source, seed: int, arrays: Any = arrays, of_merge: Any = of_merge, said: Any = said) -> dict[str, Array]:
            given = {name: fence(x.copy()) for name, x in arrays.items()}
            watched = {name: Watched(x, "fill" if name in ("o", "lse") else "read") for name, x in given.items()}
            held = record(of_merge, {name: x.ctypes.data for name, x in given.items()}, *said)
            kernel, blocks = HostKernel(source.text, MERGE, "merge.cu"), -(-said[1]["rows"] // of_merge.warps)
            kernel.launch(blocks, of_merge.threads, 0, held, seed, arrays=watched, arch=by_name("sm_90a"))
            return given

        o, lse = (x.astype(np.float64) for x in wanted)
        yield Call(run=run, wanted={"o": o, "lse": lse}, rounding=2.0**-10)


def merged(rng: np.random.Generator) -> Any:
    """The arrays of a call, its plan, strides and sizes."""
    arrays = {}
    for which in "ab":
        empty, o, lse = rng.random((2, 3, 29)) < 0.2, rng.standard_normal((2, 29, 3, 40)), rng.standard_normal((2, 3, 29))
        arrays[f"o_{which}"] = np.where(empty.swapaxes(1, 2)[..., None], 0, o).astype(np.float16)
        arrays[f"lse_{which}"] = np.where(empty, -np.inf, lse).astype(np.float32)
    arrays |= {"o": np.full_like(arrays["o_a"], np.nan), "lse": np.full_like(arrays["lse_a"], np.nan)}
    return arrays, *plan_merge({name: liken(x, name).layout for name, x in arrays.items()}, axis_order("bshd"), "sm_90a")
