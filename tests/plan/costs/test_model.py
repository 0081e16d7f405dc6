"""The numbers of the cost model: each has a unit and says what it is of, each is read, and none is read that is not there."""

import doctest
import re
import tomllib
from pathlib import Path

import pytest

from flashgen.arch import ARCHES, by_name
from flashgen.plan import lists, plan, shares
from flashgen.plan.backward import plan_backward
from flashgen.plan.backward_strategies import BACKWARD_STRATEGIES
from flashgen.plan.costs import model
from flashgen.plan.strategies import STRATEGIES
from flashgen.spec import Spec

PLAN = Path(model.__file__).parent.parent
FILES = sorted((PLAN / "costs").glob("*.toml"))
TABLES = sorted({strategy.costs for strategy in (*STRATEGIES, *BACKWARD_STRATEGIES) if strategy.costs} | {lists.COSTS, shares.COSTS})


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_number_says_what_it_is(file):
    card = tomllib.loads(file.read_text())
    assert card.pop("card")
    assert set(card.pop("serves")) <= ARCHES.keys()
    assert set(card) <= set(TABLES)
    assert file.stem != "h100" or sorted(card) == TABLES
    for table in card.values():
        for name, entry in table.items():
            assert entry.keys() == {"value", "unit", "of"}, name
            assert entry["unit"], name
            assert entry["of"], name


def test_numbers_are_those_that_are_read():
    text = "".join(path.read_text() for path in PLAN.rglob("*.py") if path.parent.name != "costs")
    found = re.findall(
        r'(?:known|costs\.of_arch\([\w., ]+\))(?:\.by_count\("(\w+)"|\["(\w+)"(?: if lazy else "(\w+)"| if [^\]]+ else "(\w+)")?\])', text
    )
    read = {name for match in found for name in match if name}
    assert read == {name for table in TABLES for name in model.of_arch(by_name("sm_90a"), table).numbers}


def test_the_reasons_say_whose_numbers_served():
    spec = Spec(head_dim=64, dtype="float16")
    assert dict(plan(spec, "sm_90a").decision.reasons)["cost"] == "clocks by numbers fitted on NVIDIA H100 80GB HBM3"
    assert "the rates are this architecture's" in dict(plan(spec, "sm_89").decision.reasons)["cost"]
    assert "cost" not in dict(plan(spec, "host").decision.reasons)
    spec = Spec(head_dim=64, dtype="float16", backward=True)
    assert dict(plan_backward(spec, "sm_90a").decision.reasons)["cost"] == "clocks by numbers fitted on NVIDIA H100 80GB HBM3"
    assert "the rates are this architecture's" in dict(plan_backward(spec, "sm_89").decision.reasons)["cost"]
    assert "cost" not in dict(plan_backward(spec, "host").decision.reasons)


def test_an_architecture_has_one_card():
    served = [arch for file in FILES for arch in tomllib.loads(file.read_text())["serves"]]
    assert len(served) == len(set(served))
    assert "NVIDIA H100 80GB HBM3" in model.cards()


def test_other_numbers_may_be_tried():
    arch, numbers = by_name("sm_90a"), model.of_arch(by_name("sm_90a"), "wgmma").numbers
    with model.trying("wgmma", {**numbers, "exposed": 0.5}):
        assert model.of_arch(arch, "wgmma")["exposed"] == 0.5
    assert model.of_arch(arch, "wgmma").numbers == numbers


def test_docstring_examples():
    assert doctest.testmod(model, extraglobs={"by_name": by_name}).failed == 0


def test_what_a_file_lacks_is_as_on_the_h100(monkeypatch):
    """A number that came later, and a table."""
    tables = {"h100": model._tables()["h100"], "x": {"card": "X", "serves": ["sm_80"], "mma_sync": {"step": {"value": 1.5}}}}
    monkeypatch.setattr(model, "_tables", lambda: tables)
    own, other = (model._of_name.__wrapped__("sm_80", strategy) for strategy in ("mma_sync", "shares"))
    assert (own.card, own["step"], other.card) == ("X", 1.5, model._tables()["h100"]["card"])
    assert own["query_tile"] == tables["h100"]["mma_sync"]["query_tile"]["value"]
