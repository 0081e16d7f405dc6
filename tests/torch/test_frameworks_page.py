"""The examples of the page of frameworks run, where PyTorch is installed."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent


def test_the_calls_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # tests/torch/test_compile.py compiles
    scope = {}
    for block in re.findall(r"```py\n(.*?)```", (ROOT / "docs" / "frameworks.md").read_text(), re.DOTALL):
        exec(block, scope)
    assert scope["o"].shape == scope["q"].shape
    assert scope["module"].slopes.shape == (8,)
