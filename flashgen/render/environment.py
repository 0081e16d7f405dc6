"""The one Jinja environment, and the one place that knows where text lives."""

import re
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgen.expr.holes.cuda import literal

if TYPE_CHECKING:
    import jinja2

COMMENT_COLUMN = 41  # characters before it
RULER_WIDTH = 121
WIDTH = 160  # of a line of emitted text, at most
_TRAILING = re.compile(r"^(.*?) *\n?//> ?(.*)$", re.MULTILINE)


_SYNTAX: dict[str, Any] = {
    "variable_start_string": "${",
    "variable_end_string": "}",
    "line_statement_prefix": "//%",
    "line_comment_prefix": "//#",
    "block_start_string": "{%",
    "block_end_string": "%}",
    "comment_start_string": "{#",
    "comment_end_string": "#}",
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
    "autoescape": False,
    "optimized": False,  # folding constants would take longer than it saves
}


@cache
def template_root() -> Path:
    """The folder of templates: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "templates"


def aligned(text: str) -> str:
    """The text with its trailing comments, behind `//>` on a line or on the next one, in the column where they all begin.

    >>> aligned("  int BLOCK_M;   //> of a tile")
    '  int BLOCK_M;                           // of a tile'
    """
    return _TRAILING.sub(_placed, text)


def _placed(found: re.Match[str]) -> str:
    code, comment = found.groups()
    return f"{code}{' ' * max(3, COMMENT_COLUMN - len(code))}// {comment}" if comment else code


def wrapped(text: str, prefix: str) -> str:
    """The text of a comment in lines of WIDTH: what stands before the first one is as wide as `prefix`, which begins every other.

    >>> wrapped("no key", "// ")
    'no key'
    """
    return f"\n{prefix}".join(textwrap.wrap(text, WIDTH - len(prefix), break_long_words=False, break_on_hyphens=False))


def ruler(title: str) -> str:
    """The line above a section of emitted text.

    >>> ruler("plan")[-8:]
    '--- plan'
    """
    return f"// {'-' * (RULER_WIDTH - len('//  ') - len(title))} {title}"


@cache
def environment() -> "jinja2.Environment":
    """Delimiters that collide with neither PTX nor C++; an unknown name is an error."""
    import jinja2  # heavy, and whoever only plans or interprets needs none

    from flashgen.render.bytecode import Bytecode

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_root()), undefined=jinja2.StrictUndefined, bytecode_cache=Bytecode(repr(_SYNTAX)), **_SYNTAX
    )
    env.filters["literal"] = literal
    env.filters["ruler"] = ruler
    env.filters["wrapped"] = wrapped
    return env
