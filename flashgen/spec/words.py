"""Names a spec may give, and the words it may not take."""

import keyword
import re
from collections.abc import Callable

from flashgen.spec.outputs import OUTPUTS

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

# C++23 [lex.key] with its alternative tokens, and the words that the CUDA C++ Programming Guide adds without underscores.
_CPP = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await co_return
co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else
enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator
or or_eq private protected public register reinterpret_cast requires return short signed sizeof static static_assert static_cast
struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
while xor xor_eq restrict half dim3 threadIdx blockIdx blockDim gridDim warpSize
"""
CPP_WORDS = frozenset(_CPP.split())

# Functions and named masks of the language are taken as well: who reads the expressions refuses them.
_EXPRESSION = """
s d b h hq hk q_idx kv_idx v_idx q_len kv_len float
"""
EXPRESSION_WORDS = frozenset(_EXPRESSION.split())

# Given beside params and tensors: to a call, to `attention`, in gradients, of packed and paged sequences.
_CALL = """
q k v o lse max_logit out spec plan self stream backend mask score scale layout
do dlse dq dk dv seed offset check kv_lens cu_seqlens_q cu_seqlens_k block_table k_scale v_scale
"""
CALL_WORDS = frozenset(_CALL.split())

OF_SCALE = frozenset({"d"})  # words of scale alone, where they go before a let


def argument(name: str) -> str:
    """The name of a param or tensor wherever names of flashgen's own stand beside it, none of which begins so."""
    return f"arg_{name}"


def gradient(name: str) -> str:
    """The name of the gradient of a param or tensor, in a launch and in emitted text."""
    return f"grad_{name}"


def exact(name: str) -> str:
    """The name of the sums in integers from which the gradient of a param or tensor is rounded."""
    return f"exact_{name}"


def count(name: str) -> str:
    """The name of the number of elements of a tensor whose gradient is such sums."""
    return f"count_{name}"


def name_fault(name: str) -> str:
    """The reason why a spec cannot have this name; empty if it can."""
    if name in CPP_WORDS:
        return "is a word of C++ or CUDA"
    return _identifier_fault(name) or ("ends with _, and files and structs add _ and the architecture" if name.endswith("_") else "")


def _identifier_fault(name: str) -> str:
    if not _IDENTIFIER.fullmatch(name):
        return "is not a name: a letter, then letters, digits and _, at most 63 in all"
    if "__" in name:
        return "has two _ in a row: C++ keeps such names for itself"
    return ""


def value_name_fault(name: str) -> str:
    """The reason why a param or tensor cannot have this name; empty if it can."""
    if name in EXPRESSION_WORDS:
        return "is a word of the expression language"
    if name in CALL_WORDS or name in OUTPUTS:
        return "is kept for an argument of calls"
    return _identifier_fault(name) or ("is a word of Python" if keyword.iskeyword(name) else "")


def let_name_fault(name: str) -> str:
    """The reason why a let cannot have this name; empty if it can."""
    return "" if name in OF_SCALE else value_name_fault(name)


def free_name(name: str, fault: Callable[[str], str]) -> str:
    """A name like it that `fault` accepts."""
    clean = re.sub(r"[^A-Za-z0-9]+", "_", name)[:60].strip("_")
    return clean if not fault(clean) else f"my_{clean}".rstrip("_")
