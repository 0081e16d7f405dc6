"""Pointers and a thread's arrays of a CUDA text as types of host/pointers.hpp, so that accesses are seen where they are made."""

import re

NAMESPACE = "::cuda_on_host::"
WORD = r"(?:::)?[A-Za-z_][\w:]*(?:<\w+>)?"
TYPE = rf"(?:(?:unsigned|long|short) )*{WORD}"
REGISTERS_ALONE = "void", "char", "At"  # no elements of arrays in global memory; At: what a thread read there

POINTER = re.compile(rf"\b((?:const )?(?!(?:{'|'.join(REGISTERS_ALONE)})\b){TYPE})\*(?=[ )>])")
CAST = re.compile(rf"\breinterpret_cast<((?:const )?{TYPE})\*>")
CAST_TO_ARRAY = re.compile(rf"\breinterpret_cast<({TYPE})\(\*\)((?:\[[^][]+\])+)>")
ARRAY = re.compile(  # or a reference to one, with its value, and whether a next declarator follows
    rf"(?<![\w:.])(?!return\b|else\b|case\b)({TYPE}) (\(&)?((?<=&)\w*|\w+)\)?((?:\[[^][]+\])+)"
    r"( = \{[^{};]*\})?(, (?=\w+(?: =|[\[,;])))?"
)


def with_types(text: str) -> str:
    """The text with types that see what is done through them; lines stay where they are.

    >>> with_types("const float* const x; float s[2][N], t; f(reinterpret_cast<u32*>(s));").replace(NAMESPACE, "")
    'Pointer<const float> const x; Local<float, 2, N> s; float t; f(cast<u32>(s));'
    """
    text = CAST.sub(rf"{NAMESPACE}cast<\1>", text)
    text = CAST_TO_ARRAY.sub(lambda cast: f"{NAMESPACE}cast<{local(cast[1], cast[2])}>", text)
    text = POINTER.sub(rf"{NAMESPACE}Pointer<\1>", text)
    before = ""
    while text != before:  # a declarator at a time
        before, text = text, ARRAY.sub(array, text)
    return text


def array(declared: re.Match[str]) -> str:
    """The declaration of a local array as one whose elements are watched."""
    element, reference, name, sizes, value, more = declared.groups("")
    if element == "auto":  # of any type, its size too
        return f"auto& {name}"
    return f"{local(element, sizes)}{reference[1:]} {name}{value}" + (f"; {element} " if more else "")


def local(element: str, sizes: str) -> str:
    """The C++ type of a local array whose elements are watched."""
    return f"{NAMESPACE}Local<{element}, {sizes[1:-1].replace('][', ', ')}>"
