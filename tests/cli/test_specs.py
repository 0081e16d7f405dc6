"""`flashgen specs` and `flashgen new`: the library, and a file that starts from one of its specs."""

import json

import pytest

from flashgen.spec import load
from flashgen.spec.shipped import library


def test_all_are_listed_by_field(flashgen):
    ran = flashgen("specs")
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split()[0] for line in ran.out.splitlines() if line.strip() and not line.startswith(" ")]
    assert [row for row in rows if row in library()] == list(library())
    assert {"biology", "language", "research", "serving", "sparse", "video", "vision"} <= set(rows)
    assert "arXiv:2408.00118" in ran.out


def test_all_are_listed_as_json(flashgen):
    found = json.loads(flashgen("specs", "--json").out)
    assert [one["name"] for one in found] == list(library())
    (swin,) = (one for one in found if one["name"] == "swin")
    assert (swin["folder"], swin["paper"]) == ("vision", "Liu et al. 2021, arXiv:2103.14030")
    assert load(swin["path"]).name == "swin"


def test_one_is_printed_as_it_stands(flashgen):
    assert flashgen("specs", "swin").out == library()["swin"].path.read_text()


def test_one_of_a_folder_is_found_by_its_name(flashgen):
    assert flashgen("show", "forgetting", "--stage", "spec").code == 0


@pytest.mark.parametrize(("name", "hint"), [("swim", "'swin'"), ("zzzz", "`flashgen specs`")])
def test_names_that_are_not_there(flashgen, name, hint):
    for command in (("specs", name), ("new", "mine", "--like", name), ("explain", name)):
        ran = flashgen(*command)
        assert (ran.code, ran.out) == (2, "")
        assert name in ran.err
        assert hint in ran.err


def test_a_new_spec_starts_from_a_shipped_one(flashgen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = flashgen("new", "mine", "--like", "forgetting")
    assert ran.code == 0, ran.err
    assert "flashgen check mine.yaml" in ran.out
    made, start = load("mine.yaml"), load(library()["forgetting"].path)
    assert made.name == "mine"
    assert made.to_json() == start.to_json() | {"name": "mine"}
    text = (tmp_path / "mine.yaml").read_text()
    assert text.startswith("# What mine is for, in one line.\n# Begun from forgetting (Lin et al. 2025, arXiv:2503.02130): ")


@pytest.mark.parametrize("like", ["causal", "float32", "tree", "t5_encoder"])
def test_any_may_be_the_start(flashgen, tmp_path, like):
    path = tmp_path / "mine.yaml"
    assert flashgen("new", path, "--like", like).code == 0
    assert load(path).to_json() == load(library()[like].path).to_json() | {"name": "mine"}


def test_nothing_is_overwritten(flashgen, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    for given in (path, path.with_suffix("")):
        ran = flashgen("new", given)
        assert (ran.code, ran.out) == (2, "")
        assert f"{path} exists already" in ran.err
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("name", "said"), [("int", "C++"), ("2nd", "a letter"), ("no/such/folder/mine", "cannot write"), ("", "a letter")])
def test_names_that_cannot_be(flashgen, tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    ran = flashgen("new", name)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert not list(tmp_path.iterdir())
