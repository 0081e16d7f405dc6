"""Two source trees in one process: each finds its own modules, and ours are back afterwards."""

import importlib
import sys
from pathlib import Path

import pytest

import flashgen
from benchmarks import trees


def tree(root: Path, name: str) -> trees.Tree:
    package = root / name / "flashgen"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def name():\n    from flashgen.late import NAME\n    return NAME\n")
    (package / "late.py").write_text(f"NAME = {name!r}\n")
    return trees.Tree(root / name)


def test_each_tree_finds_its_own(tmp_path: Path) -> None:
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "flashgen"}
    both = [tree(tmp_path, name) for name in ("old", "new")]
    kept = []
    for one in both:
        with one.active() as package:
            kept.append(package)
            assert package.name() == one.root.name
    for one, package in zip(both, kept, strict=True):
        with one.active() as again:
            assert again is package
            assert one.root.name == importlib.import_module("flashgen.late").NAME
    assert {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "flashgen"} == before
    assert importlib.import_module("flashgen") is flashgen
    assert str(tmp_path / "old") not in sys.path


def test_what_fails_inside_leaves_ours_in_place(tmp_path: Path) -> None:
    with pytest.raises(KeyError), tree(tmp_path, "old").active():
        raise KeyError
    assert sys.modules["flashgen"] is flashgen


def test_a_folder_without_flashgen_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError), trees.Tree(tmp_path).active():
        pass
    assert sys.modules["flashgen"] is flashgen


@pytest.mark.parametrize("text", ["causal/64/512", "document/128/8192/float16"])
def test_cases_by_words(text: str) -> None:
    found = trees.parsed(text)
    assert text.startswith(f"{found.spec.name}/{found.spec.head_dim.qk}/{found.seqlen}")
    assert found.spec.dtype == ("float16" if text.endswith("float16") else "bfloat16")
    assert found.variant == found.spec.name
