"""Finds series of a warp's ldmatrix and mma.sync that may be done later than they are called; its lanes meet once, at the end of each."""

import re
from collections.abc import Iterator

from flashgen.errors import BackendError

DEFINITION = r"\bvoid (\w+)(\([^{}]*\)) \{\s*asm(?: volatile)?\(\s*\"%s"
PRODUCT, LOAD = (re.compile(DEFINITION % name) for name in (r"mma\.sync", "ldmatrix"))
REGISTERS = re.compile(r"\bu32 (\w+)((?:\[\w+\])?)\[\d\];")
NAME = re.compile(r"\b[A-Za-z_]\w*")
LOOP = re.compile(r"(?:#pragma unroll[^\n]*\s*)?\bfor $")  # up to its parenthesis
BEGIN = " const ::cuda_on_host::ptx::Series series_of_products;"  # and by its destructor the end
LATER = "::cuda_on_host::ptx::Later"  # in place of u32


def with_series(cuda: str) -> str:
    """The text with every series of products begun after the brace that opens it; lines stay where they are.

    A series is a block or a loop, as large as can be, that names the accumulators of its products nowhere but as their first argument, so
    that nobody can tell when they are added. What ldmatrix loads in there for products alone may come as late, and has a type of its own.

    >>> mma = '__device__ void mma(float* d) { asm("mma.sync"); } '
    >>> with_series(mma + "__device__ void f(float* d) { { ptx::mma(d); ptx::mma(d + 4); } d[0] += 1; }").removeprefix(mma)
    '__device__ void f(float* d) { { const ::cuda_on_host::ptx::Series series_of_products; ptx::mma(d); ptx::mma(d + 4); } d[0] += 1; }'
    """
    products, loads = ("|".join(match[1] for match in kind.finditer(cuda)) for kind in (PRODUCT, LOAD))
    if not products:
        return cuda
    code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), cuda)
    call = re.compile(rf"\bptx::(?:{products})\((\w+)")
    found = {series for match in call.finditer(code) if (series := series_around(code, match.start(), call))}
    edits = [edit for begin, end in found for edit in marked(code, begin, end)]
    later = []
    for registers in REGISTERS.finditer(code) if loads else ():
        scope = code[registers.end() : brace_around(code, registers.start(), 1)]
        name, fragment = registers[1], rf"{registers[1]}\[\w+\]" if registers[2] else registers[1]
        inside = any(begin <= registers.start() < end for begin, end in found)
        if inside and for_products_alone(scope, name, fragment, loads, products):
            later.append((registers.start(), registers.start() + len("u32"), LATER))
    if later:
        wrappers = (*PRODUCT.finditer(cuda), *LOAD.finditer(cuda))
        later += [(*match.span(2), re.sub(r"\bu32\b", "auto", match[2])) for match in wrappers]  # of either type
    return edited(cuda, edits + later)


def for_products_alone(scope: str, name: str, fragment: str, loads: str, products: str) -> bool:
    """True if a scope only loads registers, four a fragment, by ldmatrix and multiplies by them, as a or as b."""
    rest = re.sub(rf"\bptx::(?:{loads})\({fragment}, ", "(", scope)
    rest = re.sub(rf"(\bptx::(?:{products})\([^;,]*), {fragment}(?=[,)])", r"\1", rest)
    rest = re.sub(rf"(\bptx::(?:{products})\([^;]*), {name}\[\d\], {name}\[\d\]\);", r"\1);", rest)
    return not re.search(rf"\b{name}\b", rest)


def marked(code: str, begin: int, end: int) -> list[tuple[int, int, str]]:
    """The edits that begin a series and end it: behind the brace of a block, around a loop."""
    if code[begin] == "{":
        return [(begin + 1, begin + 1, BEGIN)]
    begin = len(code[:begin].rstrip())  # pragmas stay before their loop
    return [(begin, begin, " {" + BEGIN), (end, end, " }")]


def edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """The text with other words from one index to another."""
    for begin, end, words in sorted(edits, reverse=True):
        text = text[:begin] + words + text[end:]
    return text


def series_around(code: str, at: int, call: re.Pattern[str]) -> tuple[int, int] | None:
    """The begin and the end of the largest series around a call, if there is one."""
    found = None
    for begin, end in blocks_around(code, at):
        inside = code[begin:end]
        if set(call.findall(inside)) & set(NAME.findall(call.sub("", inside))):
            break
        found = begin, end
    return found


def blocks_around(code: str, at: int) -> Iterator[tuple[int, int]]:
    """The blocks and loops around a place, from their first character on, innermost first, up to the body of its function."""
    head = ""
    while "__device__" not in head and "__global__" not in head:
        at = brace_around(code, at, -1)
        end = brace_around(code, at, 1) + 1
        yield at, end
        while code[:at].rstrip().endswith(")") and (loop := LOOP.search(code[: brace_around(code, code.rindex(")", 0, at), -1, "()")])):
            at = loop.start()
            yield at, end
        head = re.split("[;{}]", code[:at])[-1]


def brace_around(code: str, at: int, step: int, braces: str = "{}") -> int:
    """Index of the brace that encloses a place: to its right (step 1) or left (-1)."""
    depth = 0
    while 0 <= (at := at + step) < len(code):
        depth += {braces[0]: step, braces[1]: -step}.get(code[at], 0)
        if depth < 0:
            return at
    raise BackendError("the kernel's braces do not match")
