"""Where the products of mma.sync may be done later than they are called: runs of them, at whose end the lanes of a warp meet once."""

import re
from collections.abc import Iterator

from flashgen.errors import BackendError

PRODUCT = re.compile(r"\bvoid (\w+)\([^{}]*\{\s*asm(?: volatile)?\(\s*\"mma\.sync")
NAME = re.compile(r"\b[A-Za-z_]\w*")
BEGIN = " const ::cuda_on_host::ptx::Run run_of_products;"  # and by its destructor the end


def with_runs(cuda: str) -> str:
    """The text with every run of products begun after the brace that opens it; lines stay where they are.

    A run is a block, as large as can be, that names the accumulators of its products nowhere but as their first argument, so that nobody
    can tell when they are added.

    >>> mma = '__device__ void mma(float* d) { asm("mma.sync"); } '
    >>> with_runs(mma + "__device__ void f(float* d) { { ptx::mma(d); ptx::mma(d + 4); } d[0] += 1; }").removeprefix(mma)
    '__device__ void f(float* d) { { const ::cuda_on_host::ptx::Run run_of_products; ptx::mma(d); ptx::mma(d + 4); } d[0] += 1; }'
    """
    names = PRODUCT.findall(cuda)
    if not names:
        return cuda
    code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), cuda)
    call = re.compile(rf"\bptx::(?:{'|'.join(names)})\((\w+)")
    begins = {begin for match in call.finditer(code) if (begin := run_around(code, match.start(), call))}
    ends = sorted(begins)
    return BEGIN.join(cuda[i:j] for i, j in zip([0, *ends], [*ends, len(cuda)], strict=True))


def run_around(code: str, at: int, call: re.Pattern[str]) -> int:
    """Where the largest run around a call begins, 0 if there is none."""
    found = 0
    for begin, end in blocks_around(code, at):
        inside = code[begin:end]
        if set(call.findall(inside)) & set(NAME.findall(call.sub("", inside))):
            break
        found = begin
    return found


def blocks_around(code: str, at: int) -> Iterator[tuple[int, int]]:
    """What lies between the braces around a place, innermost first, up to those of its function."""
    head = ""
    while "__device__" not in head and "__global__" not in head:
        opening = brace_around(code, at, -1)
        yield opening + 1, brace_around(code, opening, 1)
        head, at = re.split("[;{}]", code[:opening])[-1], opening


def brace_around(code: str, at: int, step: int) -> int:
    """Index of the brace that encloses a place: to its right (step 1) or left (-1)."""
    depth = 0
    while 0 <= (at := at + step) < len(code):
        depth += {"{": step, "}": -step}.get(code[at], 0)
        if depth < 0:
            return at
    raise BackendError("the kernel's braces do not match")
