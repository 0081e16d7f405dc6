"""The table of reported faults names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_table_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (HERE / "REPORTS.md").read_text())
    assert len(named) > 40
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (HERE / file).read_text()]
    assert not missing
