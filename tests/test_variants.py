"""The page of variants is that of the specs that ship."""

from docs import variants
from flashgen.spec.shipped import library


def test_the_page_is_up_to_date():
    """`python docs/variants.py` writes it."""
    assert variants.PAGE.read_text(encoding="utf-8") == variants.page()


def test_every_spec_has_a_row():
    rows = [line for line in variants.page().splitlines() if line.startswith("| [")]
    assert [row[3:].partition("]")[0] for row in rows] == list(library())
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
