"""Emitted files as they are read: a change of any shows in its diff. A rung of the ladder that fills the skeleton of one below it is kept
as what it changes there. `pytest tests/render/test_golden.py --snapshot-update` accepts it."""

from difflib import unified_diff
from pathlib import Path

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from flashgen.cli.shipped import spec_root
from flashgen.ladder import RUNGS
from flashgen.plan import plan
from flashgen.plan.search import LENGTHS
from flashgen.render import render
from flashgen.spec import load

FOLDER = Path(__file__).parent.parent / "golden"
PAIRS = (
    "full-sm_90a", "causal-sm_90a", "document-sm_90a", "window-sm_90a", "softcap-sm_90a", "alibi-sm_90a",
    "mla-sm_90a", "sinks-sm_90a", "sigmoid-sm_90a",
    "causal-sm_80", "softcap-sm_89", "alibi-sm_120", "float32-sm_90a", "float32-sm_90a-1024", "float32-sm_86",
)  # fmt: skip
LADDER = {f"rung_{rung.name}-{rung.arch(None)}": rung for rung in RUNGS if rung.schedule}


SKELETONS = {pair: plan(rung.spec(64, "float16"), rung.arch(None)).skeleton for pair, rung in LADDER.items()}
BELOW = {pair: next((p for p in reversed(list(LADDER)[:i]) if SKELETONS[p] == SKELETONS[pair]), None) for i, pair in enumerate(LADDER)}


class Golden(SingleFileSnapshotExtension):
    """tests/golden/<spec>-<arch>.cu, with a length where the plan is not that of long sequences."""

    file_extension = "cu"
    _write_mode = WriteMode.TEXT

    @classmethod
    def dirname(cls, *, test_location):  # noqa: ARG003
        return str(FOLDER)

    @classmethod
    def get_snapshot_name(cls, *, test_location, index=0):  # noqa: ARG003
        return test_location.nodename.partition("[")[2].rstrip("]")


class Difference(Golden):
    """tests/golden/rung_<name>-<arch>.diff."""

    file_extension = "diff"


def emitted(pair):
    name, arch, *lengths = pair.split("-")
    spec = LADDER[pair].spec(64, "float16") if pair in LADDER else load(spec_root() / f"{name}.yaml")
    return render(plan(spec, arch, length=int(*lengths) if lengths else LENGTHS[-1])).text


@pytest.mark.parametrize("pair", [*PAIRS, *(pair for pair in LADDER if not BELOW[pair])])
def test_golden(pair, snapshot):
    assert emitted(pair) == snapshot(extension_class=Golden)


@pytest.mark.parametrize("pair", [pair for pair in LADDER if BELOW[pair]])
def test_what_a_rung_changes(pair, snapshot):
    before, after = (emitted(p).splitlines(keepends=True) for p in (BELOW[pair], pair))
    assert "".join(unified_diff(before, after, BELOW[pair], pair)) == snapshot(extension_class=Difference)


def test_every_golden_is_of_a_pair():
    assert {path.stem for path in FOLDER.iterdir()} == {*PAIRS, *LADDER}
