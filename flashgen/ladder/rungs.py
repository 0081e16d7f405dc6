"""The rungs, from the bottom up. Each says what it does, which kernel it is, and why it may be slower than the one below."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from flashgen.arch import Arch
from flashgen.spec import Spec

_PLAIN, _HOPPER = "sm_90", "sm_90a"  # of a Hopper card: without and with warpgroups and TMA

PINNED_HEAD_DIM = 128  # the largest with registers for a pinned tile


@dataclass(frozen=True)
class Rung:
    """One way to run attention."""

    name: str
    title: str
    story: str  # what it changed
    schedule: str | Mapping[str, Any] | None  # as a spec says it; None: array operations
    derivation: str  # its name for flashgen.derive
    slower: str = ""  # why it may be slower than the rung below
    hopper: bool = False  # by the kernel that Hopper has of its own, where there is one
    elsewhere: bool = True  # other cards run it too
    loops: tuple[str, ...] = ()  # functions of the emitted text that show what it does
    pins: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def spec(self, head_dim: int, dtype: str) -> Spec:
        """Full attention by this schedule."""
        pins = self.pins if head_dim <= PINNED_HEAD_DIM else {}
        return Spec(name=self.name, head_dim=head_dim, dtype=dtype, schedule=self.schedule or "standard", **pins)

    def arch(self, device: Arch | None) -> str | None:
        """The architecture to compile for on a device (None: no device, only a text to read); None if the device has no such kernel."""
        if device is None or device.name == _HOPPER:
            return _HOPPER if self.hopper else _PLAIN
        return device.name if self.elsewhere else None


RUNGS = (
    Rung(
        "arrays", "Standard attention, array operations",
        "S = scale q kᵀ, P = softmax(S), O = P v, an array operation at a time. Each operation reads and writes an array of all pairs of a "
        "query and a key, so memory grows with the square of the length, and time goes by in moving it.",
        None, "standard",
    ),
    Rung(
        "standard", "Standard attention, three kernels",
        "The same steps as three kernels: scores with scale and mask, a softmax that reads a row twice, the product with v. S and P still "
        "lie in global memory, but are touched five times instead of a dozen.",
        "standard", "standard", loops=("write", "run", "normalize_row"),
    ),
    Rung(
        "three_pass", "Safe softmax, three passes",
        "Nothing of the size of all pairs is kept. A block holds a tile of queries and passes three times over the keys: for the maximum, "
        "for the sum, for the output. Scores are computed anew each time: three times the products with k, no memory.",
        "three_pass", "three_pass", loops=("maximum_step", "sum_step", "output_step"),
    ),
    Rung(
        "two_pass", "Online softmax, two passes",
        "The sum follows the maximum: where that moves, the sum so far is multiplied by 2^(old - new). So the first two passes are one.",
        "two_pass", "two_pass", loops=("maximum_and_sum_step", "output_step"),
    ),
    Rung(
        "fa1", "FlashAttention 1: one pass, keys in the outer loop",
        "The output follows the maximum too, so one pass is enough. A key tile stays while query tiles pass by; maximum, sum and output of "
        "each row, divided by the sum, go out to global memory after each key tile and come back for the next. (FlashAttention 1 gave a "
        "block a head; here it takes four query tiles of one, so that sixteen heads keep a large card busy.)",
        {"passes": 1, "normalize": "each_step", "rescale": "always", "outer": "kv"}, "each_step_kv_outer",
        "it reads and writes maximum, sum and output of every row, in float32, at each key tile: more bytes than a second pass over the "
        "keys would read, and a step waits for them",
        loops=("run", "step", "normalized_update"),
    ),
    Rung(
        "each_step", "Queries in the outer loop",
        "The loops change places: a block keeps its queries and their state in registers, keys pass by, and every row is written once. "
        "The output is still divided by the sum after each tile and multiplied by it before the next.",
        {"passes": 1, "normalize": "each_step", "rescale": "always"}, "each_step", loops=("normalized_step", "normalized_update"),
    ),
    Rung(
        "fa2", "FlashAttention 2: divided once",
        "The output stays a sum and is divided by l once, at the end.",
        {"passes": 1, "normalize": "end", "rescale": "always"}, "one_pass",
        "both wait for the tensor cores, which the division of a few registers hides behind",
        loops=("step", "attend"), pins={"block": {"m": 128, "n": 64}, "warps": 4},
    ),
    Rung(
        "fa3", "FlashAttention 3: specialised warps, overlapped",
        "The same recurrences on Hopper's asynchronous units: one warpgroup loads tiles by TMA, the others multiply by wgmma and take "
        "turns, so that the exponentials of one run beside the products of another.",
        {"passes": 1, "normalize": "end", "rescale": "always"}, "one_pass",
        hopper=True, elsewhere=False, loops=("advance_tile",),
    ),
    Rung(
        "lazy", "Lazy rescaling",
        "The reference of the exponents stays until the maximum passes it by more than 8 in log2 units; then, and only then, sum and "
        "output are multiplied. Exact, because any reference gives the same quotient.",
        {"passes": 1, "normalize": "end", "rescale": {"lazy": 8}}, "lazy",
        "at head dim 64 the vote of a warp on whether to rescale costs as much as the multiplications that it saves; from 128 on it pays",
        hopper=True, loops=("softmax", "rescale_rows"),
    ),
)  # fmt: skip
