"""A mask that asks whether keys hold a row's number, as that of its document, by runs: a kernel before finds those of each key tile."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flashgen.expr.holes.cuda import cuda
from flashgen.expr.holes.hoist import Body, Member
from flashgen.expr.holes.holes import Holes, Members
from flashgen.expr.language.nodes import Call, Name
from flashgen.expr.prove.affine import alone
from flashgen.expr.prove.linear import COLUMN
from flashgen.expr.tiles.conditions import parts

if TYPE_CHECKING:
    from flashgen.expr.holes.reads import Read
    from flashgen.expr.tiles.extents import Pairing

BIT = "row.seen >> (column / 4 + column % 2) & 1"  # of a column among those of a thread, two of each eight
RUN_KEYS = tuple(range(16, 129, 16))  # of a tile, of which a thread has 32 at most


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The text of what a thread compares in place of each key."""

    pairing: str  # the name of the comparison
    read: "Read"  # of what keys hold, where a tile has more runs than two
    number: str
    type: str  # of that
    begin: str
    end: str


def with_runs(found: Holes, pairings: "tuple[Pairing, ...]", block_n: int | None = None) -> Holes:
    """The holes of an attention whose rows know by runs which keys they see; those given where the mask is no such one.

    `pairings`: the comparisons of its mask whose extents kernels before it find. `block_n`: the keys of a tile, if they are pinned.
    """
    match found.reads, pairings:
        case (read,), (pairing,) if (block_n or RUN_KEYS[0]) in RUN_KEYS and _of_keys(found, read, pairing):
            runs = _runs(found.mask.body, read, pairing)
            return _by_runs(found, pairing, runs) if runs else found
    return found


def _of_keys(found: Holes, read: "Read", pairing: "Pairing") -> bool:
    """True if the comparison is of what keys hold, which the score does not read."""
    atom, body, known = alone(pairing.unknown), found.score.body, f"at.{read.name}"
    of_mask = body is None or all(node.name != known for node in body.below() if isinstance(node, Name))
    held = atom is not None and (atom.op, atom.name) == ("read", read.tensor)
    return of_mask and held and pairing.op == "==" and read.type == "int" and not read.by_row


def _runs(body: Body, read: "Read", pairing: "Pairing") -> Runs | None:
    """The runs of a mask that shows a row all keys between two bounds that hold its number; None: it is another one."""
    found: dict[str, str] = {}
    for part in parts("&", body.nodes[-1]):
        match part:
            case Call("<", (left, x)) if left == COLUMN and "end" not in found:
                found["end"] = cuda(x)
            case Call(">=", (left, x)) if left == COLUMN and "begin" not in found:
                found["begin"] = cuda(x)
            case Call("==", (Name(name), x) | (x, Name(name))) if name == f"at.{read.name}" and "number" not in found:
                found |= {"number": cuda(x), "type": x.type}
            case _:
                return None
    if body.before or not found.keys() >= {"number", "end"}:
        return None
    return Runs(pairing=pairing.name, read=read, **{"begin": "0", **found})


def _by_runs(found: Holes, pairing: "Pairing", runs: Runs) -> Holes:
    place = {(): "", ("batch",): " + (long long)batch * p.q_len", ("heads",): " + (long long)head * p.q_len"}
    first = place.get(pairing.axes, " + (long long)(batch * p.heads + head) * p.q_len")
    start = Member(
        "const int2*", "held_by_rows", f"p.rows_{pairing.name}{first}", comment="begin and end of the keys that hold a row's number"
    )
    row = Member("u32", "seen", "0", comment="a bit for each of a thread's keys, which `see` finds")
    mask = replace(found.mask, body=Body(before=(), value=BIT, nodes=()), early=(), runs=runs)
    members = Members((*found.uniform, start), (*found.row, row))
    return replace(found, members=members, mask=mask, along=replace(found.along, ahead=()))
