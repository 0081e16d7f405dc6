"""Listings: every line once, comments apart, names where they are defined."""

from flashgen.pages.listing import FIRST, listing
from tests.render.test_golden import text_of


def test_parts_hold_the_whole_text():
    text = text_of("causal-sm_90a")
    found = listing(text)
    assert "\n".join(row.code + row.comment for part in found.parts for row in part.rows) + "\n" == text
    assert [part.title for part in found.parts][:3] == [FIRST, "plan", "device vocabulary"]


def test_names_are_found_where_they_are_defined():
    text = text_of("causal-sm_90a")
    found, lines = listing(text), text.splitlines()
    for name, said in (
        ("Params", "struct Params {"),
        ("BLOCK_M", "BLOCK_M = 128"),
        ("softmax", "void softmax("),
        ("load", "void load("),
        ("forward", "forward(const"),
    ):
        line = found.line(["no_such_name", name])
        assert line is not None
        assert said in lines[line - 1]
    assert found.part(found.line(["raise"])) == "softmax"
    assert found.line(["no_such_name"]) is None
