"""The holes of a backward kernel: what a score's slope is beside its value, and what tensors and params that ask for gradients get."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from flashgen.expr.holes.bind import SCALE, S, varies
from flashgen.expr.holes.hoist import Body
from flashgen.expr.holes.passes import Kernel, passed
from flashgen.expr.language.bound import INF, Bound
from flashgen.expr.language.fold import call
from flashgen.expr.language.functions import row
from flashgen.expr.language.identifiers import Names
from flashgen.expr.language.nodes import V_IDX, Argument, Call, Const, Load, Name, Node, Summation, names, walk
from flashgen.expr.language.text import show
from flashgen.expr.meaning.gradient import ZERO, Derivatives, Variable, derivatives
from flashgen.expr.meaning.summed import exact_sums, own_places
from flashgen.expr.prove.linear import assemble, collect
from flashgen.spec.words import count, exact, gradient

if TYPE_CHECKING:
    from flashgen.spec import Spec

Along = Literal["", "rows", "keys", "both", "own"]  # own: both, and no two elements of a tile have the same


@dataclass(frozen=True, kw_only=True)
class SlopeHole:
    """The text of a score's slope, d score / d s, where s is the scaled q.k."""

    text: str  # as in the language
    body: Body | None  # of an element: sets `derivative`, and returns the score as the body of a ScoreHole does; None: 1, besides the scale
    scale: str  # in scope: p. What sums of dq and dk are multiplied by at the end: the scale of q.k, and a slope alike in all of a call
    bounded: bool  # whether the slope of any element is finite; else an element of weight 0 gets no gradient by a test, not by a product


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The text of what a tensor's element, or a param, gets for each score, sink or weight that reads it: d of that times its slope."""

    name: str  # unlike those of other gradients
    of: str  # in emitted text: d, the gradient of a score; d_weight, that of what its key's value counts for
    text: str  # as in the language: slopes[h]: kv_idx - q_idx
    value: Body  # of an element: d score / d what is read, or d weight / d it; of a sink: d sink / d it
    address: Body  # where it is added: a float*, or an ExactSum
    along: Along  # what the address differs along in a tile
    exact: bool  # whether it is summed in integers, whose order is of no account

    @property
    def reads_s(self) -> bool:
        """True if it needs s, the raw q.k."""
        return any(S.name in names(node) for body in (self.address, self.value) for node in body.nodes)


@dataclass(frozen=True, kw_only=True)
class OutputSlope:
    """The text of d output / d o, and of what tensors and params get by the output. In scope as of a LeavingHole; a tile has rows of o."""

    text: str  # as in the language
    body: Body
    gradients: tuple[Gradient, ...]  # of d, the gradient of what is written

    def along(self, place: Along) -> tuple[Gradient, ...]:
        """The gradients whose address differs along this."""
        return tuple(gradient for gradient in self.gradients if gradient.along == place)


@dataclass(frozen=True, kw_only=True)
class BackwardHoles:
    """The holes that a backward kernel has besides. In scope as of the score, but for the gradients by a sink: as of `uniform`."""

    slope: SlopeHole
    gradients: tuple[Gradient, ...]  # by the score, then by the weight
    output: tuple[Gradient, ...]  # by the output
    sinks: tuple[Gradient, ...]  # by the sink of a row: what each gets is -exp(sink - lse) * delta times its value, in all rows

    @property
    def sums(self) -> bool:
        """True if lanes sum up anything that tensors or params get."""
        return bool(self.gradients or self.sinks or self.output)

    def by(self, of: str) -> tuple[Gradient, ...]:
        """The gradients by the score, whose `of` is d, or by the weight, d_weight."""
        return tuple(gradient for gradient in self.gradients if gradient.of == of)

    def along(self, place: Along) -> tuple[Gradient, ...]:
        """The gradients by score or weight whose address differs along this in a tile."""
        return tuple(gradient for gradient in self.gradients if gradient.along == place)

    @property
    def exact(self) -> bool:
        """True if any of them is summed in integers."""
        return any(gradient.exact for gradient in (*self.gradients, *self.sinks, *self.output))

    @property
    def alone(self) -> "BackwardHoles":
        """The same of a kernel that leaves gradients of tensors and params to another."""
        return replace(self, gradients=(), output=(), sinks=())

    @property
    def reads_s(self) -> bool:
        """True if some gradient needs s, the raw q.k, when d score is known."""
        return any(gradient.reads_s for gradient in self.gradients)


def backward_holes(spec: "Spec", rest: Node, kernel: Kernel, output: tuple[Gradient, ...]) -> BackwardHoles:
    """The holes of a spec's backward; `rest`: the score as an element computes it; `output`: the gradients by the output. Members that they
    need are added to the kernel."""
    found = derivatives(spec)
    slope = _tidy(passed(found.s, "score", kernel))
    of_score = {**dict.fromkeys(found.score, ZERO), **dict.fromkeys(found.scale, ZERO)}
    values = {by: _tidy(_value(by, found, slope, kernel)) for by in of_score}
    of_weight = {by: _tidy(passed(node, "weight", kernel)) for by, node in found.weight.items()}
    gradients = _Gradients(spec, kernel)
    return BackwardHoles(
        slope=_slope(found.s, slope, rest, kernel),
        gradients=(*gradients.made(values, found.score), *gradients.made(of_weight, found.weight, "d_weight")),
        output=output,
        sinks=tuple(gradients.made({by: _tidy(passed(node, "sink", kernel)) for by, node in found.sink.items()}, found.sink)),
    )


def output_slope(spec: "Spec", kernel: Kernel) -> OutputSlope:
    """The slope of a spec's output; members that it needs of a row that leaves are added to the kernel."""
    found = derivatives(spec)
    values = {by: _tidy(passed(node, "output", kernel)) for by, node in found.output.items()}
    return OutputSlope(
        text=show(found.o),
        body=kernel.hoist.body(_tidy(passed(found.o, "output", kernel))),
        gradients=tuple(_Gradients(spec, kernel).made(values, found.output)),
    )


def _slope(written: Node, slope: Node, rest: Node, kernel: Kernel) -> SlopeHole:
    """The hole of a slope, as it is written and as it is bound."""
    if all(isinstance(node, Argument) for node in walk(slope) if isinstance(node, Name)):
        return SlopeHole(text=show(written), body=None, scale=kernel.hoist.inline(call("*", SCALE, slope)), bounded=True)
    body = kernel.hoist.body_beside(rest, "derivative", slope)
    return SlopeHole(text=show(written), body=body, scale=SCALE.name, bounded=_extent(written).size < INF)


def _value(by: Variable, found: Derivatives, slope: Node, kernel: Kernel) -> Node:
    """d score / d a variable of the score, or of the scale, where s is the raw q.k times that."""
    direct = passed(found.score.get(by, ZERO), "score", kernel)
    if by not in found.scale:
        return direct
    return call("+", direct, call("*", call("*", slope, passed(found.scale[by], "score", kernel)), S))


def _tidy(node: Node) -> Node:
    """The node with its sums gathered as those of a score are, so that the two share what they can."""
    return assemble(collect(node, varies)) if node.type == "float" else node


def _extent(node: Node) -> Bound:
    """The interval of an expression, whatever its names and tensors hold."""
    match node:
        case Const(value):
            return Bound(float(value), float(value))
        case Summation():
            return _extent(node.unrolled)
        case Call(op, args) if found := row(op):
            return Bound(*found.interval(*map(_extent, args)))
    return Bound()


class _Gradients:
    """Makes the gradients of the tensors and params of a spec that ask for one."""

    def __init__(self, spec: "Spec", kernel: Kernel):
        self.asked, self.exact, self.own = {one.name for one in spec.with_grad}, exact_sums(spec), own_places(spec)
        self.kernel, self.names = kernel, Names()

    def made(self, values: Mapping[Variable, Node], shown: Mapping[Variable, Node], of: str = "d") -> Iterator[Gradient]:
        """The gradients of bound `values`, of those among their variables that ask for one; `shown`: as in the language, where they are;
        `of`: what they are factors of."""
        hoist = self.kernel.hoist.apart()
        for by, value in values.items():
            name = by.name if isinstance(by, Name) else by.tensor
            if name in self.asked:
                yield Gradient(
                    name=self.names.fresh(name),
                    of=of,
                    text=f"{show(by)}: {show(shown[by])}" if by in shown else f"{show(by)}, of the scale",
                    value=hoist.body(value),
                    address=self.address(by),
                    along="own" if name in self.own else _along(by),
                    exact=name in self.exact,
                )

    def address(self, by: Variable) -> Body:
        """The place where the gradient of what a variable reads is summed."""
        hoist = self.kernel.hoist
        if isinstance(by, Name):
            body, place = hoist.body(Argument(f"p.{gradient(by.name)}", "float*")), f"{{p.{exact(by.name)}, 1}}"
            return replace(body, value=place) if by.name in self.exact else body
        bound, member = _tidy(passed(by, "score", self.kernel)), f"p.{gradient(by.tensor)}"
        assert isinstance(bound, Load), bound
        body = hoist.address(Load(f"{member}.address", bound.indices, "float*"))
        place = f"{{p.{exact(by.tensor)} + ({body.value} - {member}.data), p.{count(by.tensor)}}}"
        return replace(body, value=place) if by.tensor in self.exact else body


def _along(by: Variable) -> Along:
    read = names(by) if isinstance(by, Load) else frozenset[str]()
    rows, keys = "q_idx" in read, bool({"kv_idx", V_IDX} & read)
    if {S.name, "o"} & read or (rows and keys):
        return "both"
    return "rows" if rows else "keys" if keys else ""
