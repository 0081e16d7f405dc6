"""The kernel that runs after an attention whose blocks take shares of the keys: it merges what they know of each query row."""

from flashgen.plan.kernel import Combine, Extent, Grid, Region, SharePlan, SmemPlan
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec

_WARPS = 8  # of a block
_PART_BYTES = 16 * 32  # of a warp: four columns of o a lane


def combine(spec: Spec, shares: SharePlan) -> Parts:
    """The kernel, and the memory of the shares' states: maximum, sum and o."""
    slices = _WARPS if shares.grouped else 1  # few rows have many shares each, many rows few
    rows: tuple[Extent, ...] = (shares, "batch", "heads", "q_len")
    numbers = {"max": "natural: the reference of its exponents", "sum": "of its exponentials; 0: it has no key, and no o"}
    arguments = (
        Argument("shares_o", "float*", "pointer", "shares_o", comment="of each share of the keys, not divided: [shares, B, Hq, Sq, Dv]"),
        *(Argument(f"shares_{name}", "float*", "pointer", f"shares_{name}", comment=comment) for name, comment in numbers.items()),
        Argument("shares", "int", "scalar", "shares", comment="of the key tiles of a query tile, at most"),
    )
    scratch = (
        Scratch("shares_o", "float32", (*rows, spec.head_dim.v)),
        *(Scratch(f"shares_{name}", "float32", rows) for name in numbers),
    )
    region = Region(name="o of a warp", symbol="", offset=0, bytes=_PART_BYTES, count=_WARPS)
    kernel = Combine(
        "combine",
        Grid(32 * _WARPS, (("q_len", _WARPS // slices), "heads", "batch"), early=True),
        SmemPlan.of(region),
        warps=_WARPS,
        slices=slices,
    )
    return Parts((kernel,), arguments, scratch)
