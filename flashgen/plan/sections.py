"""The sections of heads whose arrays stay in the L2 together, as query tiles are dealt, or in a backward key tiles."""

from dataclasses import dataclass

from flashgen.plan.backward_kernel import Backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.program import Program

_SECTION_BYTES = 32 << 20  # of keys and values of a section of heads, which stay in the L2 together
_HALF_BYTES, _SEEN = 8 << 20, 1024  # the same of either half of the L2, of keys that rows see at a time where it counts
_SECTION_HEADS = (16, 32)  # at most, of short and of long sequences: with more the loads spread too far, as measured
_WIDE = 512  # columns of k and v, from which on more heads are faster, the L2 or not, as measured: up to the first of these,
_WIDE_BYTES = 128 << 20  # or so many bytes
_TURNS_HEADS, _TURNS_BYTES = 16, 1 << 40  # where key tiles take turns at sums: so many heads that few tiles of each are at work at once
_NARROW, _NARROW_TURNS_HEADS = 128, 32  # columns of k and v up to which, where key tiles have unlike work, more are faster, as measured
_NO_LIMIT = 1 << 30  # heads


@dataclass(frozen=True, kw_only=True)
class Sections:
    """The numbers of a program that, with the sizes of a call, say how many heads a section has: read here, and in C by what launches."""

    room: int  # bytes that the arrays of a section may have; 0: a section is one head
    row_bytes: int  # of an array's row: of keys and values, or in a backward of queries
    seen: int  # rows that count at most
    least: int  # heads that a short sequence has in a section at most
    most: int  # the same of a long one
    by_queries: bool  # the heads are key/value heads, with the queries of their group
    of_one: bool  # the heads of one sequence count
    of_average: bool  # the length is that of all sequences together, and the average counts
    halves: int  # among which all heads are divided first

    def heads(self, sizes: Sizes) -> int:
        """The heads of a section. All sections have about as many: a small last one would keep few multiprocessors busy."""
        heads, wanted, fit = self.limits(sizes)
        sections = -(-heads // max(1, min(fit, wanted)))
        return max(1, -(-heads // max(1, sections)))

    def limits(self, sizes: Sizes) -> tuple[int, int, int]:
        """All heads, the most that a section should have, which only grows with the length, and the most that fit, which only falls."""
        if not self.room:
            return 1, 1, 1
        length, group = (sizes.q_len * sizes.group, 1) if self.by_queries else (sizes.kv_len, sizes.group)
        length = -(-length // max(1, sizes.batch)) if self.of_average else length
        heads = sizes.kv_heads if self.by_queries else sizes.heads
        heads = -(-heads * (1 if self.of_one else sizes.batch) // self.halves)
        wanted = min(max(self.least, length // 32), self.most)
        fit = self.room // max(1, min(length, self.seen) * self.row_bytes) * group
        return heads, min(wanted, heads), min(fit, heads)


def sections(program: Program) -> Sections:
    """The sections of a program, forward or backward."""
    columns, size, main = program.spec.head_dim, program.dtype.bytes, program.main
    dealing = main.dealing if isinstance(main, Backward) else program.dealing
    turns = isinstance(main, Backward) and main.warpgroups is not None and main.warpgroups.in_turns
    wide, halves = columns.qk + columns.v >= _WIDE, dealing.halves
    least, most = _SECTION_HEADS
    if isinstance(main, Backward):
        row = columns.qk * (size + 4) + columns.v * size
        narrow = columns.qk + columns.v <= _NARROW and dealing.longest_first
        taken = _NARROW_TURNS_HEADS if narrow else _TURNS_HEADS
        room, least, most = (_TURNS_BYTES, taken, taken) if turns else (_SECTION_BYTES, _NO_LIMIT, _NO_LIMIT)
    else:
        room = _WIDE_BYTES if wide else _HALF_BYTES if halves else _SECTION_BYTES
        row, most = (columns.qk + columns.v) * size, least if wide else most
    return Sections(
        room=room if dealing.longest_first or turns else 0,
        row_bytes=row,
        seen=_SEEN if halves else _NO_LIMIT,
        least=least,
        most=most,
        by_queries=isinstance(main, Backward),
        of_one=program.spec.geometry.packed,
        of_average="kv_len" in program.spec.geometry.behind,
        halves=2 if halves else 1,
    )
