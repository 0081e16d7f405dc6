"""Names of the language to names of a kernel, and operations to what the machine has."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

from flashgen.dtypes import READ
from flashgen.expr.holes.machine import Making, Operand
from flashgen.expr.language.deciding import approximate, decides
from flashgen.expr.language.fold import as_float, call, fold
from flashgen.expr.language.function import Function
from flashgen.expr.language.functions import row
from flashgen.expr.language.identifiers import Names
from flashgen.expr.language.nodes import (
    ELEMENT,
    LONG,
    ROW,
    UNIFORM,
    V_IDX,
    Argument,
    Call,
    Const,
    Index,
    Length,
    Load,
    Name,
    Node,
    Summation,
    Type,
    names,
    walk,
)
from flashgen.expr.prove.affine import param
from flashgen.expr.prove.integers import Integers, intervals, of_language
from flashgen.expr.prove.linear import COLUMN
from flashgen.expr.prove.names import BATCH, EXTENTS, FIRST, GROUP, HEADS, KERNEL, KV_LEN, NODES, OWN, Q_LEN, TOTAL, WHOLE
from flashgen.expr.prove.signs import NOTHING, Signs, positive
from flashgen.spec.axes import extent
from flashgen.spec.words import argument

if TYPE_CHECKING:
    from flashgen.spec import Spec, Tensor

S, KV_BEGIN, KV = Name("s", "float", ELEMENT), Name("kv_begin", "int", ROW), Name("kv_idx", "int")
SCALE = Argument("p.softmax_scale", "float")
RENAMED: Mapping[str, Node] = {
    **NODES,
    "s": Call("*", (SCALE, S), "float"),
    "q_idx": Name("q_idx", "int", ROW),
    "o": Name("o", "float", ELEMENT),
    V_IDX: Name(V_IDX, "int", ELEMENT),
    "kv_idx": Call("+", (KV_BEGIN, COLUMN), "int"),
}
TERM = "term"  # the index of every sum that is a loop
HEAD_OF_ROW = Name("head", "int", ROW)  # where a query tile holds the rows of several heads
GIVEN = frozenset({SCALE, BATCH, HEADS, GROUP, Q_LEN, KV_LEN, *OWN.values(), *FIRST.values(), *TOTAL.values()})  # arguments of every kernel
# Of a query row beyond q_len, or a key beyond kv_len, in the last tile, q_idx and kv_idx are outside a tensor; a head or a batch never is.
INSIDE = {(KERNEL[name], axis) for name, axis in WHOLE.items()}
WHOLE_COLUMNS = (64, 128, 192, 256)  # of o that the threads of every kernel hold, and no more


class Along(NamedTuple):
    """The elements of a tensor beside each other along the keys: by what name, of which tensor, as what they are read."""

    name: str
    tensor: "Tensor"
    node: Name


def level(node: Node) -> int:
    """The level at which a node varies: over elements, rows or query tiles; 0: nowhere."""
    if isinstance(node, Const):
        return 0
    return max((below.level for below in walk(node) if isinstance(below, Name)), default=UNIFORM)


def varies(node: Node) -> bool:
    """True if a node differs from element to element."""
    return level(node) == ELEMENT


class Binder:
    """Takes nodes of one spec's language to nodes of its kernel."""

    def __init__(
        self,
        spec: "Spec",
        scale: frozenset[str] | None,
        way: str,
        ahead: bool = True,
        heads_by_row: bool = False,
        renamed: Mapping[str, Node] = MappingProxyType({}),
    ):
        """`scale`: the params that the sign of softmax_scale rests on, if it is positive. `way`: how tanh and sigmoid are computed.
        `ahead`: what lies beside each other along the keys is read ahead of the scores. `heads_by_row`: rows of a tile are of several
        heads. `renamed`: what names are besides."""
        self.way, self.ahead = way, ahead
        self.accurate = spec.exact  # else in terms of the special function unit
        self.tensors: dict[str, Tensor] = {t.name: t for t in spec.tensors}
        self.geometry = spec.geometry
        self.extents: dict[str | int, Node] = dict(EXTENTS)
        self.extents.update({name: OWN[name] for name in spec.geometry.behind})
        own: dict[str, Node] = {name: OWN[name] for name in spec.geometry.own}
        self.renamed = {**RENAMED, **own, **({"h": HEAD_OF_ROW} if heads_by_row else {}), **renamed}
        positives = dict.fromkeys(("p.q_len", "p.kv_len", *OWN), NOTHING) | ({SCALE.name: scale} if scale is not None else {})
        positives |= {param(name): proof for name, proof in positive(spec.params).items()}
        self.known = intervals(spec.params) | ({V_IDX: (0, spec.head_dim.v - 1)} if spec.head_dim.v in WHOLE_COLUMNS else {})
        self.integers = Integers(of_language, self.known)
        self.reads: dict[Load, Along] = {}  # by the address of the first
        self.names = Names()
        least = [param(p.name) for p in spec.params if p.min is not None and p.min >= 0]
        self.signs = Signs(positives, frozenset(("batch", "head", "kv_head", "q_idx", "kv_begin", "column", V_IDX, "kv_idx", *least)))

    def __call__(self, node: Node, decided: bool = False) -> Node:
        """The node for a kernel: tensor indices clamped, functions of rows and elements in terms of the special function unit.

        `decided`: something is decided by it, so nothing may rewrite what it is computed by.
        """
        match node:
            case Index():
                return replace(node, name=TERM)
            case Name(name, type):
                return self.renamed.get(name) or Argument(param(name), type)
            case Load(tensor, indices, type):
                inside = self._inside(self.tensors[tensor], indices)
                along = self.ahead and type != LONG and indices[-1] == KV and self.tensors[tensor].shape[-1] == "kv_len"
                if along and all(level(i) < ELEMENT for i in inside[:-1]):
                    return self._read(self.tensors[tensor], inside[:-1], type)
                return Load(param(tensor), inside, type)
            case Summation(index, term):
                return self(fold(node.unrolled), decided) if decided else Summation(replace(index, name=TERM), self(term))
            case Call("float", (x,)) if not decided and not self.integers.fits(x) and _in_floats(x) != node:
                return self(_in_floats(x))
            case Call("//" | "%" as op, (x, n), type) if self._empty(n):
                return self(Call(op, (x, call("max", n, Const(1, "int"))), type), decided)
            case Call(op, args, type):
                parts = tuple(self(x, decides(op, decided)) for x in args)
                found = row(op)
                assert found, op
                exact = decided and type == "float" and not approximate(node)
                return Call(found.decided, parts, "float") if exact else self._machine(found, parts, type)
        return node

    def _empty(self, divisor: Node) -> bool:
        """True if a divisor may be 0 where there are no queries or no keys: 1 divides there."""
        match divisor:
            case Call("max", (Const(int(least)), _) | (_, Const(int(least)))) if least > 0:
                return False
        return not names(divisor).isdisjoint(("q_len", "kv_len"))

    def _inside(self, tensor: "Tensor", indices: tuple[Node, ...]) -> tuple[Node, ...]:
        """The indices of a read inside of the array that a call gives."""
        inside = [self._clamped(self(index), extent(tensor, i)) for i, index in enumerate(indices)]
        if (at := self.geometry.joined(tensor.shape)) is not None:
            row, length = inside[at + 1], str(tensor.shape[at + 1])
            whole = call("+", FIRST[length], row)
            if level(row) <= UNIFORM:  # which is read of a sequence without rows too
                whole = call("min", whole, call("-", TOTAL[length], Const(1, "int")))
            inside[at : at + 2] = [whole]
        return tuple(inside)

    def _read(self, tensor: "Tensor", indices: tuple[Node, ...], type: Type) -> Node:
        begin = call("+", FIRST["kv_len"], KV_BEGIN) if self.geometry.joined(tensor.shape) is not None else KV_BEGIN
        pointer = cast("Type", f"const {READ[tensor.dtype][1]}*")
        address = Load(f"{param(tensor.name)}.address", (*indices, begin), pointer)
        if address not in self.reads:
            name = self.names.fresh(tensor.name)
            self.reads[address] = Along(name, tensor, Name(f"at.{argument(name)}", type, ELEMENT))
        read = self.reads[address].node
        return Call("flag_at", (read, COLUMN), "bool") if type == "bool" else read  # two of them share a word

    def _machine(self, row: Function, args: tuple[Node, ...], type: Type) -> Node:
        x = args[0]
        if row.name in ("//", "%") and self._nonnegative(x):
            return Call("quotient" if row.name == "//" else "remainder", args, "int")
        if self.accurate or level(x) <= UNIFORM or (row.short and self.way == "library"):
            make = row.library
        else:
            make = row.short[0].make if row.short and self.way == "short" else row.fast
        made: Operand = make(Making(row.name, type), *map(Operand, args))
        return made.node

    def _clamped(self, index: Node, extent: str | int) -> Node:
        match index:
            case Const(int(value)) if isinstance(extent, int):
                return Const(min(max(value, 0), extent - 1), "int")
            case Name(name) if (name, extent) in INSIDE:
                return index
        size = Const(extent, "int") if isinstance(extent, int) else self.extents.get(extent) or Length(f"p.{extent}", "int")
        below = (
            index if isinstance(extent, int) and self._at_most(index, extent - 1) else call("min", index, call("-", size, Const(1, "int")))
        )
        return below if self._nonnegative(index) else call("max", below, Const(0, "int"))

    def _at_most(self, node: Node, limit: int) -> bool:
        """True if an integer is provably at most `limit`."""
        match node:
            case Const(value):
                return value <= limit
            case Name(name) if name in self.known:
                return self.known[name][1] <= limit
            case Index(count=count):
                return count - 1 <= limit
            case Call("min", args):
                return any(self._at_most(x, limit) for x in args)
            case Call("max", args) | Call("where", (_, *args)):
                return all(self._at_most(x, limit) for x in args)
            case Call("%" | "remainder" | "key_remainder" | "wrapped", (_, n)):
                return self._at_most(n, limit + 1)
        return False

    def _nonnegative(self, node: Node) -> bool:
        return self.signs.nonnegative(node) == NOTHING


def _in_floats(x: Node) -> Node:
    """An integer that 32 bits may not hold as a float: of products the factors are exact, of sums the sum."""
    match x:
        case Call("*" | "neg" | "abs" | "min" | "max" as op, args):
            return call(op, *map(_in_floats, args))
    return as_float(x)
