"""Pages under docs/ and beside code tell the truth: links, files that they name, examples, the index of decisions."""

import doctest
import re
from pathlib import Path

import pytest

from docs import walk

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "benchmarks" / "README.md", ROOT / "templates" / "README.md"]
RUN = [page for page in PAGES if ">>> " in page.read_text()]
DECIDED = sorted(DECISIONS.glob("[0-9]*.md"))
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
KINDS = {".py", ".j2", ".cuh", ".hpp"}
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|md|j2|cuh|hpp|cpp|yaml|toml|json|cu|sh)|[\w.-]+(?:/[\w.-]+)*/)`")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", page.read_text())


def named(page: Path) -> set[str]:
    """The files and folders in code type that a page names by a path with a slash."""
    return set(FILE.findall(prose(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    relative = [link for link, _ in LINK.findall(prose(page)) if "://" not in link]
    assert not [link for link in relative if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_exist(page):
    """From the root, from the package, as `expr/language/parse.py`, or from the page's own folder."""
    roots = (ROOT, ROOT / "flashgen", page.parent)
    assert not [name for name in named(page) if not any((root / name).exists() for root in roots)]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_can_be_shown(page):
    pictures = [page.parent / link for link, _ in LINK.findall(prose(page)) if link.endswith(".png")]
    assert not [picture for picture in pictures if not picture.read_bytes().startswith(b"\x89PNG\r\n")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_sections_lead_somewhere(page):
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in prose(page).splitlines() if line.startswith("#")}
    assert set(re.findall(r"\]\(#([^)]+)\)", prose(page))) <= headings


def test_constants_exist():
    """Names of constants in code type are those of the code."""
    texts = [path.read_text() for folder in ("flashgen", "templates") for path in (ROOT / folder).rglob("*.*") if path.suffix in KINDS]
    known = set(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", "\n".join(texts)))
    assert {name for page in PAGES for name in re.findall(r"`([A-Z][A-Z0-9_]{3,})`", prose(page))} <= known


def test_pages_name_files():
    assert sum(bool(named(page)) for page in PAGES) > 10


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run_as_they_stand(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    examples = doctest.DocTestParser().get_doctest(page.read_text(), {}, page.stem, str(page), 0)
    said = []
    assert doctest.DocTestRunner().run(examples, out=said.append).failed == 0, "".join(said)
    assert examples.examples


def test_code_that_is_quoted_stands_in_the_code():
    """Blocks of Python and TOML without a prompt are excerpts."""
    kinds = {".py", ".toml"}
    sources = [path for folder in ("flashgen", "tests") for path in (ROOT / folder).rglob("*.*") if path.suffix in kinds]
    text = (DOCS / "how_to_add.md").read_text()
    quoted = [block for block in re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL) if ">>> " not in block]
    assert len(quoted) == 3
    for block in quoted:
        lines = set(filter(None, block.splitlines()))
        assert any(lines <= set(path.read_text().splitlines()) for path in sources), block


def test_a_script_writes_what_the_examples_of_the_walk_print():
    """Values and exceptions; what agrees stays as it is."""
    page = "```python\n>>> x = 1 + 1\n>>> x\n2\n>>> {}[x]\nTraceback (most recent call last):\nKeyError: 2\n\n```\n"
    assert walk.written(page) == page
    assert walk.written(page.replace("\n2\n", "\n3\n4\n").replace("KeyError: 2", "IndexError: 5\n  at")) == page


def test_the_walk_begins_with_the_shipped_spec():
    text = re.search(r"```yaml\n(.*?)```", (DOCS / "walk.md").read_text(), re.DOTALL)[1]
    assert text == (ROOT / "specs" / "softcap.yaml").read_text()


def test_the_index_has_every_decision_by_its_number_and_title():
    rows = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \| (.+?) \| .*? \| .+? \|$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    pages = [(page.name[:3], page.name, page.read_text().splitlines()[0]) for page in DECIDED]
    assert [(number, name, f"# {number}. {title}") for number, name, title in rows] == pages


@pytest.mark.parametrize("page", DECIDED, ids=lambda page: page.name[:3])
def test_a_decision_says_its_status_its_question_and_its_outcome(page):
    lines = page.read_text().splitlines()
    assert lines[2].startswith("Status: ")
    assert "## Question" in lines
    assert "## Decision" in lines


def test_every_kernel_has_a_row():
    """A row names its template or its entry, and that may end in a name of a call."""
    text = (DOCS / "how_it_works.md").read_text()
    skeletons = {path.name.removesuffix(".cu.j2") for path in (ROOT / "templates" / "kernels").glob("*.cu.j2")}
    made = "\n".join(path.read_text() for path in (ROOT / "flashgen" / "plan").rglob("*.py"))
    entries = {name.rstrip("_") for name in re.findall(r'\b(?:Kernel|Embed|Unembed)\(\s*f?"([a-z_]+)', made)}
    assert len(skeletons) > 10
    assert len(entries) > 10
    assert not {name for name in skeletons | entries if f"`{name}" not in text}
