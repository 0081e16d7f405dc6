"""The CUDA of outputs that are made of a sum over the keys of a row: the cells of their rows as text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashgen.expr.holes.cuda import cuda, literal
from flashgen.expr.holes.leaving import LeavingHole
from flashgen.expr.holes.machine import Making, Operand
from flashgen.expr.language.nodes import Name
from flashgen.spec.outputs import Output, Statistic, finished, statistics

if TYPE_CHECKING:
    from flashgen.spec import Spec

UNDER_WAY = 8  # keys and columns a register: the compiler has some exponents under way; fitted to what spills
LN_2 = Operand(Name("LN_2", "float"))


@dataclass(frozen=True, kw_only=True)
class StatisticHole:
    """A further sum of the state of a row. In scope: of `term`, weight and exponent; of `moved`, these, itself and sum, which is l."""

    name: str  # the member
    comment: str
    term: str  # what a key adds
    moved: str  # what it becomes where every exponent grows
    start: str  # what a sink leaves, whose weight is 1 and exponent 0
    multiplies: int
    registers: int


@dataclass(frozen=True, kw_only=True)
class EndHole:
    """An output that a row ends with. In scope of `value`: sum, the statistic by its name; with a sink, sink, its share of the sum."""

    name: str
    comment: str
    statistic: str
    value: str
    empty: str  # without keys


@dataclass(frozen=True)
class OutputHoles:
    """The text of what ends a row: its sink, and outputs besides those that every softmax leaves."""

    sink: str | None  # a logit, one more term in the sum of the row
    settled: str | None  # what all scores of the row have besides, whatever the key, in units of the score
    of_slopes: str | None  # natural units of what slopes add to the raw q.k, where these may be others
    statistics: tuple[StatisticHole, ...]
    ends: tuple[EndHole, ...]
    leaving: LeavingHole | None

    def registers(self, block_n: int, v_columns: int) -> int:
        """Registers of a thread, which has two rows of so many keys and columns of o."""
        return sum(each.registers for each in self.statistics) + ((block_n + v_columns) // UNDER_WAY if self.statistics else 0)

    @property
    def multiplies(self) -> int:
        """Multiplies and adds of an element."""
        return sum(each.multiplies for each in self.statistics)


@dataclass(frozen=True)
class _Kernel:
    """The functions of CUDA that cells are made of."""

    fast: bool  # by the special function unit, else as good as float32

    def divide(self, x: Operand, y: Operand) -> Operand:
        return x * Making("ptx::reciprocal", "float").itself(y) if self.fast else x / y

    def maximum(self, x: Operand, y: float) -> Operand:
        return Making("max", "float").library("max", x, y)

    def log2(self, x: Operand) -> Operand:
        return Making("ptx::log2" if self.fast else "log2f", "float").itself(x)


def output_holes(
    spec: "Spec",
    sink: str | None = None,
    settled: str | None = None,
    of_slopes: str | None = None,
    leaving: LeavingHole | None = None,
) -> OutputHoles:
    """The text of the outputs of a spec that are made of statistics; `sink`, `settled`, `of_slopes`, `leaving`: that of its
    sink, of what rows have besides, of the units of slopes, and of its `output`.

    >>> from flashgen.spec import Spec
    >>> output_holes(Spec(head_dim=64, dtype="float32", outputs=["o", "entropy"])).ends[0].value
    'LN_2 * ptx::maximum(log2f(sum) - weighted / sum, 0.0f)'
    """
    xp = _Kernel(fast=spec.element.operand == "native")
    return OutputHoles(
        sink=sink,
        settled=settled,
        of_slopes=of_slopes,
        statistics=tuple(_statistic(xp, each) for each in statistics(spec.outputs)),
        ends=tuple(_end(xp, each, sink is not None) for each in finished(spec.outputs)),
        leaving=leaving,
    )


def _statistic(xp: _Kernel, row: Statistic) -> StatisticHole:
    own, total, weight, exponent = _named(row.name, "sum", "weight", "exponent")
    return StatisticHole(
        name=row.name,
        comment=row.text,
        term=_text(row.term(xp, weight, exponent)),
        moved=_text(row.moved(xp, own, total, weight, exponent)),
        start=literal(float(row.term(_Numbers, 1.0, 0.0))),
        multiplies=row.multiplies,
        registers=row.registers,
    )


def _end(xp: _Kernel, row: Output, sink: bool) -> EndHole:
    assert row.statistic
    assert row.finish
    total, own, share = _named("sum", row.statistic.name, "sink")
    value = row.finish(xp, total, own, share if sink else None)
    return EndHole(
        name=row.name,
        comment=row.comment,
        statistic=row.statistic.name,
        value=_text(LN_2 * value if row.logarithmic else value),
        empty=literal(row.empty),
    )


class _Numbers:
    """The same of Python's numbers."""

    maximum = max


def _named(*names: str) -> list[Operand]:
    return [Operand(Name(name, "float")) for name in names]


def _text(x: Any) -> str:
    return cuda(x.node)
