"""The rules that hold everywhere: imports, types, style, sizes, what importing costs, what a wheel contains."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flashgen.spec.layout import LAYOUTS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "flashgen"
MODULES = sorted(PACKAGE.rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 300, 50


def _run(*command: object, **options: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_imports_run_one_way():
    _run(Path(sys.executable).parent / "lint-imports", "--no-cache")


def test_style():
    _run(sys.executable, "-m", "ruff", "check", "--no-cache", ".")


def test_format():
    _run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".")


def test_types():
    _run(sys.executable, "-m", "mypy")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sizes(path):
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < FUNCTION_LINES, node.name


def test_every_module_says_what_it_is():
    silent = [str(path) for path in MODULES if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def _public(node, scope=()):
    """The public definitions inside of a module or class: name, node."""
    for found in node.body:
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not found.name.startswith("_"):
            yield ".".join((*scope, found.name)), found
            if isinstance(found, ast.ClassDef):
                yield from _public(found, (*scope, found.name))


def test_public_definitions_say_what_they_are():
    """Those of the package, and of the scripts that measure, which have a `main` besides."""
    silent = [
        f"{path}: {name}"
        for path in (*MODULES, *(ROOT / "benchmarks").glob("*.py"))
        for name, node in _public(ast.parse(path.read_text()))
        if not ast.get_docstring(node) and name != "main"
    ]
    assert not silent


def test_what_is_said_begins_with_its_subject_or_its_verb():
    files = [path for folder in ("flashgen", "benchmarks", "docs", "examples", "tests") for path in (ROOT / folder).rglob("*.py")]
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    said = [
        (str(path), ast.get_docstring(node) or "")
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds)
    ]
    assert not [found for found in said if found[1].partition(" ")[0] in ("What", "How", "Of", "Whether", "Where", "Who", "Which")]


HEAVY = {"cupy", "cuda", "torch", "jax", "sympy", "pydantic", "matplotlib", "typer", "jinja2", "ruamel.yaml", "ml_dtypes", "platformdirs"}
HEAVY |= {"tomllib", "importlib.metadata", "importlib.resources", "concurrent.futures", "logging", "subprocess", "difflib"}
UNNEEDED = ("flashgen.interpret", "flashgen.emulate", "flashgen.cli", "flashgen.bench", "flashgen.tracing", "flashgen.theory.deriv")
UNNEEDED += ("flashgen.expr.meaning.reference", "flashgen.expr.meaning.gradient", "flashgen.expr.holes.backward")
UNNEEDED += ("flashgen.plan.backward_strategies", "flashgen.plan.algorithms.backward", "flashgen.runtime.backward")


def test_importing_is_cheap():
    """Heavy packages are loaded where they are needed: by `import flashgen` nothing at all, by `flashgen.compile` no reader of
    YAML, no templates, no interpreter, nothing of gradients."""
    code = "import sys, flashgen; print(*sys.modules); flashgen.compile; print(*sys.modules)"
    package, compiler = ({*line.split()} for line in _run(sys.executable, "-c", code).splitlines())
    assert not HEAVY & package
    assert not {name for name in package if name.startswith("flashgen.")}
    assert not HEAVY & compiler
    assert not {name for name in compiler if name.startswith(UNNEEDED)}


def test_planning_and_rendering_need_no_gpu_libraries():
    code = "import sys, flashgen.render, flashgen.plan, flashgen.spec; print(*sys.modules)"
    assert not {"cupy", "cuda", "sympy", "torch"} & set(_run(sys.executable, "-c", code).split())


def test_one_file_knows_the_layouts():
    """No other compares their names, or lists them."""
    said = re.compile("|".join(f"[\"']{name}[\"']" for name in LAYOUTS))
    files = [path for path in (*MODULES, *(ROOT / "templates").rglob("*")) if path.suffix and path != PACKAGE / "spec" / "layout.py"]
    assert not [f"{path}:{i}" for path in files for i, line in enumerate(path.read_text().splitlines(), 1) if said.search(line)]


def test_extras_name_what_the_readme_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cuda13", "cuda12", "test", "examples"} <= set(project["optional-dependencies"])


def test_a_wheel_carries_templates_and_specs(tmp_path):
    """Built, installed aside, it renders every spec to the text that the checkout renders."""
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    aside = tmp_path / "site"
    _run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", aside, wheel)
    code = (
        "import flashgen; from flashgen.plan import plan; from flashgen.render import render; from flashgen.spec.shipped import spec_root\n"
        "print(flashgen.__file__)\n"
        "print(*sorted(path.relative_to(spec_root()).as_posix() for path in spec_root().rglob('*.yaml')))\n"
        "for path in sorted(spec_root().glob('*.yaml')):\n"
        "    for arch in ('sm_90a', 'sm_80'): print(path.name, arch, render(plan(flashgen.load(path), arch)).digest)"
    )
    texts = []
    for folder in (aside, ROOT):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(folder)}, check=False
        )
        assert done.returncode == 0, done.stderr
        home, *lines = done.stdout.splitlines()
        assert Path(home).is_relative_to(folder)
        texts.append(lines)
    assert len(texts[0]) == 1 + 2 * len(list((ROOT / "specs").glob("*.yaml"))) > 1
    assert texts[0] == texts[1]


# The spec, rows of tables, and a place in a text.
EXEMPT = {"Spec", "Arch", "DType", "Function", "Argument", "Output", "Rung", "Implementation", "Position"}
FIELDS, POSITIONAL = 10, 3


def _dataclasses():
    """The classes by name: those that they extend, and their own fields."""
    for node in (node for path in MODULES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            fields = [line for line in node.body if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation)]
            yield node.name, ([ast.unparse(base) for base in node.bases], {ast.unparse(line.target) for line in fields})


DATACLASSES = dict(sorted(_dataclasses(), key=lambda found: len(found[1][1])))  # of classes of one name the largest


def _fields(name):
    """The names of all fields of a class, inherited ones too."""
    bases, own = DATACLASSES.get(name, ((), set()))
    return own.union(*map(_fields, bases))


SIZES = {name: len(_fields(name)) for name in DATACLASSES if name not in EXEMPT}


def test_dataclasses_are_small():
    assert not {name: size for name, size in SIZES.items() if size > FIELDS}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dataclasses_of_many_fields_are_made_with_keywords(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    many = [call for call in calls if SIZES.get(call.func.id, 0) > POSITIONAL]
    splat = [call for call in many if len(call.args) > POSITIONAL or any(isinstance(arg, ast.Starred) for arg in call.args)]
    assert not [f"{call.lineno}: {ast.unparse(call)[:60]}" for call in splat]


def test_no_module_is_named_by_strings():
    """Besides those that are imported late because they are heavy: their names stand in the file."""
    assert not [str(path) for path in MODULES if "import_module(f" in path.read_text()]
