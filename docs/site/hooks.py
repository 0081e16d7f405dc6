"""Makes pages written for the repository pages of the site: files that they link to outside of docs/ go along, as plain text."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
FOLDER = "repository"  # of the site, for files outside of docs/
SHOWN = {".png", ".html"}  # a browser shows these by their names
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
CELL_CODE = re.compile(r"`[^`\n]*`")


def on_files(files: Any, config: Any) -> Any:
    """Adds the files outside of docs/ that pages link to."""
    linked = {path for file in files.documentation_pages() for path in _outside(file) if path.is_file()}
    for path in sorted(linked):
        files.append(File.generated(config, _name(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links to these files, and writes | in code of tables as Python-Markdown has it."""
    here = posixpath.dirname(page.file.src_uri)

    def led(link: re.Match[str]) -> str:
        path = _target(page.file, link[2])
        if path is None or path.is_relative_to(DOCS):
            return link[0]
        return f"[{link[1]}]({posixpath.relpath(_name(path), here or '.')})" if path.is_file() else link[1]

    lines = (CELL_CODE.sub(_unescaped, line) if line.startswith("|") else line for line in markdown.split("\n"))
    return LINK.sub(led, "\n".join(lines))


def _unescaped(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _outside(file: Any) -> Iterator[Path]:
    for _, target, _ in LINK.findall(file.content_string):
        path = _target(file, target)
        if path is not None and not path.is_relative_to(DOCS):
            yield path


def _target(file: Any, target: str) -> Path | None:
    """The file that a link of a page names; None: it is an address."""
    return None if "://" in target else (Path(file.abs_src_path).parent / target).resolve()


def _name(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return f"{FOLDER}/{name}" if path.suffix in SHOWN else f"{FOLDER}/{name}.txt"
