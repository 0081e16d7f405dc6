"""The planes by which float32 operands go through 16-bit tensor cores: float16, scaled by powers of two.

x = 2^-e (high + low): `high` is x rounded to 11 bits, `low` the exact rest rounded to 11 more, and e brings the largest of a query row,
or of a tile of keys or values, into [2^14, 2^15). Keys and values are split by a kernel before the attention, which then reads planes; or
in place, by two more warpgroups of the attention, where they arrive in shared memory: no planes in memory, but a key tile is split again
for each query tile that sees it. A product of two such numbers is three products of planes; the fourth, low x low, lies
below the rounding of float32. Small products come first, because a tensor core truncates its sums in proportion to what they hold; and o
is never carried in one, but takes each key tile's product with one rounded multiply-add.
"""

from dataclasses import dataclass

from flashgen.spec import Spec

LOST = "planes do not hold: rows or columns of a tile of q, k or v more than 2^17 apart"


@dataclass(frozen=True)
class PlanesPlan:
    """The planes of an operand, and the products that make one product of float32."""

    count: int  # of planes, 11 bits each
    products: tuple[tuple[int, int], ...]  # planes of the left and of the right factor, in order; 0 is the high one
    error: float  # of o, relative to its norm, that normally distributed operands lead one to expect

    @property
    def text(self) -> str:
        """A line for banners."""
        names = ("high", "low")
        products = " + ".join(f"{names[a]} x {names[b]}" for a, b in self.products)
        order = f"{products}, small ones before or apart" if self.count > 1 else products
        planes = "one float16 plane" if self.count == 1 else f"{self.count} float16 planes"
        return f"{planes}, scaled by powers of two: a query row, a tile of keys or values; {order}; o error about {self.error:.0e}"


PLANE_BYTES = 2  # of a number in one plane, float16
PLANES = {
    "ieee": PlanesPlan(2, ((1, 0), (0, 1), (0, 0)), 4e-7),
    "tf32": PlanesPlan(1, ((0, 0),), 4e-4),
}


def place_reason(in_place: bool, clocks: dict[bool, float], objection: str) -> str:
    """The reason why keys and values are split where they are. `clocks`: expected a query row in place (True), and before (False)."""
    if True not in clocks:
        return f"a kernel before the attention splits keys and values, since no candidate can in place: {objection}"
    if in_place:
        where = "where they arrive in shared memory, so no kernel before writes planes"
    else:
        where = "by a kernel before: in place each query tile would split the key tiles that it sees again"
    expected = f"{clocks[True]:.0f} in place, {clocks[False]:.0f} by a kernel before"
    return f"keys and values are split {where}. Expected clocks of a query row: {expected}"


def planes(spec: Spec) -> PlanesPlan | None:
    """The planes of a spec's operands; None where tensor cores take them as they are.

    >>> planes(Spec(head_dim=64, dtype="float32")).count
    2
    """
    return PLANES[spec.precision] if spec.element.operand == "planes" else None
