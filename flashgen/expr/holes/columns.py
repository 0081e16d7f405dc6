"""A mask as bits of a thread's columns, all of a row at once: where it compares columns with bounds, and reads flags of keys."""

from flashgen.expr.holes.bind import level
from flashgen.expr.holes.cuda import cuda
from flashgen.expr.holes.hoist import Body
from flashgen.expr.holes.reads import Read
from flashgen.expr.language.nodes import ELEMENT, LONG, Call, Const, Name, Node, walk
from flashgen.expr.prove.linear import COLUMN

MOST_KEYS = 128  # of a tile: a word has a bit for each column of a thread
FEWEST = 3  # comparisons of a pair from which on bits are fewer instructions, for certain


def in_columns(keep: Body, reads: tuple[Read, ...], block_n: int) -> str:
    """The text of the bits; none where few comparisons are asked of a pair, or others.

    >>> from flashgen.expr import lower
    >>> from flashgen.expr.holes.holes import holes
    >>> from flashgen.spec import Spec
    >>> spec = Spec(head_dim=64, dtype="bfloat16", mask="window(9, 0) | (kv_idx < 4)")
    >>> found = holes(lower(spec), spec)
    >>> in_columns(found.mask.body, found.reads, 128)
    '(columns_below(row.end)) & ((columns_below(row.end_2)) | ((~columns_below(row.begin)) & (columns_below(row.end_3))))'
    """
    if not keep.nodes or keep.before or block_n > MOST_KEYS or any(read.by_row or not read.flags for read in reads):
        return ""
    text = _bits(keep.nodes[-1], block_n) or ""
    return text if sum(node == COLUMN for node in walk(keep.nodes[-1])) >= FEWEST else ""


def _bits(node: Node, block_n: int) -> str | None:
    if level(node) < ELEMENT:
        return f"({cuda(node)}) ? ~0u : 0u"
    match node:
        case Call("&" | "|" as op, (left, right)):
            parts = [_bits(part, block_n) for part in (left, right)]
            return None if None in parts else f" {op} ".join(f"({part})" for part in parts)
        case Call("~", (x,)):
            return f"~({inside})" if (inside := _bits(x, block_n)) else None
        case Call("flag_at", (Name(name), _)):
            return name.removeprefix("at.")
        case Call("<" | ">=" as op, (left, bound)) if left == COLUMN and level(bound) < ELEMENT:
            return f"{'~' if op == '>=' else ''}columns_below({cuda(bound)})"
        case Call("<=", (Call("abs", (x,)), Const(int(most)))) if x.type == "int":
            below, last = (_less(Const(bound, LONG), x, block_n) for bound in (-most, most + 1))
            return f"~columns_below({cuda(below)}) & columns_below({cuda(last)})" if below and last else None
    return None


def _less(bound: Node, x: Node, block_n: int) -> Node | None:
    """The bound of a column for that of x, a column and what does not vary; in 64 bits, as `bound` is."""
    match x:
        case Name() if x == COLUMN:
            return bound
        case Call("key_remainder", (a, Const(int(n)))) if n % block_n == 0:
            return _less(bound, a, block_n)
        case Call("+" | "-" as op, (a, rest)) if level(rest) < ELEMENT:
            return _less(Call("-" if op == "+" else "+", (bound, rest), LONG), a, block_n)
    return None
