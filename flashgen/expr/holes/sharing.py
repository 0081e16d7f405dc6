"""Operations that occur in two places, computed once; and names for what would make a line too long to read."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from flashgen.expr.holes.cuda import cuda
from flashgen.expr.language.identifiers import Names
from flashgen.expr.language.nodes import ROW, Call, Load, Name, Node, Summation, Type, children, names, rebuild
from flashgen.expr.prove.linear import by_index

WIDTH, MOST = 100, 135  # of a part of a line; of a line, besides its name


@dataclass(frozen=True)
class Kept:
    """A member before it is text."""

    name: str
    value: Node
    comment: str = ""
    end: bool = False  # whether columns are below it where they are seen


def member_of(name: str, type: Type, at: int) -> Name:
    """The name by which a member of Variant or of Row, or a local, is read."""
    return Name(f"row.{name}" if at == ROW else name, type, at)


class Sharing:
    """Computes every operation that occurs in two places once, before its first use; and what would make a line too long to read."""

    def __init__(self, kept: Iterable[Kept], names: Names, hint: Callable[[Node], str], at: int):
        """`at`: the level of what is kept."""
        self.names, self.hint, self.at = names, hint, at
        self.waiting = {k.value: k for k in kept}
        self.done: dict[Node, Name] = {}
        self.result: list[Kept] = []
        self.uses: Counter[Node] = Counter()
        for value in self.waiting:
            self._count(value)
        for k in tuple(self.waiting.values()):
            self._emit(k)

    def _count(self, node: Node) -> None:
        self.uses[node] += 1
        if self.uses[node] == 1:
            for child in children(node):
                self._count(child)

    def _emit(self, kept: Kept) -> None:
        if self.waiting.pop(kept.value, None):
            value = self._summed(kept.value) if isinstance(kept.value, Summation) else rebuild(kept.value, self._visit)
            self.result.append(replace(kept, value=value))
            self.done[kept.value] = member_of(kept.name, kept.value.type, self.at)

    def _summed(self, node: Summation) -> Node:
        """A sum as a local, behind what its terms share."""
        if node not in self.done:
            self.done[node] = self._named(rebuild(node, self._outside))
        return self.done[node]

    def _outside(self, node: Node) -> Node:
        """A part of a term as the loop reads it: what does not depend on the index is a local before it."""
        if by_index(node):
            return rebuild(node, self._outside)
        value = self._visit(node)
        if isinstance(value, Call | Load) and not names(node) <= {"column"}:
            value = self.done[node] = self._named(value)
        return value

    def _visit(self, node: Node) -> Node:
        if isinstance(node, Summation):
            return self._summed(node)
        if not isinstance(node, Call | Load) or (isinstance(node, Call) and node.op == "float" and isinstance(node.args[0], Name)):
            return node
        if node in self.waiting:
            self._emit(self.waiting[node])
        if node in self.done:
            return self.done[node]
        value = rebuild(node, self._visit)
        if self.uses[node] < 2 and len(cuda(value)) <= WIDTH:
            return value
        if len(cuda(value)) > MOST:
            longest = max(
                (part for part in children(value) if isinstance(part, Call | Load)),
                key=lambda part: (isinstance(part, Call), len(cuda(part))),
            )
            local = self._named(longest)
            value = rebuild(value, lambda part: local if part == longest else part)
        self.done[node] = self._named(value)
        return self.done[node]

    def _named(self, value: Node) -> Name:
        """The value as a local, or a member, of its own."""
        name = self.names.fresh("sum" if isinstance(value, Summation) else self.hint(value))
        self.result.append(Kept(name, value))
        return member_of(name, value.type, self.at)
