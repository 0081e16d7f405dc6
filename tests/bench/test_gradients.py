"""The bench's mode of gradients with fake peers, on a CPU: what is checked, who is timed, and the rows of a results file."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.bench.cases import case, draw
from flashgen.bench.gradients import of_flashgen, of_pytorch, sample
from flashgen.bench.modes import MODES, mode_of
from flashgen.bench.peers import Implementation, Prepared
from flashgen.bench.results import to_json
from flashgen.bench.run import run
from flashgen.cli import bench as benching
from flashgen.spec import Spec
from tests.bench.test_run import FOUND, FakeClock

SOFTCAP = {"mask": "causal", "score": "c * tanh(s / c)", "params": {"c": 3.0}, "softmax": "off_by_one"}


def small(**says):
    return case(Spec(head_dim={"qk": 16, "v": 8}, dtype="float32", **says), 40, batch=2, heads=2).differentiated()


@pytest.mark.parametrize("says", [{}, SOFTCAP, {"out_dtype": "float16"}, {"score": "sigmoid(s)", "softmax": "none", "group": 2}])
def test_only_what_is_right_is_timed(says):
    def off(case, tensors):
        right = of_flashgen(case, tensors).call
        return Prepared(lambda *given: 1.001 * right(*given))

    ours = Implementation("flashgen", "flashgen", of_flashgen)
    results = run([small(**says)], [ours, Implementation("off", "numpy", off)], FakeClock(), np, repetitions=2)
    (row,) = to_json(results, "grid", FOUND)["rows"]
    assert (row["mode"], row["implementation"]) == ("backward", "flashgen")
    assert [one.implementation for one in results.skipped if one.wrong] == ["off"]


def test_five_products_count():
    one = small()
    assert one.operations(1.0) == 2 * 2 * 2 * 40**2 * (3 * 16 + 2 * 8)
    assert replace(one, gradients=False).operations(1.0) == 2 * 2 * 2 * 40**2 * (16 + 8)
    assert mode_of(one).name == "backward"


def test_peers_are_differentiated_by_pytorch():
    torch = pytest.importorskip("torch")
    one = case(Spec(head_dim=16, dtype="float32", mask="causal"), 40, batch=1, heads=2).differentiated()

    def sdpa(_case, _tensors):
        attend = torch.nn.functional.scaled_dot_product_attention
        return Prepared(lambda *rows: attend(*(x.transpose(1, 2) for x in rows), is_causal=True).transpose(1, 2))

    given = draw(one, np)
    q, k, v, do = (torch.from_numpy(given[name]) for name in one.arrays)
    call = of_pytorch(Implementation("sdpa", "torch", sdpa), one, {}).call
    expected = sample(one, given)
    assert expected.error(call(q, k, v, do)) <= expected.allowed
    assert (call(q, k, v, do) == call(q, k, v, do)).all()


def test_cases_of_the_mode():
    assert all(one.gradients and one.spec.backward for one in MODES["backward"].cases([], [512]))
    assert benching.cases([], [512], "backward")[0] == "backward"
