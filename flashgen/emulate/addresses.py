"""32 bits where an address needs 64: what arrays of a usual size do not show.

`narrowings` asks the host's compiler, which knows types, where a 64-bit number becomes a narrower one. `int_products` reads the text: a
product of two ints is an int, however wide the sum that it goes into.
"""

import re
import tempfile
from pathlib import Path

from flashgen.emulate import build
from flashgen.emulate.lint import Finding
from flashgen.emulate.translate import translate

WARNING = re.compile(r":(\d+):\d+: warning: ([^\n]*\blong\b[^\n]* to .(?:int|unsigned int)\b[^\n]*)")  # of g++ and clang++
NAME = r"[A-Za-z_]\w*"
CAST = r"\((?:long long|i64|u64|int|u32)\)"
GROUP = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
OPERAND = rf"(?:{CAST})?(?:{NAME}(?:<\w+>)?(?:(?:\.|->|::){NAME})*(?:{GROUP}|\[[^][]*\])*(?:\.{NAME}(?:{GROUP})?)*|{GROUP}|\d\w*)"
PRODUCT = re.compile(rf"(?<![\w.)\]])(?={OPERAND} \* ){OPERAND}(?: \* {OPERAND})+")
FACTOR = re.compile(OPERAND)
WIDE = re.compile(r"\((?:long long|i64|u64)\)|(?:i64|u64)\(|(?!(?:int|u32)\(|\((?:int|u32)\)).*strides?\b[.\[]")
CONSTANT = re.compile(r"(?:[A-Z][A-Z0-9_]*\b|\d\w*|\b[a-z]\b|[-+*/%() ])+")  # one letter: of an unrolled loop
SMALL = re.compile(r"(?:\w+\.)?batch \* (?:p\.heads|blocks|tiles)")  # as many as a grid has blocks, fewer than 2^31
WIDE_TYPES = ("long long", "i64", "u64")
DECLARATION = re.compile(rf"\b(long long|{NAME}\*(?: const)?|i64|u64|int|u32|float|bool|auto) ({NAME}(?:, {NAME})*)")


class Declarations:
    """The variables and functions of a text: each name with the positions and the types of its declarations."""

    def __init__(self, code: str):
        self._found: dict[str, list[tuple[int, str]]] = {}
        for match in DECLARATION.finditer(code):
            for name in match[2].split(", "):
                self._found.setdefault(name, []).append((match.start(), match[1]))

    def type_of(self, name: str, at: int) -> str:
        """The type with which a name was declared last before a position; empty if it was not."""
        found = self._found.get(name.removeprefix("p."), [])
        return next((kind for position, kind in reversed(found) if position < at), "")

    def is_pointer(self, name: str, at: int) -> bool:
        """True if the name was declared as a pointer last before a position."""
        return "*" in self.type_of(name, at)


def narrowings(cuda: str, name: str = "kernel.cu") -> tuple[Finding, ...]:
    """The lines of a CUDA text in which a 64-bit integer becomes a narrower one without a cast."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(translate(cuda, name).text)
        log = build.warnings_of(path, "-Wconversion", "-Wno-sign-conversion", "-Wno-float-conversion")
    return tuple(Finding(int(line), what) for line, what in dict.fromkeys(WARNING.findall(log)))


def int_products(cuda: str) -> tuple[Finding, ...]:
    """The products of ints in a CUDA text that are part of an address or of a 64-bit number, and may not fit 32 bits.

    >>> str(*int_products("float at(const float* x, int row, int width) { return x[row * width]; }"))
    'line 1: `row * width` is a product of ints in an address: of long long'
    """
    code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), cuda)
    names = Declarations(code)
    found = (p for p in PRODUCT.finditer(code) if overflows(p, names) and is_address(code, *p.span(), names))
    return tuple(Finding(code.count("\n", 0, p.start()) + 1, f"`{p[0]}` is a product of ints in an address: of long long") for p in found)


def overflows(product: re.Match[str], names: Declarations) -> bool:
    """True if the factors up to the first of 64 bits are several that vary, or one and the bytes of a tile."""
    if SMALL.fullmatch(product[0]):
        return False
    narrow = []
    for factor in FACTOR.findall(product[0]):
        if WIDE.match(factor) or names.type_of(re.split(r"[(\[]", factor)[0], product.start()) in WIDE_TYPES:
            break
        narrow.append(factor)
    varying = [not CONSTANT.fullmatch(factor) for factor in narrow]
    return any(varying) and sum(varying) + sum("BYTES" in factor for factor in narrow) > 1


def is_address(code: str, begin: int, end: int, names: Declarations) -> bool:
    """True if the expression there goes into a pointer, an index of one, or a 64-bit number."""
    opening, closing = bound(code, begin, -1), bound(code, end - 1, 1)
    others = re.findall(rf"(?<![\w.])(?:p\.)?{NAME}(?![\w(])", f"{code[opening + 1 : begin]} {code[end:closing]}")
    if any(names.is_pointer(name, begin) for name in others):
        return True
    before = code[: opening + 1].rstrip()
    if before.endswith(("[", "+=", "-=")):
        target = re.search(rf"(?:p\.)?{NAME}$", before[-80:].rstrip("[+-= "))
        return target is not None and names.is_pointer(target[0], begin)
    if before.endswith("("):
        return not re.search(r"[\w>]$", before[-80:-1].rstrip()) and is_address(code, opening, closing + 1, names)
    if code[opening + 1 : begin].lstrip().startswith("return"):
        function = re.findall(rf"({NAME})\((?:[^()]|\([^()]*\))*\)(?: const)? \{{$", before[-400:])
        return bool(function) and names.type_of(function[0], begin) in WIDE_TYPES
    statement = re.split(r"[;{}]", before[-400:])[-1]
    return before.endswith("=") and bool(re.match(r"\s*(?:const )?(?:long long|i64|u64)\b", statement))


def bound(code: str, at: int, step: int) -> int:
    """The index of what ends the sum that a position is in: a bracket that encloses it, or an operator that binds less."""
    depth = 0
    while 0 <= at + step < len(code):
        at += step
        depth += {"(": step, "[": step, ")": -step, "]": -step}.get(code[at], 0)
        if depth < 0 or (depth == 0 and code[at] in ",;{}=?:<>&|"):
            return at
    return at
