"""What a spec says of score, mask and scale, as typed nodes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.dtypes import float32_fault
from flashgen.errors import SpecError
from flashgen.expr.language.fold import fold
from flashgen.expr.language.nodes import UNIFORM_NAMES, Const, Load, Name, Node, Type, names, rebuild, walk
from flashgen.expr.language.parse import Parser
from flashgen.expr.language.scope import INDICES, Scope
from flashgen.expr.meaning.evaluate import evaluate
from flashgen.expr.prove.signs import Requirement

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


def lower(spec: "Spec") -> Expressions:
    """The expressions of a spec, constants folded, named masks replaced by what they stand for.

    >>> from flashgen.spec import Spec
    >>> from flashgen.expr.language.text import show
    >>> show(lower(Spec(head_dim=64, dtype="bfloat16", mask="causal & window(127, 0)")).mask)
    '(kv_idx <= q_idx + kv_len - q_len) & ((kv_idx >= q_idx + kv_len - q_len - 127) & (kv_idx <= q_idx + kv_len - q_len))'

    Raises SpecError, at the column of the mistake.
    """
    parsed = read(spec)
    sink = None if parsed.sink is None else fold(parsed.sink)
    if spec.scale and not names(parsed.scale) and (fault := float32_fault(scale := float(evaluate(parsed.scale, {})))):
        raise SpecError(f"scale is {scale}: {fault}", spec.position("scale"), "write a number, or an expression of d and params")
    return Expressions(fold(parsed.score), fold(parsed.mask), parsed.scale, parsed.requires, sink)


def read(spec: "Spec") -> Expressions:
    """The expressions of a spec as they are written."""
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
    requires = dict.fromkeys(r for part in parts.values() for r in part.requires)
    _check_read(spec, read.values())
    scale = _with_head_dim(read["scale"], spec.head_dim.qk)
    return Expressions(read["score"], read["mask"], scale, tuple(requires), read.get("sink"))


def _with_head_dim(node: Node, d: int) -> Node:
    return Const(d, "int") if node == Name("d", "int") else rebuild(node, lambda child: _with_head_dim(child, d))


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
