"""A run of the bench with fake peers: who is timed, who is not and why, and the rows of a results file. No GPU, no time asserted."""

import json

import numpy as np
import pytest

from flashgen.api import Attention
from flashgen.bench.accuracy import sample, visible
from flashgen.bench.cases import VARIANTS, Case, case, draw, grid, rounded, variant_of
from flashgen.bench.peers import PEERS, Implementation, Prepared, UnfitError, flash_words, flex_words, is_peer, prepare_flashgen
from flashgen.bench.results import panels, save_json, save_plot, to_json
from flashgen.bench.run import run
from flashgen.runtime.clock import Reading
from flashgen.spec import Spec

FOUND = {"gpu": "Some Card", "driver": "1", "versions": {}, "commit": "abc"}
SMALL = Spec(head_dim=8, dtype="float32", mask="causal")


class FakeClock:
    def read(self, run, calls):  # noqa: ARG002
        run()
        return Reading(0.5, 0.01)


def small(spec=SMALL, seqlen=24):
    return case(spec, seqlen, batch=2, heads=2)


@pytest.fixture(scope="module")
def results():
    def off(case, tensors):
        right = prepare_flashgen(case, tensors).call
        return Prepared(lambda q, k, v: 1.01 * right(q, k, v), mask_ms=2.0)

    def unfit(_case, _tensors):
        raise UnfitError("no words")

    def broken(_case, _tensors):
        raise OSError("a library\nwith much to say")

    ours = Implementation("flashgen", "flashgen", prepare_flashgen)
    others = [
        Implementation(name, "numpy", f) for name, f in (("right", prepare_flashgen), ("off", off), ("unfit", unfit), ("broken", broken))
    ]
    return run([small(), small(Spec(head_dim=8, dtype="float32"))], [ours, *others], FakeClock(), np, repetitions=2)


def test_only_what_is_right_is_timed(results):
    assert [(one.case.variant, one.implementation) for one in results.measured] == [
        (variant, name) for variant in ("causal", "full") for name in ("flashgen", "right")
    ]
    reasons = {one.implementation: one.reason for one in results.skipped}
    assert reasons["unfit"] == "no words"
    assert reasons["broken"] == "OSError: a library"
    assert reasons["off"].startswith("wrong: relative error 1.0e-02")


def test_operands_of_11_bits_are_allowed_what_they_cost():
    one = small(Spec(head_dim=8, dtype="float32", precision="tf32"))
    arrays = draw(one, np)
    exact = sample(one, arrays)
    o = Attention(one.spec)(*(arrays[name].astype(np.float16).astype(np.float32) for name in "qkv"))
    assert 1e-5 < exact.error(o) <= exact.allowed < 1e-2


def test_rows_are_as_documented(results):
    found = to_json(results, "grid", FOUND)
    assert set(found) == {"gpu", "driver", "versions", "commit", "host_us", "skipped", "rows"}
    for row in found["rows"]:
        assert list(row) == [
            *("suite", "mode", "head_dim", "causal", "seqlen", "batch", "heads", "dtype", "implementation", "ms", "tflops"),
        ]
    causal, full = found["rows"][0], found["rows"][2]
    assert (causal["causal"], full["causal"]) == (True, False)
    assert causal["ms"] == 0.5


def test_files_are_written(results, tmp_path):
    found = to_json(results, "grid", FOUND)
    save_json(found, tmp_path / "new" / "card.json")
    assert json.loads((tmp_path / "new" / "card.json").read_text()) == found
    save_plot(found, tmp_path / "card.png")
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")
    assert [panel.title for panel in panels(found["rows"])] == ["head dim 8, causal, float32", "head dim 8, full, float32"]


def test_the_grid_is_the_papers():
    cells = grid()
    assert len(cells) == 36
    assert {c.batch * c.seqlen for c in cells} == {16384}
    assert {c.heads * c.spec.head_dim.qk for c in cells} == {2048}
    longest = next(c for c in cells if c.seqlen == 16384 and c.spec.mask == "causal")
    assert longest.operations(visible(longest, {})) == 2 * 16384**2 * 2048


@pytest.mark.parametrize("name", VARIANTS)
def test_a_spec_is_known_by_what_it_says(name):
    spec = Spec(head_dim=64, dtype="float16", name="mine", **VARIANTS[name])
    assert variant_of(spec) == name
    assert variant_of(Spec(**(spec.to_json() | {"scale": "2"}))) == ""


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_the_sample_agrees_with_the_kernel(name, layout):
    """The interpreter passes the rule for every variant, and a slip of a few percent does not."""
    spec = Spec(head_dim=16, dtype="bfloat16", layout=layout, **VARIANTS[name])
    one = Case(spec, 40, 2, 2, name)
    arrays = draw(one, np)
    o = Attention(spec, backend="interpreter")(**arrays)
    expected = sample(one, arrays)
    assert 0 < expected.error(o) <= expected.allowed
    assert expected.error(o.astype(np.float32) * 1.05) > expected.allowed


@pytest.mark.parametrize(("mask", "share"), [("full", 1), ("causal", 0.5), ("kv_idx < 10", 10 / 256), ("causal & window(15, 0)", 0.0605)])
def test_the_visible_share_is_counted(mask, share):
    one = small(Spec(head_dim=8, dtype="float16", mask=mask), 256)
    assert visible(one, {}) == pytest.approx(share, rel=0.01)


def test_rounding_by_bits_is_rounding():
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    assert (rounded(x, "bfloat16") == x.astype(rounded(x, "bfloat16").dtype)).all()


def test_peers_are_looked_up_without_importing_them():
    missing = Implementation("x", "a_library_that_is_not_there.part", PEERS[0].prepare)
    assert not missing.installed
    assert Implementation("x", "numpy", PEERS[0].prepare).installed


def test_who_is_a_peer():
    assert is_peer("flash-attn 4")
    assert not is_peer("flashgen")
    assert not is_peer("flashgen mma.sync")


def test_flash_attention_says_only_what_it_has_words_for():
    assert flash_words(4, small(), {}) == {"causal": True}
    with pytest.raises(UnfitError, match="version 2"):
        flash_words(2, small(Spec(head_dim=8, dtype="float32", softmax="off_by_one", mask="causal")), {})


def test_flex_words_need_torch_alone():
    pytest.importorskip("torch")
    assert flex_words(small(), {})[0] is not None
