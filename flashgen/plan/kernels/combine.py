"""The kernel that runs after an attention whose blocks take shares of the keys: it merges what they know of each query row."""

from flashgen.plan.kernel import Combine, Extent, Grid, Merging, Region, SharePlan, SmemPlan
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec

_WARPS, _AHEAD = 8, 8  # of a block; shares that a warp reads at once
_LISTED_SLICES, _LISTED_AHEAD = 2, 4  # of them on one row, where some rows have many shares and some few; likewise, more would spill
_RESIDENT = 8  # blocks of a multiprocessor
_PART_BYTES = 16 * 32  # of a warp: four columns of o a lane


def combine(spec: Spec, shares: SharePlan, early: bool) -> Parts:
    """The kernel, and the memory of the shares' states: maximum, sum and o. `early`: it may start before the attention ends."""
    if shares.own:
        return _by_list(spec, shares, early)
    rows: tuple[Extent, ...] = (shares, "batch", "heads", "q_len")
    known = _known(spec, rows, "[shares, B, Hq, Sq, Dv]")
    known = known.followed(Parts((), (Argument("shares", "int", "scalar", "shares", comment="of the key tiles of a query tile, at most"),)))
    grid = Grid(32 * _WARPS, (Merging(shares, _WARPS, _AHEAD),), early=early)
    return Parts((_kernel(0, _AHEAD, grid),), ()).followed(known)


def _by_list(spec: Spec, shares: SharePlan, early: bool) -> Parts:
    """The same where a list of work has the shares: blocks pass over the rows that have some."""
    states = Argument("states", "int", "scalar", "shares", comment="rows of shares that there is place for")
    grid = Grid(32 * _WARPS, (("q_len", _WARPS // _LISTED_SLICES), "heads"), early=early, resident=_RESIDENT)
    return (
        Parts((_kernel(_LISTED_SLICES, _LISTED_AHEAD, grid),), ())
        .followed(_known(spec, (shares,), "[states, Dv]"))
        .followed(Parts((), (states,)))
    )


def _known(spec: Spec, rows: tuple[Extent, ...], axes: str) -> Parts:
    """The states of the shares: arguments and memory. `axes`: of their o."""
    numbers = {"max": "natural: the reference of its exponents", "sum": "of its exponentials; 0: it has no key, and no o"}
    arguments = (
        Argument("shares_o", "float*", "pointer", "shares_o", comment=f"of each share of the keys, not divided: {axes}"),
        *(Argument(f"shares_{name}", "float*", "pointer", f"shares_{name}", comment=comment) for name, comment in numbers.items()),
    )
    scratch = (
        Scratch("shares_o", "float32", (*rows, spec.head_dim.v)),
        *(Scratch(f"shares_{name}", "float32", rows) for name in numbers),
    )
    return Parts((), arguments, scratch)


def _kernel(slices: int, ahead: int, grid: Grid) -> Combine:
    region = Region(name="o of a warp", symbol="", offset=0, bytes=_PART_BYTES, count=_WARPS)
    return Combine("combine", grid, SmemPlan.of(region), warps=_WARPS, slices=slices, ahead=ahead)
