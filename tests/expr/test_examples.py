"""The examples in the docstrings of expr are true."""

import doctest
import importlib
from pathlib import Path

import pytest

import flashgen

ROOT = Path(flashgen.__file__).parent.parent
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted((ROOT / "flashgen/expr").rglob("*.py"))]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
