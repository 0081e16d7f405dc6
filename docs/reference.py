"""Writes docs/reference.md, docs/api.md and docs/commands.md, the pages that are made from the code."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.main import get_command

import flashgen
from flashgen.cli.commands import app
from flashgen.expr.language.function import Defined, Function
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.masks import MASKS
from flashgen.expr.language.nodes import LONG
from flashgen.expr.language.operators import LONG_BIT, LONG_INT, OPERATORS
from flashgen.expr.language.scope import INDICES, usage
from flashgen.spec import json_schema
from flashgen.spec.outputs import OUTPUTS

FOLDER = Path(__file__).parent
WORDS = {  # what the indices mean; a test asks for each
    "b": "the number of the sequence in the batch",
    "h": "the number of the query head",
    "hk": "the number of the key/value head that the query head reads",
    "q_idx": "the index of the query in its sequence, from 0",
    "kv_idx": "the index of the key in its sequence, from 0",
    "q_len": "the number of queries of the sequence",
    "kv_len": "the number of keys of the sequence",
}
SIGNS = set(OPERATORS) - {"neg", "float", LONG, LONG_BIT, LONG_INT}  # an unary minus, and what has no sign in the text
MADE = "`python docs/reference.py` makes this page from the code."


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    return {"reference.md": language(), "api.md": interface(), "commands.md": commands()}


def language() -> str:
    """The page of all keys, words, operators, functions, named masks and outputs."""
    schema = json_schema()
    words = [
        ("`s`", "float", "the scaled product of the query and the key; in scores alone"),
        ("`o`", "float", "what a row has become once its keys are taken in; in `output` alone"),
        ("`v_idx`", "int", "the column of `o`, from 0; in `output` alone"),
        *((f"`{name}`", kind, WORDS[name]) for name, kind in INDICES.items()),
    ]
    signs = [_function(row) for name, row in OPERATORS.items() if name in SIGNS]
    masks = [(f"`{usage(name)}`", f"`{mask.text}`") for name, mask in MASKS.items()]
    outputs = [(f"`{name}`", row.text, _code(row.dtype or "that of o"), f"{row.empty:g}") for name, row in OUTPUTS.items()]
    return _joined(
        f"# All words of the language\n\n{MADE} [The language](language/spec.md) explains what the words mean together.",
        "## Keys of a spec",
        _keys(schema),
        *(f"### Keys of `{key}`\n\n{_keys(nested)}" for key, nested in _nested(schema)),
        "## Indices\n\n`scale` knows `d` besides, the head dim of q and k.",
        _table(("word", "type", "meaning"), words),
        "## Operators",
        _table(("written", "of", "gives", "slope by each argument"), signs),
        "## Functions\n\nThe slope is what the backward computes. A function without one has no float among its arguments.",
        _table(("written", "of", "gives", "slope by each argument, or its definition"), map(_function, FUNCTIONS.values())),
        "## Named masks\n\nA named mask is a text of the language. Its parameters are integers, or the name of a tensor `[b, kv_len]`.",
        _table(("written", "stands for"), masks),
        "## Outputs\n\nThe last column is the value for a row without keys, or for a head without rows.",
        _table(("output", "what it is", "dtype", "without keys"), outputs),
    )


def _function(row: Function | Defined) -> tuple[str, ...]:
    written = ", ".join(row.parameters)
    call = f"`{row.name}({written})`" if row.name.isalnum() else f"`{f' {row.name} '.join(row.parameters)}`".replace("`x`", "`~x`")
    if isinstance(row, Defined):
        return call, "floats", "float", f"is `{row.text}`"
    return call, row.takes, row.gives, ", ".join(f"`{slope}`" for slope in row.derivative)


def _nested(schema: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The keys of a spec that take mappings with keys of their own, with the schemas of these."""
    for key, value in schema["properties"].items():
        for name in re.findall(r"#/\$defs/(\w+)", str(value)):
            yield key, schema["$defs"][name]


def _keys(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", "required" if name in required else _code(value.get("default")), value["description"])
        for name, value in schema["properties"].items()
    ]
    return _table(("key", "by default", "meaning"), rows)


def interface() -> str:
    """The page of what `import flashgen` gives, from its docstrings."""
    public = [(name, getattr(flashgen, name)) for name in flashgen.__all__]
    called = [_described(name, thing) for name, thing in public if not inspect.isclass(thing)]
    classes = [_class(name, thing) for name, thing in public if inspect.isclass(thing) and not issubclass(thing, Exception)]
    faults = [(f"`{name}`", _words_of(thing)) for name, thing in public if inspect.isclass(thing) and issubclass(thing, Exception)]
    head = f"# The Python interface\n\n{MADE} All names are those of `import flashgen`."
    return _joined(head, "## Functions", *called, "## Classes", *classes, "## Errors", _table(("error", "meaning"), faults))


def _class(name: str, thing: type) -> str:
    members = [(key, inspect.unwrap(getattr(thing, key))) for key, x in vars(thing).items() if key[0] != "_" and inspect.getdoc(x)]
    methods = [_described(f"{name}.{key}", x, "####") for key, x in members if callable(x) and not isinstance(x, type)]
    properties = [(f"`{key}`", _words_of(x)) for key, x in members if isinstance(x, property)]
    table = [_table(("property", "meaning"), properties)] if properties else []
    called = [_described(f"{name}.__call__", thing.__call__, "####")] if "__call__" in vars(thing) else []
    return _joined(f"### `{name}`", _prose(inspect.getdoc(thing) or ""), *table, *called, *methods)


def _described(name: str, thing: Any, heading: str = "###") -> str:
    given = re.sub(r"\b(?:flashgen|typing|collections|numpy|pathlib)(?:\.\w+)*\.(\w+)", r"\1", str(inspect.signature(thing)))
    given = re.sub(r"-> '(.*)'$", r"-> \1", given)
    return _joined(f"{heading} `{name}`", f"```python\n{name}{given}\n```", _prose(inspect.getdoc(thing) or ""))


def _prose(doc: str) -> str:
    """A docstring as Markdown: its examples become blocks of code, in which results are comments."""
    return "\n\n".join(_example(part) if part.startswith(">>>") else part for part in doc.split("\n\n"))


def _example(part: str) -> str:
    lines = [line[4:] if line.startswith((">>>", "...")) else f"# {line}" for line in part.splitlines()]
    return "\n".join(["```python", *lines, "```"])


def _words_of(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def commands() -> str:
    """The page of the command line, from the help of its commands."""
    group: Any = get_command(app)
    parts = [f"## `flashgen {name}`\n\n{command.help}\n\n{_options(command)}" for name, command in group.commands.items()]
    return _joined(f"# Commands\n\n{MADE}\n\n`--json` prints the same as data wherever it is an option.", *parts)


def _options(command: Any) -> str:
    rows = []
    for one in command.params:
        given = " ".join(filter(None, (", ".join(one.opts), "" if getattr(one, "is_flag", False) else one.metavar or "")))
        default = one.default if isinstance(one.default, int | str) and not isinstance(one.default, bool) else ""
        rows.append((f"`{given}`" if one.param_type_name == "option" else f"`{one.metavar}`", one.help or "", _code(default)))
    return _table(("argument or option", "meaning", "by default"), rows) if rows else ""


def _code(value: Any) -> str:
    return "" if value in (None, "") or value == {} else f"`{value}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _cell(text: str) -> str:
    plain = text if "`" in text else text.replace("<", "&lt;")
    return plain.replace("|", "\\|")


def _joined(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
