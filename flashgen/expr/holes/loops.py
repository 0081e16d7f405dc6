"""Sums that are loops, as statements: of one element, or of some elements together, so that what a term reads is read once for all."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from flashgen.expr.holes.bind import TERM
from flashgen.expr.holes.cuda import cuda
from flashgen.expr.holes.sharing import Kept, Sharing
from flashgen.expr.language.identifiers import Names
from flashgen.expr.language.nodes import ELEMENT, UNIFORM, Call, Const, Index, Load, Name, Node, Summation, Type, rebuild, substitute, walk
from flashgen.expr.prove.affine import user_name
from flashgen.expr.prove.linear import by_index

LOCALS: dict[Type, str] = {"float": "x", "int": "i", "long long": "i", "bool": "c"}
AT_ONCE = 4  # terms, whose reads are under way together
PLACES = {"row": "const Row& row = rows[j / 2 % 2];", "column": "const int column = first + j / 4 * 8 + j % 2;"}
LANES, ALL_LANES, OF_LANE = 32, Name("~0u", "int"), "_of_lane"


@dataclass(frozen=True)
class Step:
    """Statements of each element, so often as a sum has terms; once without one."""

    lines: tuple[str, ...]
    terms: int | None = None
    before: tuple[str, ...] = ()  # what is alike for all elements


@dataclass(frozen=True)
class Together:
    """The score of some elements, which have s, row, column, at and all locals by their number j."""

    locals: tuple[str, ...]  # declarations, of N elements
    steps: tuple[Step, ...]
    at_once: int = AT_ONCE


def shared(kept: Iterable[Kept], names: Names) -> list[Kept]:
    """The locals of an element and its results, each before those that read it."""
    return Sharing(kept, names, lambda node: LOCALS[node.type], ELEMENT).result


def statements(kept: Kept, names: Names) -> Iterator[str]:
    """The lines that make a local of one element."""
    if not isinstance(kept.value, Summation):
        yield f"const {kept.value.type} {kept.name} = {cuda(kept.value)};"
        return
    step = _step(kept.name, kept.value, names)
    lines = (*step.before, *step.lines)
    yield f"float {kept.name} = 0.0f;"
    yield f"#pragma unroll {AT_ONCE}"
    yield f"for (int term = 0; term < {step.terms}; ++term){' {' if len(lines) > 1 else ''}"
    yield from (f"  {line}" for line in lines)
    if len(lines) > 1:
        yield "}"


def together(kept: list[Kept], names: Names) -> Together | None:
    """The same for some elements; None where no sum is a loop. The last of `kept` is the score."""
    *locals, score = kept
    if not any(isinstance(k.value, Summation) for k in locals):
        return None
    meanings = {name: f"{name}[j]" for name in ("s", *(k.name for k in locals))}
    steps, lines = list[Step](), list[str]()
    for k in locals:
        value = _of_each(k.value, meanings)
        if isinstance(value, Summation):
            steps += [Step(_placed(lines))] if lines else []
            step = _step(meanings[k.name], value, names)
            steps += [replace(step, lines=_placed(step.lines))]
            lines = []
        else:
            lines.append(f"{meanings[k.name]} = {cuda(value)};")
    lines.append(f"s[j] = {cuda(_of_each(score.value, meanings))};")
    begins = {True: " = {}", False: ""}
    declared = (f"{k.value.type} {k.name}[TOGETHER]{begins[isinstance(k.value, Summation)]};" for k in locals)
    return Together(tuple(declared), (*steps, Step(_placed(lines))))


def of_lane(node: Node) -> tuple[Node, Node] | None:
    """A read that differs from term to term alone, as a lane has it that stands for a term, and the index of that; None of other reads.

    The lanes of a warp have the numbers of 32 terms, so that none is read in a loop.
    """
    index = next((below for below in walk(node) if isinstance(below, Index) and below.level == ELEMENT), None)
    if index is None or index.count > LANES or node.type not in ("float", "int") or not _alike(node):
        return None
    lane: Node = replace(index, name="int(threadIdx.x & 31)", level=UNIFORM)
    lane = lane if index.count == LANES else Call("min", (lane, Const(index.count - 1, "int")), "int")
    return substitute(node, index, lane), index


def _alike(node: Node) -> bool:
    """True if nothing but the index differs from element to element."""
    return all(below.level <= UNIFORM for below in walk(node) if isinstance(below, Name) and not isinstance(below, Index))


def _step(sum: str, of: Summation, names: Names) -> Step:
    inside = Names(names.taken)
    alike: dict[Node, Kept] = {}
    term = _with_alike(of.term, alike, inside)
    before = tuple(f"const {k.value.type} {k.name} = {cuda(k.value)};" for k in alike.values())
    return Step(tuple(_term(sum, term, inside)), of.index.count, before)


def _placed(lines: Iterable[str]) -> tuple[str, ...]:
    """The statements of element j behind its row and its column, where they read these."""
    text = tuple(lines)
    return *(place for name, place in PLACES.items() if any(re.search(rf"\b{name}\b", line) for line in text)), *text


def _of_term(node: Node) -> str:
    match node:
        case Load(tensor) | Call("__shfl_sync", (_, Name(tensor), _)):
            return f"{user_name(tensor).removesuffix(OF_LANE)}_{TERM}"
    return f"{LOCALS[node.type]}_{TERM}"


def _with_alike(node: Node, alike: dict[Node, Kept], names: Names) -> Node:
    """The node with parts as locals that differ from term to term alone."""
    if not isinstance(node, Call | Load) or not by_index(node):
        return node
    if _alike(node):
        if node not in alike:
            alike[node] = Kept(names.fresh(_of_term(node)), node)
        return Name(alike[node].name, node.type, ELEMENT)
    return rebuild(node, lambda child: _with_alike(child, alike, names))


def _term(sum: str, term: Node, names: Names) -> Iterator[str]:
    """The lines that add a term."""
    *before, last = shared([Kept("", term)], Names(names.taken))
    yield from (f"const {k.value.type} {k.name} = {cuda(k.value)};" for k in before)
    yield f"{sum} += {cuda(last.value)};"


def _of_each(node: Node, meanings: dict[str, str]) -> Node:
    """The node with locals, s and what was read ahead by the number of an element."""
    if isinstance(node, Name) and not isinstance(node, Index):
        name = meanings.get(node.name) or node.name.replace("at.", "at[j].", node.name.startswith("at."))
        return Name(name, node.type, node.level)
    return rebuild(node, lambda child: _of_each(child, meanings))
