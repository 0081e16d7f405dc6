"""Reads score, mask and scale of a spec as typed nodes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.errors import SpecError
from flashgen.expr.language.claims import Claim, Requirement
from flashgen.expr.language.nodes import UNIFORM_NAMES, Const, Load, Name, Node, Type, rebuild, walk
from flashgen.expr.language.parse import Parser
from flashgen.expr.language.scope import INDICES, Scope, words

if TYPE_CHECKING:
    from flashgen.spec import Spec

TYPES: dict[str, Type] = {"float32": "float", "int32": "int", "bool": "bool"}  # of tensors, by dtype


@dataclass(frozen=True)
class Expressions:
    """A spec's expressions: `score`, a float of s (q.k times `scale`); `mask`, true where a query sees a key; `scale`, of params, as it is
    written, for the host alone computes it; `sink`, a logit of a query head, if its softmax has one."""

    score: Node
    mask: Node
    scale: Node
    requires: tuple[Requirement, ...] = ()  # of the params, at each call
    sink: Node | None = None


def read(spec: "Spec") -> Expressions:
    """The expressions of a spec as they are written."""
    return written(spec)[0]


def written(spec: "Spec") -> tuple[Expressions, tuple[tuple[Scope, tuple[Claim, ...]], ...]]:
    """The expressions of a spec, and the claims of each text in its scope."""
    _check_names(spec)
    params: dict[str, Type] = {p.name: p.type for p in spec.params}
    tensors = {t.name: (TYPES[t.dtype], t.shape) for t in spec.tensors}
    parts = {
        "score": Parser(Scope(params, tensors, {**INDICES, "s": "float"}), spec.score, spec.position("score")),
        "mask": Parser(Scope(params, tensors), spec.mask, spec.position("mask")),
        "scale": Parser(Scope(params, names={"d": "int"}, masks=False), spec.scale or "1/sqrt(d)", spec.position("scale")),
    }
    if spec.softmax.sink is not None:
        uniform: dict[str, Type] = dict.fromkeys(UNIFORM_NAMES, "int")
        parts["sink"] = Parser(Scope(params, tensors, uniform, masks=False), spec.softmax.sink, spec.position("softmax.sink"))
    read = {key: part.read("bool" if key == "mask" else "float") for key, part in parts.items()}
    _check_read(spec, read.values())
    scale = _with_head_dim(read["scale"], spec.head_dim.qk)
    claims = tuple((part.scope, tuple(part.claims)) for part in parts.values())
    return Expressions(read["score"], read["mask"], scale, sink=read.get("sink")), claims


def _with_head_dim(node: Node, d: int) -> Node:
    return Const(d, "int") if node == Name("d", "int") else rebuild(node, lambda child: _with_head_dim(child, d))


def _check_names(spec: "Spec") -> None:
    """Raises SpecError for the first param or tensor that is called like a function or a named mask, at its name."""
    taken = words()
    for kind, declared in (("params", spec.params), ("tensors", spec.tensors)):
        for one in declared:
            if one.name in taken:
                place = spec.name_position(kind, one.name)
                raise SpecError(
                    f"{kind}.{one.name}: {one.name!r} is a word of the expression language", place, f"for example my_{one.name}"
                )


def _check_read(spec: "Spec", expressions: Iterable[Node]) -> None:
    """Raises SpecError for the first param or tensor that no expression reads, at its name."""
    read = {name for node in expressions for name in _names(node)}
    for kind, declared in (("param", spec.params), ("tensor", spec.tensors)):
        for one in declared:
            if one.name not in read:
                place = spec.name_position(f"{kind}s", one.name)
                raise SpecError(
                    f"no expression reads the {kind} {one.name!r}", place, "leave it out, or name it in score, mask, scale or sink"
                )


def _names(node: Node) -> Iterator[str]:
    for below in walk(node):
        match below:
            case Name(name) | Load(name):
                yield name
