"""The documentation is a site: it builds, links lead somewhere, examples run, and pages made from the code are up to date."""

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command

from docs import reference
from flashgen.cli.commands import app
from flashgen.expr import lower
from flashgen.expr.language.scope import INDICES
from flashgen.spec import loads
from flashgen.spec.shipped import library

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [DOCS / "quick_start.md", DOCS / "recipes.md", *sorted((DOCS / "language").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a page in this language, in their order."""
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    scope = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), scope)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_examples_in_frameworks_run(framework, monkeypatch):
    pytest.importorskip(framework)
    monkeypatch.chdir(ROOT)
    found = [block for page in PAGES for block in blocks(page, "py") if f"import {framework}\n" in block]
    for block in found:
        exec(block, {})
    assert found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_specs_are_specs(page):
    for block in blocks(page, "yaml"):
        lower(loads(block))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_take_these_arguments(page):
    commands = get_command(app).commands
    for line in "\n".join(blocks(page, "sh")).splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "flashgen":
            context = commands[words[0]].make_context(words[0], words[1:])
            spec = context.params.get("spec")
            assert spec is None or spec in library() or (ROOT / spec).exists() or spec == "mine.yaml", line


@pytest.mark.parametrize("page", reference.pages())
def test_pages_made_from_the_code_are_up_to_date(page):
    """`python docs/reference.py` writes them."""
    assert (DOCS / page).read_text(encoding="utf-8") == reference.pages()[page]


def test_every_index_has_a_meaning():
    assert list(reference.WORDS) == list(INDICES)


class Page(HTMLParser):
    """The links of a page, and what others may link to in it."""

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, _, attributes):
        given = dict(attributes)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        self.links += [given[key] for key in ("href", "src") if given.get(key)]


def test_the_site_builds_and_its_links_lead_somewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(DOCS / "site" / "mkdocs.yml"), "-d", str(tmp_path)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: Page(path) for path in tmp_path.rglob("*.html") if path.name != "404.html"}  # the server's address is unknown there
    assert len(pages) > 80
    lost = [(path.name, link) for path, page in pages.items() for link in page.links if not leads(link, path, pages)]
    assert not lost


def leads(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    """True if a link of a page is an address elsewhere, or a file and a place in it that exist."""
    address = urlsplit(link)
    if address.scheme in ("https", "http", "data", "mailto"):
        return True
    target = (path.parent / unquote(address.path)).resolve() if address.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    return not address.fragment or target not in pages or unquote(address.fragment) in pages[target].names | {"__skip"}
