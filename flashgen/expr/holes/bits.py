"""A mask that a kernel before the attention evaluates: a bit a pair, which the attention reads in place of the mask."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from flashgen.expr.holes.hoist import Body, Member
from flashgen.expr.holes.holes import Holes, Members
from flashgen.expr.holes.parts import MaskHole

if TYPE_CHECKING:
    from flashgen.spec.tensors import Blocks


BIT = "row.{}.words[column / 32] >> column % 32 & 1"  # of a key among those from kv_begin on


def with_listed(found: Holes, blocks: "Blocks") -> Holes:
    """The holes of an attention that asks for each key whether lists have it: by bits that a kernel before has made of them."""
    heads, head = ("p.heads", "head") if blocks.heads == "hq" else ("p.heads / p.group", "kv_head")
    place = f"((long long)batch * ({heads}) + {head}) * ((p.q_len + {blocks.m - 1}) / {blocks.m})"
    start = Member("const u32*", "listed_keys", f"p.list_bits + {place} * bit_words(p)", comment="32 keys a word: which are in its lists")
    row = Member(
        "Bits", "listed", f"Bits::of(listed_keys + q_idx / {blocks.m} * bit_words(p), kv_begin)", comment="of the keys from kv_begin on"
    )
    body = replace(found.mask.body, value=f"({found.mask.body.value}) & ({BIT.format('listed')})")
    members = Members((*found.uniform, start), (*found.row, row))
    return replace(found, members=members, mask=replace(found.mask, body=body, listed=True))


def with_bits(plain: Holes, whole: Holes, by_sequence: bool) -> Holes:
    """The holes of an attention whose mask is bits: those of the spec without its mask (`plain`), and what `whole` says of the mask.

    `by_sequence`: each sequence has bits of its own.
    """
    start = "p.mask_bits + batch * bit_rows(p) * bit_words(p)" if by_sequence else "p.mask_bits"
    bits = Member("const u32*", "mask_bits", start, comment="32 keys a word: whether each query attends to them")
    row = Member("Bits", "bits", "Bits::of(mask_bits + q_idx * bit_words(p), kv_begin)", comment="of the keys from kv_begin on")
    mask = MaskHole(text=whole.mask.text, body=Body(before=(), value=BIT.format("bits"), nodes=()), early=(), bits=True)
    kept = tuple(member for member in plain.row if plain.keys or not _of_end_alone(plain, member))  # bits tell the end of the keys too
    members = Members((*plain.uniform, bits), (*kept, row))
    return replace(plain, members=members, mask=mask, reach=whole.reach, requires=whole.requires)


def _of_end_alone(plain: Holes, member: Member) -> bool:
    """True if only the test of the end of the keys reads a member of Row."""
    read = re.compile(rf"\brow\.{member.name}\b")
    return bool(read.search(plain.mask.body.value)) and not read.search(repr(plain.score))
