"""The sections of heads whose keys and values stay in the L2 together, as query tiles are dealt."""

from flashgen.plan.geometry import Sizes
from flashgen.plan.program import Program

_SECTION_BYTES = 32 << 20  # of keys and values of a section of heads, which stay in the L2 together
_HALF_BYTES, _SEEN = 8 << 20, 1024  # the same of either half of the L2, of keys that rows see at a time where it counts
_SECTION_HEADS = (16, 32)  # at most, of short and of long sequences: with more the loads spread too far, as measured
_WIDE = 512  # columns of k and v, from which on more heads are faster, the L2 or not, as measured: up to the first of these,
_WIDE_BYTES = 128 << 20  # or so many bytes


def section(program: Program, sizes: Sizes) -> int:
    """Heads of a section; all sections have about as many: a small last one would keep few multiprocessors busy."""
    columns, halves = program.spec.head_dim.qk + program.spec.head_dim.v, program.attention.dealing.halves
    least, most = _SECTION_HEADS
    most = least if columns >= _WIDE else min(max(least, sizes.kv_len // 32), most)
    room = _WIDE_BYTES if columns >= _WIDE else _HALF_BYTES if halves else _SECTION_BYTES
    keys = min(sizes.kv_len, _SEEN) if halves else sizes.kv_len
    fit = room // max(1, keys * columns * program.dtype.bytes) * sizes.group
    heads = -(-sizes.heads * sizes.batch // (2 if halves else 1))
    sections = -(-heads // max(1, min(fit, most)))
    return -(-heads // sections)
