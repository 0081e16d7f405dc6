"""The peers: other implementations of attention on this machine, and how each says a case. None is imported before it is asked for."""

import functools
import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flashgen.api import Attention
from flashgen.arch import Arch
from flashgen.bench.cases import Case
from flashgen.bench.standard import standard
from flashgen.runtime import arrays
from flashgen.spec import Spec
from flashgen.spec.layout import DEFAULT

Tensors = Mapping[str, Any]  # what a spec reads, by name, in the library of the implementation
Call = Callable[..., Any]  # q, k, v -> o; of gradients q, k, v, do -> dq


OURS = "flashgen"  # the name of what the others are compared with
DENSE, MMA_SYNC = f"{OURS} dense", f"{OURS} mma.sync"  # and of flashgen otherwise


def _same(x: Any) -> Any:
    return x


class UnfitError(Exception):
    """A case that an implementation has no words for."""


@dataclass(frozen=True)
class Prepared:
    """A run to be timed, and what had to happen before it besides compilation, as building a mask."""

    call: Call
    mask_ms: float = 0.0


@dataclass(frozen=True)
class Implementation:
    """One way to compute a case. `prepare` raises UnfitError, or whatever its library raises."""

    name: str
    module: str  # that it needs
    prepare: Callable[[Case, Tensors], Prepared]
    adopt: Callable[[Any], Any] = _same  # from CuPy, without a copy
    error: float = 0.0  # relative, that its o may have even where the dtype allows less

    @property
    def installed(self) -> bool:
        """True if its module can be imported."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # not even the package that it would be in
            return False


def _torch() -> Any:
    return importlib.import_module("torch")


def to_torch(x: Any) -> Any:
    """A PyTorch tensor in the memory of a CuPy array; DLPack of CuPy knows no bfloat16."""
    torch = _torch()
    if x.dtype.name == "bfloat16":
        return torch.from_dlpack(x.view("uint16")).view(torch.bfloat16)
    return torch.from_dlpack(x)


def prepare_flashgen(case: Case, tensors: Tensors, arch: str | None = None) -> Prepared:
    """Prepares flashgen's attention, with o as its one output."""
    attn = Attention(Spec(**(case.spec.to_json() | {"outputs": ["o"]})), arch)
    return Prepared(lambda q, k, v: attn(q, k, v, **tensors))


def prepare_dense(case: Case, tensors: Tensors) -> Prepared:
    """Prepares flashgen's attention on sequences in arrays of their own, which the case has one behind the other."""
    if not case.spec.order.packed or case.spec.page or case.unequal:
        raise UnfitError("a dense batch is measured beside packed sequences that are all as long")
    attn = Attention(Spec(**(case.spec.to_json() | {"outputs": ["o"], "layout": DEFAULT})))
    own = {name: x for name, x in tensors.items() if name not in dict(case.spec.geometry.lengths)}

    def call(q: Any, k: Any, v: Any) -> Any:
        return attn(*(x.reshape(case.batch, -1, *x.shape[1:]) for x in (q, k, v)), **own).reshape(q.shape)

    return Prepared(call)


def _sdpa(backend: str) -> Callable[[Case, Tensors], Prepared]:
    """PyTorch's scaled_dot_product_attention through one backend."""

    def prepare(case: Case, tensors: Tensors) -> Prepared:
        if case.variant not in ("full", "causal", "bias"):
            raise UnfitError("known to scaled_dot_product_attention are full, causal and a bias")
        torch = _torch()
        attention = torch.nn.functional.scaled_dot_product_attention
        kernel = importlib.import_module("torch.nn.attention").sdpa_kernel
        chosen = getattr(importlib.import_module("torch.nn.attention").SDPBackend, backend)
        more: dict[str, Any] = {"is_causal": case.variant == "causal"} | ({"enable_gqa": True} if case.spec.group not in (None, 1) else {})
        begin = time.perf_counter()
        if case.variant == "bias":
            hidden = torch.ones(case.seqlen, case.seqlen, dtype=torch.bool, device="cuda").triu(1)
            more = {"attn_mask": tensors["bias"].masked_fill(hidden, -math.inf).to(getattr(torch, case.spec.dtype))[None]}
            torch.cuda.synchronize()
        mask_ms = 1e3 * (time.perf_counter() - begin)

        def call(q: Any, k: Any, v: Any) -> Any:
            with kernel(chosen):
                return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **more).transpose(1, 2)

        return Prepared(call, mask_ms)

    return prepare


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:  # noqa: ARG001
    return q >= k


def _alone(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:  # noqa: ARG001
    return score


def flex_words(case: Case, t: Tensors) -> tuple[Any, Any]:
    """The mask and the score of a variant as FlexAttention takes them; None for no mask."""
    torch = _torch()
    masks: dict[str, Any] = {
        "full": None,
        "window": lambda _b, _h, q, k: (q >= k) & (q - k <= 1023),
        "prefix": lambda _b, _h, q, k: (k < 2048) | (q >= k),
        "chunk": lambda _b, _h, q, k: (q >= k) & (q // 1024 == k // 1024),
        "padding": lambda b, _h, _q, k: k < t["lens"][b],
        "document": lambda b, _h, q, k: (q >= k) & (t["ids"][b, q] == t["ids"][b, k]),
        "strided": lambda _b, _h, q, k: (q >= k) & ((q - k) % 4 == 0),
    }
    scores: dict[str, Any] = {
        "softcap": lambda s, _b, _h, _q, _k: 50.0 * torch.tanh(s / 50.0),
        "alibi": lambda s, _b, h, q, k: s + t["slopes"][h] * (k - q),
        "bias": lambda s, _b, h, q, k: s + t["bias"][h, q, k],
        "bias_16": lambda s, _b, h, q, k: s + t["bias"][h, q, k],
        "key_bias": lambda s, b, _h, _q, k: s + t["bias"][b, k],
        "forget": lambda s, b, h, q, k: s + t["gate"][b, h, q] - t["gate"][b, h, k],
        "distance": lambda s, _b, h, q, k: s + t["table"][h, torch.clamp(q - k, min=0)],
        "t5": lambda s, _b, h, q, k: s + t["table"][torch.clamp(torch.where(q - k < 16, q - k, 16 + (q - k) // 128), 0, 31), h],
        "temperature": lambda s, _b, h, _q, _k: t["temperature"][h] * s,
        "log_n": lambda s, _b, _h, q, _k: s * torch.log(torch.clamp(q, min=1)),
    }
    if case.spec.group not in (None, 1):
        raise UnfitError("heads in groups are not asked of FlexAttention here")
    if case.variant not in {*masks, *scores, "causal"}:
        raise UnfitError("known to FlexAttention are masks and scores, neither sinks nor other weights")
    return masks.get(case.variant, _causal), scores.get(case.variant, _alone)


@functools.cache
def _flex() -> Any:
    torch = _torch()
    torch._dynamo.config.recompile_limit = 256  # beyond it PyTorch runs uncompiled: every case is a compilation of the same function
    return torch.compile(importlib.import_module("torch.nn.attention.flex_attention").flex_attention)


def prepare_flex(case: Case, tensors: Tensors) -> Prepared:
    """Prepares FlexAttention, its block mask built before."""
    mask, score = flex_words(case, tensors)
    flex, torch = _flex(), _torch()
    begin = time.perf_counter()
    create = importlib.import_module("torch.nn.attention.flex_attention").create_block_mask
    batch = case.batch if case.variant in ("padding", "document") else None
    block_mask = mask and create(mask, batch, None, case.seqlen, case.seqlen, device="cuda")
    torch.cuda.synchronize()
    mask_ms = 1e3 * (time.perf_counter() - begin) if mask else 0.0

    def call(q: Any, k: Any, v: Any) -> Any:
        rows = (x.transpose(1, 2) for x in (q, k, v))
        return flex(*rows, score_mod=None if score is _alone else score, block_mask=block_mask).transpose(1, 2)

    return Prepared(call, mask_ms)


def flash_words(version: int, case: Case, tensors: Tensors) -> dict[str, Any]:
    """The keywords of flash_attn_func, as the package of this version takes them."""
    known: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"causal": True},
        "window": {"causal": True, "window_size": (1023, 0)},
        "softcap": {"causal": True, "softcap": 50.0},
    }
    if version == 2:
        known["alibi"] = {"causal": True, "alibi_slopes": tensors.get("slopes")}
    if version == 4:
        known["sink"] = {"causal": True, "learnable_sink": tensors.get("sinks")}
    if case.variant not in known:
        raise UnfitError(f"flash_attn_func of version {version} has no argument for it")
    return known[case.variant]


def _flash(version: int, module: str) -> Callable[[Case, Tensors], Prepared]:
    """FlashAttention from Dao-AILab, by major version."""

    def prepare(case: Case, tensors: Tensors) -> Prepared:
        words = flash_words(version, case, tensors)
        attention = importlib.import_module(module).flash_attn_func

        def call(q: Any, k: Any, v: Any) -> Any:
            o = attention(q, k, v, **words)
            return o[0] if isinstance(o, tuple) else o

        return Prepared(call)

    return prepare


def prepare_standard(case: Case, tensors: Tensors) -> Prepared:  # noqa: ARG001
    """Prepares standard attention, each step of it an operation of CuPy."""
    if case.variant not in ("full", "causal") or case.queries or case.spec.group not in (None, 1):
        raise UnfitError("standard attention in CuPy is written for full and causal masks")
    if case.spec.dtype == "bfloat16":
        raise UnfitError("CuPy has no product of bfloat16")
    cp = arrays.cupy()
    hidden = cp.triu(cp.ones((case.seqlen, case.seqlen), bool), 1) if case.variant == "causal" else None
    return Prepared(lambda q, k, v: standard(cp, q, k, v, hidden, cp.float32))


PEERS = (
    Implementation("cudnn", "torch", _sdpa("CUDNN_ATTENTION"), to_torch),
    Implementation("flash", "torch", _sdpa("FLASH_ATTENTION"), to_torch),
    Implementation("efficient", "torch", _sdpa("EFFICIENT_ATTENTION"), to_torch),
    Implementation("flex", "torch", prepare_flex, to_torch),
    Implementation("flash-attn 2", "flash_attn.flash_attn_interface", _flash(2, "flash_attn.flash_attn_interface"), to_torch),
    Implementation("flash-attn 3", "flash_attn_interface", _flash(3, "flash_attn_interface"), to_torch),
    Implementation("flash-attn 4", "flash_attn.cute", _flash(4, "flash_attn.cute"), to_torch),
    Implementation("standard", "cupy", prepare_standard),
)


def implementations(arch: Arch, packed: bool = False) -> list[Implementation]:
    """flashgen (on Hopper also with the kernel of all other architectures, beside packed sequences a dense batch) and every peer that is
    installed."""
    peers = [peer for peer in PEERS if peer.installed]
    adopt = to_torch if any(peer.adopt is to_torch for peer in peers) else _same
    found = [Implementation(OURS, "flashgen", prepare_flashgen, adopt), *peers]
    if packed:
        found.append(Implementation(DENSE, "flashgen", prepare_dense, adopt))
    if arch.name == "sm_90a":
        found.append(Implementation(MMA_SYNC, "flashgen", functools.partial(prepare_flashgen, arch="sm_90"), adopt))
    return found


def is_peer(name: str) -> bool:
    """True if an implementation is not flashgen's."""
    return name not in (OURS, DENSE, MMA_SYNC)
