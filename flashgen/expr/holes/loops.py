"""Sums that are loops, as statements: of one element, or of some elements together, so that what a term reads is read once for all."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flashgen.expr.holes.cuda import cuda
from flashgen.expr.holes.sharing import Kept, Sharing
from flashgen.expr.language.identifiers import Names
from flashgen.expr.language.nodes import ELEMENT, Name, Node, Summation, Type, rebuild

LOCALS: dict[Type, str] = {"float": "x", "int": "i", "long long": "i", "bool": "c"}
AT_ONCE = 4  # terms, whose reads are under way together


@dataclass(frozen=True)
class Step:
    """Statements of each element, so often as a sum has terms; once without one."""

    terms: int | None
    lines: tuple[str, ...]


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
    *before, last = _term(kept.name, kept.value.term, names)
    yield f"float {kept.name} = 0.0f;"
    yield f"#pragma unroll {AT_ONCE}"
    yield f"for (int term = 0; term < {kept.value.index.count}; ++term){' {' if before else ''}"
    yield from (f"  {line}" for line in (*before, last))
    if before:
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
            steps += [Step(None, tuple(lines))] if lines else []
            steps += [Step(value.index.count, tuple(_term(meanings[k.name], value.term, names)))]
            lines = []
        else:
            lines.append(f"{meanings[k.name]} = {cuda(value)};")
    lines.append(f"s[j] = {cuda(_of_each(score.value, meanings))};")
    begins = {True: " = {}", False: ""}
    declared = (f"{k.value.type} {k.name}[TOGETHER]{begins[isinstance(k.value, Summation)]};" for k in locals)
    return Together(tuple(declared), (*steps, Step(None, tuple(lines))))


def _term(sum: str, term: Node, names: Names) -> Iterator[str]:
    """The lines that add a term."""
    *before, last = shared([Kept("", term)], Names(names.taken))
    yield from (f"const {k.value.type} {k.name} = {cuda(k.value)};" for k in before)
    yield f"{sum} += {cuda(last.value)};"


def _of_each(node: Node, meanings: dict[str, str]) -> Node:
    """The node with locals, s and what was read ahead by the number of an element."""
    if isinstance(node, Name):
        name = meanings.get(node.name) or node.name.replace("at.", "at[j].", node.name.startswith("at."))
        return Name(name, node.type, node.level)
    return rebuild(node, lambda child: _of_each(child, meanings))
