"""The page of variants is that of the specs that ship."""

import functools

from docs import variants
from flashgen.spec.shipped import library

page = functools.cache(variants.page)


def test_the_page_is_up_to_date():
    """`python docs/variants.py` writes it."""
    assert variants.PAGE.read_text(encoding="utf-8") == page()


def test_every_spec_has_a_row():
    rows = [line for line in page().splitlines() if line.startswith("| [")]
    assert [row[3:].partition("]")[0] for row in rows] == list(library())
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
