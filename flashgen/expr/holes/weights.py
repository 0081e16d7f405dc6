"""The text of weights: what a key alone decides is computed once a key tile, the rest for each element."""

from collections.abc import Callable

from flashgen.expr.holes.begins import RENAMED
from flashgen.expr.holes.bind import Binder, level
from flashgen.expr.holes.hoist import Hoist
from flashgen.expr.holes.parts import WeightHole
from flashgen.expr.holes.passes import Kernel, passed
from flashgen.expr.language.nodes import UNIFORM, Call, Name, Node, names
from flashgen.expr.language.text import show


def weight_hole(weight: Node | None, binder: Callable[..., Binder], hoist: Hoist, shares_numbers: bool) -> WeightHole | None:
    """The text of a weight. `binder`: of this renamed besides; `shares_numbers`: a warp can bring a factor of each key."""
    if weight is None:
        return None
    own = binder()
    of_key, rest = _parted(weight, level(own(Name("h", "int"))) > UNIFORM) if shares_numbers else (None, weight)
    body = None if rest is None else hoist.body(passed(rest, "weight", Kernel(own, hoist)))
    brought = None
    if of_key is not None:
        brought = hoist.apart().body(passed(of_key, "weight", Kernel(binder(renamed=RENAMED["keys"]), hoist)))
    return WeightHole(text=show(weight), body=body, of_key=brought)


def _parted(weight: Node, heads_by_row: bool) -> tuple[Node | None, Node | None]:
    """The factor of a weight that its key alone decides, and the rest; each is None where the other is all of it.

    Of a product of more than two factors nothing is taken: another order might leave float32. `heads_by_row`: rows of a query tile are of
    several heads.
    """
    of_row = {"q_idx", "h"} if heads_by_row else {"q_idx"}
    if names(weight).isdisjoint(of_row):
        return (weight, None) if "kv_idx" in names(weight) else (None, weight)
    match weight:
        case Call("*", (a, b), "float"):
            of_keys = [factor for factor in (a, b) if "kv_idx" in names(factor) and names(factor).isdisjoint(of_row)]
            if len(of_keys) == 1:
                return of_keys[0], b if of_keys[0] is a else a
    return None, weight
