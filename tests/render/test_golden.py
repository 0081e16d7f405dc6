"""Emitted files as they are read: a change of any shows in its diff. `pytest tests/render/test_golden.py --snapshot-update` accepts it."""

from pathlib import Path

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from flashgen.cli.shipped import spec_root
from flashgen.ladder import RUNGS
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import load

FOLDER = Path(__file__).parent.parent / "golden"
PAIRS = (
    "full-sm_90a", "causal-sm_90a", "document-sm_90a", "window-sm_90a", "softcap-sm_90a", "alibi-sm_90a",
    "mla-sm_90a", "sinks-sm_90a", "sigmoid-sm_90a",
    "causal-sm_80", "softcap-sm_89", "alibi-sm_120", "float32-sm_90a", "float32-sm_86",
)  # fmt: skip
LADDER = {f"rung_{rung.name}-{rung.arch(None)}": rung for rung in RUNGS if rung.schedule}


class Golden(SingleFileSnapshotExtension):
    """tests/golden/<spec>-<arch>.cu."""

    file_extension = "cu"
    _write_mode = WriteMode.TEXT

    @classmethod
    def dirname(cls, *, test_location):  # noqa: ARG003
        return str(FOLDER)

    @classmethod
    def get_snapshot_name(cls, *, test_location, index=0):  # noqa: ARG003
        return test_location.nodename.partition("[")[2].rstrip("]")


@pytest.mark.parametrize("pair", [*PAIRS, *LADDER])
def test_golden(pair, snapshot):
    name, _, arch = pair.partition("-")
    spec = LADDER[pair].spec(64, "float16") if pair in LADDER else load(spec_root() / f"{name}.yaml")
    text = render(plan(spec, arch)).text
    assert text == snapshot(extension_class=Golden)


def test_every_golden_is_of_a_pair():
    assert {path.stem for path in FOLDER.iterdir()} == {*PAIRS, *LADDER}
