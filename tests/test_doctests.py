"""The examples of docstrings: what one shows as its result is its result. An example that shows none is there to be read."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import flashgen
from flashgen.arch import by_name
from flashgen.expr import lower
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec, load
from flashgen.theory.derive import derive

NAMES = {"np": np, "flashgen": flashgen, "by_name": by_name, "plan": plan, "plan_backward": plan_backward, "render": render}
NAMES |= {"Spec": Spec, "load": load, "lower": lower, "derive": derive}
FRAMEWORKS = ("torch", "jax", "transformers", "vllm")


def modules() -> list[str]:
    """The modules of the package but those that need a framework."""
    found = [module.name for module in pkgutil.walk_packages(flashgen.__path__, "flashgen.", onerror=lambda _: None)]
    return [name for name in found if name.split(".")[1] not in FRAMEWORKS and not name.endswith("__main__")]


@pytest.mark.parametrize("name", ["flashgen", *modules()])
def test_results_are_what_is_shown(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for found in doctest.DocTestFinder(exclude_empty=True).find(module, name, globs=NAMES | vars(module)):
        if any(example.want for example in found.examples):
            runner.run(found)
    assert runner.failures == 0
