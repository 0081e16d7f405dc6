"""Expression text to typed nodes: Python's `ast`, a whitelist, and nothing evaluated."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

from flashgen.dtypes import float32, float32_fault
from flashgen.errors import Position
from flashgen.expr.language.claims import Claim
from flashgen.expr.language.fold import as_float, fold, join
from flashgen.expr.language.function import Defined, Function
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.located import Located
from flashgen.expr.language.masks import MASKS
from flashgen.expr.language.nodes import LONG, Call, Const, Load, Name, Node, Type, walk
from flashgen.expr.language.one_pass import MIXED, of_function, of_name
from flashgen.expr.language.operands import argument, compared, of_long, power, tensor
from flashgen.expr.language.scope import (
    EXAMPLES,
    LONG_HINT,
    MAX_DEPTH,
    MAX_INT,
    MAX_NODES,
    OPERATORS,
    PARENTHESES,
    WORDS,
    Scope,
    allowed,
    remedy,
    usage,
)
from flashgen.expr.language.terms import added


class Parser(Located):
    """Reads one text. `claims` collects what is still to be proved of it."""

    def __init__(self, scope: Scope, text: str, position: Position, bound: Mapping[str, Node | str] | None = None):
        super().__init__(text, position)
        self.scope = scope
        self.bound = bound or {}  # of a named mask: its parameters; a tensor by its name
        self.depth = self.size = 0
        self.claims: list[Claim] = []
        self.indices: dict[str, Node] = {}  # of sums, inside of them
        self.let: dict[str, Node] = {}  # what those that it names stand for

    def read(self, type: Type | None = None) -> Node:
        """The node; of `type` if one is given, with an integer taken as a float."""
        tree = self.tree()
        node = self.node(tree)
        if type is None or node.type == type:
            return node
        if type == "float" and node.type == "int":
            return Call("float", (node,), "float")
        raise self.error(tree, f"expected {WORDS[type]}, this is {WORDS[node.type]}", remedy(type, node.type))

    def node(self, tree: ast.expr) -> Node:
        """Reads an expression. Raises SpecError, as everything below does, at the column of the mistake."""
        self.depth += 1
        self.grow(1, tree)
        if self.depth > MAX_DEPTH:
            raise self.error(tree, "nested too deeply", f"allowed: {MAX_DEPTH} levels")
        match tree:
            case ast.Constant(value):
                node = self.constant(tree, value)
            case ast.Name(name):
                node = self.name(tree, name)
            case ast.Subscript(ast.Name(name), index):
                node = self.load(tree, name, index)
            case ast.Call(ast.Name(name), args, keywords):
                if stray := [*keywords, *(a for a in args if isinstance(a, ast.Starred))]:
                    raise self.error(stray[0], f"arguments of {name} are given by position", f"write {usage(name)}")
                node = self.call(tree, name, args)
            case ast.Call() | ast.Subscript():
                raise self.error(tree, f"only a name can be {'called' if isinstance(tree, ast.Call) else 'indexed'}", allowed())
            case ast.UnaryOp(op, operand):
                node = self.unary(tree, op, operand)
            case ast.BinOp(left, op, right):
                node = self.binary(tree, op, left, right)
            case ast.Compare(left, ops, others):
                node = self.compare(tree, ops, [left, *others])
            case _:
                raise self.foreign(tree, type(tree))
        self.depth -= 1
        if node.type == "int" and not self.bound:
            self.claim("exact", tree, node)
        return node

    def grow(self, count: int, tree: ast.expr) -> None:
        """Counts operations. Raises SpecError for more than MAX_NODES."""
        self.size += count
        if self.size > MAX_NODES:
            raise self.error(tree, f"more than {MAX_NODES} operations", "simplify it, or read a tensor")

    def constant(self, tree: ast.expr, value: object) -> Node:
        """Reads a number or a truth value."""
        if isinstance(value, bool):
            return Const(value, "bool")
        if isinstance(value, int):
            if value > MAX_INT:
                raise self.error(
                    tree, "an integer that does not fit", f"allowed: up to {MAX_INT}, as indices are 32-bit; or write it with a point"
                )
            return Const(value, "int")
        if isinstance(value, float):
            if fault := float32_fault(value):
                raise self.error(tree, "a number that float32 does not hold", fault)
            return Const(float32(value), "float")
        raise self.error(tree, f"a constant of type {type(value).__name__} is not part of the language", "allowed: numbers, True, False")

    def name(self, tree: ast.expr, name: str) -> Node:
        """Reads a name: an index, a param, a part of `let`, a named mask without arguments."""
        bound = self.bound.get(name) or self.indices.get(name)
        if isinstance(bound, Node):
            return bound
        if found := self.scope.params.get(name) or self.scope.names.get(name):
            return Name(name, found)
        if name in self.scope.let:
            return self.subexpression(tree, name)
        if name in self.scope.tensors:
            rank = len(self.scope.tensors[name][1])
            raise self.error(tree, f"{name} is a tensor", f"index it: {name}[{', '.join('ijklmnop'[:rank])}], {rank} in all")
        if name in FUNCTIONS:
            raise self.error(tree, f"{name} is a function", f"write {usage(name)}")
        if self.scope.masks and name in MASKS:
            return self.named(tree, name, [])
        raise self.error(tree, f"unknown name {name!r}", of_name(name, self.scope))

    def subexpression(self, tree: ast.expr, name: str) -> Node:
        """The node that a let stands for; what is to be proved of it is so once a text."""
        if name not in self.let:
            every = list(self.scope.let)
            above, below = every[: every.index(name)], every[every.index(name) :]
            scope = replace(self.scope, let={one: self.scope.let[one] for one in above}, below=(*below, *self.scope.below))
            part = Parser(scope, *self.scope.let[name])
            self.let |= {name: part.read(), **part.let}
            self.claims += part.claims
        self.grow(sum(1 for _ in walk(self.let[name])), tree)
        return self.let[name]

    def load(self, tree: ast.expr, name: str, index: ast.expr) -> Node:
        """Reads an element of a tensor."""
        bound = self.bound.get(name)
        name = bound if isinstance(bound, str) else name
        if name not in self.scope.tensors:
            known = ", ".join(self.scope.tensors) or "none declared; an array of a call is declared there, or a keyword of attention()"
            raise self.error(tree, f"{name!r} is not a tensor", MIXED if name == "s" else f"tensors: {known}")
        type, shape = self.scope.tensors[name]
        indices = index.elts if isinstance(index, ast.Tuple) else [index]
        if len(indices) != len(shape):
            raise self.error(index, f"{name} takes {len(shape)} indices, got {len(indices)}", f"it is declared with {len(shape)} axes")
        return Load(name, tuple(self.index(i, name, extent) for i, extent in zip(indices, shape, strict=True)), type)

    def index(self, tree: ast.expr, name: str, extent: str | int) -> Node:
        """An index of a tensor along an axis."""
        node = self.typed(tree, "int", f"an index of {name}")
        match fold(node), extent:
            case Const(value), int(n) if not 0 <= value < n:
                raise self.error(tree, f"{name} has {n} entries along this axis, and none at {value}", f"write 0 to {n - 1}")
        return node

    def call(self, tree: ast.expr, name: str, args: Sequence[ast.expr]) -> Node:
        """Reads a call of a function or of a named mask."""
        if self.scope.masks and name in MASKS:
            return self.named(tree, name, args)
        if name == "sum":
            return added(self, tree, args)
        if name not in FUNCTIONS:
            if name in self.scope.tensors:
                raise self.error(tree, f"{name} is a tensor", "index it with brackets")
            if name in self.scope.names or name in self.scope.params:
                raise self.error(tree, f"{name} is not a function", f"functions: {', '.join(FUNCTIONS)}")
            raise self.error(tree, f"unknown function {name!r}", of_function(name, self.scope))
        function = FUNCTIONS[name]
        if len(args) != len(function.parameters):
            raise self.error(tree, f"{name} takes {len(function.parameters)} arguments, got {len(args)}", f"write {usage(name)}")
        return self.defined(tree, function, args) if isinstance(function, Defined) else self.function(function, args)

    def function(self, function: Function, args: Sequence[ast.expr]) -> Node:
        """Reads a call of a function that has operands of one kind."""
        if long := of_long(self, function, args):
            return long
        match function.takes:
            case "choice":
                return self.choice(*args)
            case "integers":
                nodes = tuple(self.typed(x, "int", f"an argument of {function.name}") for x in args)
            case "floats":
                nodes = tuple(map(self.number, args))
                if function.gives == "int" and nodes[0].type == "int":
                    return nodes[0]
                nodes = tuple(map(as_float, nodes))
            case _:
                nodes = join(*map(self.number, args))
        return Call(function.name, nodes, nodes[-1].type if function.gives == "same" else function.gives)

    def choice(self, test: ast.expr, yes: ast.expr, no: ast.expr) -> Node:
        """Reads `where`."""
        condition = self.typed(test, "bool", "the first argument of where")
        then, other = self.value(yes), self.value(no)
        if (then.type == "bool") != (other.type == "bool"):
            chosen = f"where chooses between {WORDS[then.type]} and {WORDS[other.type]}"
            raise self.error(no, chosen, "both must be numbers, or both conditions")
        then, other = join(then, other)
        return Call("where", (condition, then, other), then.type)

    def defined(self, tree: ast.expr, function: Defined, args: Sequence[ast.expr]) -> Node:
        """The node that a Defined function stands for: what its text would be with the arguments in it."""
        bound: dict[str, Node | str] = {p: self.number(arg) for p, arg in zip(function.parameters, args, strict=True)}
        node = Parser(Scope(masks=False), function.text, self.position, bound).read()
        self.grow(sum(1 for _ in walk(node)), tree)
        return node

    def unary(self, tree: ast.expr, op: ast.unaryop, operand: ast.expr) -> Node:
        """Reads a sign or a negation."""
        if isinstance(op, ast.Not):
            raise self.foreign(tree, ast.Not)
        if isinstance(op, ast.Invert):
            return Call("~", (self.condition(operand, "~"),), "bool")
        node = self.number(operand)
        if isinstance(op, ast.UAdd):
            return node
        return Const(-node.value, node.type) if isinstance(node, Const) else Call("neg", (node,), node.type)

    def binary(self, tree: ast.expr, op: ast.operator, left: ast.expr, right: ast.expr) -> Node:
        """Reads an operator between two operands."""
        symbol = OPERATORS.get(type(op))
        if symbol == "**":
            return power(self, tree, left, right)
        if symbol is None:
            raise self.foreign(tree, type(op))
        if symbol in "&|":
            return Call(symbol, (self.condition(left, symbol), self.condition(right, symbol)), "bool")
        args = join(self.number(left), self.number(right))
        if symbol == "/":
            return Call("/", (as_float(args[0]), as_float(args[1])), "float")
        if symbol in ("//", "%"):
            if args[0].type == "float":
                raise self.error(tree, f"{symbol} takes integers", "write floor(a / b)" if symbol == "//" else "write a - b * floor(a / b)")
            self.claim("positive", right, args[1], f"the right side of {symbol}")
        return Call(symbol, args, args[0].type)

    def claim(self, kind: Literal["positive", "exact", "holds"], tree: ast.expr, node: Node, subject: str = "") -> None:
        """Notes what has to be proved of a node before it is compiled."""
        self.claims.append(Claim(kind=kind, node=node, subject=subject, source=self.source(tree), refuse=partial(self.error, tree)))

    def compare(self, tree: ast.expr, ops: Sequence[ast.cmpop], operands: Sequence[ast.expr]) -> Node:
        """Reads a comparison, or a chain of them: `a <= b < c`."""
        for op in ops:
            if type(op) not in OPERATORS:
                raise self.foreign(tree, type(op))
        sides = pairwise((operand, self.node(operand)) for operand in operands)
        steps = [compared(self, OPERATORS[type(op)], *pair) for op, pair in zip(ops, sides, strict=True)]
        result = steps[0]
        for step in steps[1:]:
            result = Call("&", (result, step), "bool")
        return result

    def named(self, tree: ast.expr, name: str, args: Sequence[ast.expr]) -> Node:
        """Reads a named mask with its arguments in the place of its parameters."""
        mask = MASKS[name]
        if len(args) != len(mask.parameters):
            raise self.error(tree, f"{name} takes {len(mask.parameters)} arguments, got {len(args)}", f"write {usage(name)}")
        bound: dict[str, Node | str] = {}
        for parameter, arg in zip(mask.parameters, args, strict=True):
            bound[parameter] = tensor(self, arg, name) if mask.kind == "tensor" else argument(self, arg, name, parameter)
        node = Parser(Scope(self.scope.params, self.scope.tensors), mask.text, self.position, bound).read()
        self.grow(sum(1 for _ in walk(node)), tree)
        return node

    def typed(self, tree: ast.expr, type: Type, what: str) -> Node:
        """Reads an expression that has to be of a type; `what` it is, for the message."""
        node = self.node(tree)
        if node.type != type:
            raise self.error(tree, f"{what} is {WORDS[type]}, this is {WORDS[node.type]}", remedy(type, node.type))
        return node

    def condition(self, tree: ast.expr, symbol: str) -> Node:
        """Reads an operand of an operator of conditions."""
        node = self.node(tree)
        if node.type != "bool":
            raise self.error(tree, f"{symbol} joins conditions, this is {WORDS[node.type]}", PARENTHESES)
        return node

    def value(self, tree: ast.expr) -> Node:
        """Reads an expression of which something may be computed."""
        node = self.node(tree)
        if node.type == LONG:
            raise self.error(tree, f"this is {WORDS[LONG]}, of which nothing is computed", LONG_HINT)
        return node

    def number(self, tree: ast.expr) -> Node:
        """Reads an expression that has to be a number."""
        node = self.value(tree)
        if node.type == "bool":
            raise self.error(tree, "expected a number, this is a condition", f"write {EXAMPLES['int']}")
        return node
