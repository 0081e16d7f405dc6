"""The names and forms that an expression may be made of, and messages for the rest."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from flashgen.errors import Position
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.masks import MASKS
from flashgen.expr.language.nodes import INDEX_NAMES, Type
from flashgen.spec.words import EXPRESSION_WORDS

SUM = "write sum(i, 4, w[i] * x[i]): a name of its own, how many terms, and a term"
MAX_TEXT, MAX_DEPTH, MAX_NODES = 4000, 60, 1000
MAX_POWER = 8  # of a product that a power stands for
MAX_INT = 2**30  # indices are 32-bit in kernels, and the sum of two must fit
MAX_EXACT = 2**63 - 2**33  # of what is computed from them: 64 bits, with room for the positions that a named mask adds

INDICES: Mapping[str, Type] = dict.fromkeys(INDEX_NAMES, "int")
OPERATORS: Mapping[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
WORDS: Mapping[Type, str] = {"int": "an integer", "long long": "a number of int64", "float": "a number", "bool": "a condition"}
LONG_HINT = "numbers of int64 are compared, or their bits read; to compute, write int(x), or cast the tensor to int32 or float32"
EXAMPLES: Mapping[Type, str] = {
    "int": "where(condition, 1, 0)",
    "float": "where(condition, 1.0, 0.0)",
    "bool": "a comparison, as in kv_idx <= q_idx",
}
DIVIDED = "divide integers with //; a param is an integer if its default is"
PARENTHESES = (
    "& | ~ bind tighter than comparisons: put each comparison in parentheses, as in (a < b) & (c < d); "
    "of integers x & 31 is x % 32, and bit(x, i) is one bit"
)
TITLES: Mapping[type, str] = {  # of what Python has and the language has not
    ast.Attribute: "attribute access",
    ast.JoinedStr: "an f-string",
    ast.Lambda: "a lambda",
    ast.NamedExpr: "an assignment",
    ast.BoolOp: "`and` or `or`",
    ast.Not: "`not`",
    ast.IfExp: "`if`",
    ast.BitXor: "^",
    ast.Starred: "*",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.MatMult: "@",
    ast.In: "`in`",
    ast.NotIn: "`not in`",
    ast.Is: "`is`",
    ast.IsNot: "`is not`",
    ast.GeneratorExp: "a comprehension",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
}
HINTS: Mapping[type, str] = {
    ast.BoolOp: "write & for `and`, | for `or`, and put each comparison in parentheses",
    ast.Not: "write ~(condition)",
    ast.IfExp: "write where(condition, then, else)",
    ast.BitXor: "write (a & ~b) | (~a & b)",
    ast.RShift: "write bit(x, i), or x // 2",
}


def words() -> frozenset[str]:
    """Every word of the language, which no param or tensor may be called by."""
    return EXPRESSION_WORDS.union(FUNCTIONS, MASKS)


def allowed() -> str:
    """The things that an expression may be made of, for messages."""
    return f"allowed: names, numbers, tensor[i, j], + - * / // % **, comparisons, & | ~, and the functions {', '.join((*FUNCTIONS, 'sum'))}"


def remedy(type: Type, found: Type) -> str:
    """The way out where an expression is of another type than it has to be.

    >>> remedy("int", "bool")
    'write where(condition, 1, 0)'
    """
    if type != "bool" and found == "long long":
        return LONG_HINT
    return DIVIDED if (type, found) == ("int", "float") else f"write {EXAMPLES[type]}"


def usage(name: str) -> str:
    """A function or a named mask as it is written, with its parameters."""
    if name == "sum":
        return SUM.removeprefix("write ")
    if name in MASKS:
        return f"{name}({', '.join(MASKS[name].parameters)})" if MASKS[name].parameters else name
    return f"{name}({', '.join(FUNCTIONS[name].parameters)})"


@dataclass(frozen=True)
class Scope:
    """The names that an expression may read: params and others by type, tensors by type and shape, named masks, subexpressions."""

    params: Mapping[str, Type] = field(default_factory=dict)
    tensors: Mapping[str, tuple[Type, tuple[str | int, ...]]] = field(default_factory=dict)
    names: Mapping[str, Type] = field(default_factory=lambda: INDICES)
    masks: bool = True
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of integer params
    let: Mapping[str, tuple[str, Position]] = field(default_factory=dict)  # named subexpressions, each of those before it
    below: tuple[str, ...] = ()  # of the let that is read: itself, and those that stand behind it

    @property
    def known(self) -> list[str]:
        """Every word it understands."""
        return [*self.names, *self.params, *self.tensors, *self.let, *(MASKS if self.masks else ()), *FUNCTIONS, "sum"]
