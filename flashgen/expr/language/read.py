"""Reads score, mask and scale of a spec as typed nodes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from flashgen.dtypes import READ
from flashgen.errors import Position, SpecError
from flashgen.expr.language.claims import Claim, Requirement
from flashgen.expr.language.nodes import OUTPUT_NAMES, UNIFORM_NAMES, Const, Load, Name, Node, Type, rebuild, walk
from flashgen.expr.language.parse import Parser
from flashgen.expr.language.scope import INDICES, Scope, words
from flashgen.expr.language.tables import tables
from flashgen.spec import axes
from flashgen.spec.words import OF_SCALE

if TYPE_CHECKING:
    from flashgen.spec import Spec


@dataclass(frozen=True)
class Expressions:
    """A spec's expressions: `score`, a float of s (q.k times `scale`); `mask`, true where a query sees a key; `scale`, of params, as it is
    written, for the host alone computes it; `sink`, a logit of a query head, if its softmax has one."""

    score: Node
    mask: Node
    scale: Node
    requires: tuple[Requirement, ...] = ()  # of the params, at each call
    sink: Node | None = None
    weight: Node | None = None  # a float without s: a factor of what a key's value counts for, after the softmax
    output: Node | None = None  # a float of o: what becomes of it before it is written
    tables: tuple[Load, ...] = ()  # the reads of a norm and of a rotary embedding: of their columns and angles

    @property
    def parts(self) -> Mapping[str, Node]:
        """The expressions that there are, by their keys in a spec."""
        every = {key: getattr(self, key) for key in ("scale", "score", "mask", "sink", "weight", "output")}
        return {key: node for key, node in every.items() if node is not None}


def read(spec: "Spec") -> Expressions:
    """The expressions of a spec as they are written."""
    return written(spec)[0]


def written(spec: "Spec") -> tuple[Expressions, tuple[tuple[Scope, tuple[Claim, ...]], ...]]:
    """The expressions of a spec, and the claims of each text in its scope."""
    _check_names(spec)
    params: dict[str, Type] = {p.name: p.type for p in spec.params}
    tensors = {t.name: (READ[t.dtype][0], t.shape) for t in spec.tensors}
    let = {one.name: (one.text, spec.position(f"let.{one.name}")) for one in spec.let}
    scope = Scope(params, tensors, bounds={p.name: p.interval for p in spec.params if p.type == "int"}, let=let)
    parts = {
        "score": Parser(replace(scope, names={**INDICES, "s": "float"}), spec.score, spec.position("score")),
        "mask": Parser(scope, spec.mask, spec.position("mask")),
        "scale": Parser(replace(scope, tensors={}, names={"d": "int"}, masks=False), spec.scale or "1/sqrt(d)", spec.position("scale")),
    }
    if spec.softmax.sink is not None:
        uniform: dict[str, Type] = dict.fromkeys(UNIFORM_NAMES, "int")
        parts["sink"] = Parser(replace(scope, names=uniform, masks=False), spec.softmax.sink, spec.position("softmax.sink"))
    if spec.weight is not None:
        parts["weight"] = Parser(scope, spec.weight, spec.position("weight"))
    if spec.output is not None:
        leaving: dict[str, Type] = {"o": "float", **dict.fromkeys(OUTPUT_NAMES, "int")}
        parts["output"] = Parser(replace(scope, names=leaving, masks=False), spec.output, spec.position("output"))
    read = {key: part.read("bool" if key == "mask" else "float") for key, part in parts.items()}
    read_tables = tables(spec)
    _check_read(spec, (*read.values(), *read_tables), {name for part in parts.values() for name in part.let})
    scale = _with_head_dim(read["scale"], spec.head_dim.qk)
    claims = (*_axes(spec), *((part.scope, tuple(part.claims)) for part in parts.values()))
    sink, weight, output = map(read.get, ("sink", "weight", "output"))
    return Expressions(read["score"], read["mask"], scale, sink=sink, weight=weight, output=output, tables=read_tables), claims


@lru_cache(1024)
def axis_node(axis: str) -> Node:
    """The extent of an axis that is an expression, of words and names of axes.

    >>> axis_node("2 * n")
    Call(op='*', args=(Const(value=2, type='int'), Name(name='n', type='int')), type='int')
    """
    return _axis(axis, axes.names(axis), Position("<axis>", 1, 1, axis)).read("int")


def _axis(axis: str, known: Iterable[str], position: Position) -> Parser:
    return Parser(Scope(names=dict.fromkeys(known, "int"), masks=False), axis, position)


def _axes(spec: "Spec") -> Iterator[tuple[Scope, tuple[Claim, ...]]]:
    """The claims of axes that are expressions. Raises SpecError for one that is none, or for a name that no array binds."""
    known = (*axes.WORDS, *axes.bound(t.shape for t in spec.tensors))
    for tensor in spec.tensors:
        for i, axis in enumerate(tensor.shape):
            if axes.computed(axis):
                part = _axis(str(axis), known, spec.axis_position(tensor.name, i, str(axis)))
                part.read("int")
                yield part.scope, tuple(part.claims)


def _with_head_dim(node: Node, d: int) -> Node:
    return Const(d, "int") if node == Name("d", "int") else rebuild(node, lambda child: _with_head_dim(child, d))


def _declared(spec: "Spec") -> Iterator[tuple[str, str, str]]:
    """The key, the kind and the name of each let, param and tensor: lets first, as one that nobody reads may be all that reads others."""
    yield from (("let", "let", one.name) for one in spec.let)
    yield from (("params", "param", one.name) for one in spec.params)
    yield from (("tensors", "tensor", one.name) for one in spec.tensors)


def _check_names(spec: "Spec") -> None:
    """Raises SpecError for the first param, tensor or let that is called like a function or a named mask, at its name."""
    taken = words()
    for key, kind, name in _declared(spec):
        if name in taken and not (kind == "let" and name in OF_SCALE):
            position = spec.name_position(key, name)
            raise SpecError(f"{key}.{name}: {name!r} is a word of the expression language", position, f"for example my_{name}")


def _check_read(spec: "Spec", expressions: Iterable[Node], let: set[str]) -> None:
    """Raises SpecError for the first param, tensor or let that no expression reads, at its name. `let`: those that are read."""
    read = {name for node in expressions for name in _names(node)}
    for key, kind, name in _declared(spec):
        if name not in (let if kind == "let" else read):
            hint = "leave it out, or name it in score, mask or another key"
            raise SpecError(f"no expression reads the {kind} {name!r}", spec.name_position(key, name), hint)


def _names(node: Node) -> Iterator[str]:
    for below in walk(node):
        match below:
            case Name(name) | Load(name):
                yield name
