"""The sections of heads whose arrays stay in the L2 together, as query tiles are dealt, or in a backward key tiles."""

from collections.abc import Callable

from flashgen.plan.geometry import Sizes
from flashgen.plan.kernel import Backward
from flashgen.plan.program import Program

_SECTION_BYTES = 32 << 20  # of keys and values of a section of heads, which stay in the L2 together
_HALF_BYTES, _SEEN = 8 << 20, 1024  # the same of either half of the L2, of keys that rows see at a time where it counts
_SECTION_HEADS = (16, 32)  # at most, of short and of long sequences: with more the loads spread too far, as measured
_WIDE = 512  # columns of k and v, from which on more heads are faster, the L2 or not, as measured: up to the first of these,
_WIDE_BYTES = 128 << 20  # or so many bytes


def section(program: Program, sizes: Sizes) -> Callable[[int], int]:
    """The heads of a section for so many keys. All sections have about as many: a small last one would keep few multiprocessors busy."""
    if isinstance(program.main, Backward):
        heads = _of_backward(program, sizes) if program.main.dealing.longest_first else 1
        return lambda _: heads
    if not program.attention.dealing.longest_first:
        return lambda _: 1
    columns, halves = program.spec.head_dim.qk + program.spec.head_dim.v, program.attention.dealing.halves
    least, most = _SECTION_HEADS
    wide, size, group = columns >= _WIDE, columns * program.dtype.bytes, sizes.group
    room = _WIDE_BYTES if wide else _HALF_BYTES if halves else _SECTION_BYTES
    packed = program.spec.geometry.packed
    heads = -(-sizes.heads * (1 if packed else sizes.batch) // (2 if halves else 1))

    def of(kv_len: int) -> int:
        kv_len = -(-kv_len // max(1, sizes.batch)) if packed else kv_len  # of a sequence, on average
        wanted = least if wide else min(max(least, kv_len // 32), most)
        fit = room // max(1, (min(kv_len, _SEEN) if halves else kv_len) * size) * group
        sections = -(-heads // max(1, min(fit, wanted)))
        return -(-heads // sections)

    return of


def _of_backward(program: Program, sizes: Sizes) -> int:
    """The key/value heads of a section whose queries, with do and the float32 sums of dq, fit the L2."""
    columns, size = program.spec.head_dim, program.dtype.bytes
    row = columns.qk * (size + 4) + columns.v * size
    heads = sizes.kv_heads * sizes.batch
    sections = -(-heads // max(1, _SECTION_BYTES // max(1, sizes.q_len * sizes.group * row)))
    return max(1, -(-heads // max(1, sections)))
