"""A mask that a kernel before the attention evaluates: a bit a pair, which the attention reads in place of the mask."""

from dataclasses import replace

from flashgen.expr.holes.hoist import Body, Member
from flashgen.expr.holes.holes import Holes, MaskHole, Members


def with_bits(plain: Holes, whole: Holes, by_sequence: bool) -> Holes:
    """The holes of an attention whose mask is bits: those of the spec without its mask (`plain`), and what `whole` says of the mask.

    `by_sequence`: each sequence has bits of its own.
    """
    start = "p.mask_bits + batch * bit_rows(p) * bit_words(p)" if by_sequence else "p.mask_bits"
    bits = Member("const u32*", "mask_bits", start, comment="32 keys a word: whether each query attends to them")
    row = Member("Bits", "bits", "Bits::of(mask_bits + q_idx * bit_words(p), kv_begin)", comment="of the keys from kv_begin on")
    mask = MaskHole(text=whole.mask.text, body=Body(("return row.bits.words[column / 32] >> column % 32 & 1;",), ()), early=(), bits=True)
    ends = tuple(member for member in plain.row if plain.keys or member.name != "end")  # of the keys, which bits tell too
    members = Members((*plain.uniform, bits), (*ends, row))
    return replace(plain, members=members, mask=mask, reach=whole.reach, requires=whole.requires)
