"""Emitted files as they are read: a change of any shows in its diff. A few are kept whole, but for the instructions that they take from
templates/device; the others as what differs from one of those. `pytest tests/render/test_golden.py --snapshot-update` accepts it."""

from difflib import unified_diff
from pathlib import Path

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from flashgen.ladder import RUNGS
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.plan.search import LENGTHS
from flashgen.plan.shares import Demand
from flashgen.render import render
from flashgen.render.snippets import vocabulary
from flashgen.spec import Spec, load
from flashgen.spec.shipped import spec_root

FOLDER = Path(__file__).parent.parent / "golden"
WHOLE = (
    "causal-sm_90a",
    "causal-sm_80",
    "softcap-sm_90a",
    "document-sm_90a",
    "float32-sm_90a",
    "head_dim_256-sm_90a",
    "backward_causal-sm_80",
    "backward_causal-sm_90a",
    "backward_head_dim_256-sm_90a",
)
LADDER = {f"rung_{rung.name}-{rung.arch(None)}": rung for rung in RUNGS if rung.schedule}
LIKE = {  # a spec for an arch, with a length where the plan is not that of long sequences, and the text that is nearest
    "full-sm_90a": "causal-sm_90a", "window-sm_90a": "causal-sm_90a", "alibi-sm_90a": "causal-sm_90a", "mla-sm_90a": "causal-sm_90a",
    "sinks-sm_90a": "window-sm_90a", "sigmoid-sm_90a": "rung_fa3-sm_90a",
    "softcap-sm_89": "causal-sm_80", "alibi-sm_120": "softcap-sm_89",
    "float32-sm_90a-1024": "float32-sm_90a", "float32-sm_86": "float32-sm_90a",
    "rung_standard-sm_90": "rung_three_pass-sm_90", "rung_three_pass-sm_90": "causal-sm_80", "rung_two_pass-sm_90": "rung_three_pass-sm_90",
    "rung_fa1-sm_90": "rung_each_step-sm_90", "rung_each_step-sm_90": "rung_two_pass-sm_90", "rung_fa2-sm_90": "causal-sm_80",
    "rung_fa3-sm_90a": "causal-sm_90a", "rung_lazy-sm_90a": "rung_fa3-sm_90a",
    "token-sm_90a": "causal-sm_80", "chunk-sm_90a": "causal-sm_90a",
    "network-sm_90a": "causal-sm_90a",
    "token_in_turn-sm_90a": "token-sm_90a", "token_beside-sm_90a": "token_in_turn-sm_90a", "token_in_cluster-sm_90a": "token_beside-sm_90a",
    "token_two_strands-sm_90a": "token_in_cluster-sm_90a",
}  # fmt: skip
SHARED = {  # causal where queries are few, or tiles of few heads; strands of a block's keys in turn, or beside each other
    "token": Demand(shared=True, rows=16),
    "token_in_turn": Demand(shared=True, rows=16, strands=8, in_turn=True),
    "token_beside": Demand(shared=True, rows=16, strands=8),
    "token_in_cluster": Demand(shared=True, rows=16, strands=4, cluster=8),
    "token_two_strands": Demand(shared=True, rows=16, strands=16, cluster=2, each=2),
    "chunk": Demand(shared=True),
}


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


class Difference(Golden):
    """tests/golden/<spec>-<arch>.diff."""

    file_extension = "diff"


def spec_of(pair):
    name = pair.partition("-")[0]
    if pair in LADDER:
        return LADDER[pair].spec(64, "float16")
    if name == "head_dim_256":
        return Spec(**(load(spec_root() / "causal.yaml").to_json() | {"head_dim": 256}))
    if name == "network":  # 32 hidden units: a sum that is a loop
        keys = load(spec_root() / "language" / "fire.yaml").to_json()
        tensors = {name: {"shape": [32, *shape], "dtype": "float32"} for name, shape in {"a": [], "r": [], "w": ["hq"]}.items()}
        return Spec(**keys | {"score": keys["score"].replace("4", "32"), "tensors": tensors})
    return load(spec_root() / f"{name}.yaml")


def text_of(pair):
    name, arch, *lengths = pair.split("-")
    if name.startswith("backward_"):
        return render(plan_backward(Spec(**(spec_of(pair.removeprefix("backward_")).to_json() | {"backward": True})), arch)).text
    if name in SHARED:
        return render(plan(load(spec_root() / "causal.yaml"), arch, demand=SHARED[name])).text
    return render(plan(spec_of(pair), arch, length=int(*lengths) if lengths else LENGTHS[-1])).text


def emitted(pair):
    return named(text_of(pair))


def named(text):
    """The text with the names of the functions that it takes from templates/device in place of these."""
    for file, items in vocabulary().items():
        names = [name for name, item in items.items() if f"{item}\n" in text]
        for name in names:
            text = text.replace(f"{items[name]}\n", f"// {file}: {', '.join(names)}\n" if name == names[0] else "")
    return text


@pytest.mark.parametrize("pair", WHOLE)
def test_golden(pair, snapshot):
    assert emitted(pair) == snapshot(extension_class=Golden)


@pytest.mark.parametrize("pair", LIKE)
def test_what_is_different(pair, snapshot):
    near, text = (emitted(p).splitlines(keepends=True) for p in (LIKE[pair], pair))
    assert "".join(unified_diff(near, text, LIKE[pair], pair, n=1)) == snapshot(extension_class=Difference)


def test_every_golden_is_of_a_pair():
    assert {path.stem for path in FOLDER.iterdir()} == {*WHOLE, *LIKE}
    assert {*LADDER} <= {*LIKE}
