"""Shapes of models: what they count, and their picture."""

from pathlib import Path

import pytest

from benchmarks import shapes
from flashgen.expr import evaluate
from flashgen.plan import plan
from tests.bench.test_table import MEASURED, shape

EVERY = [one for found in shapes.MODELS for one in found]


@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 7)])
def test_pairs_are_those_of_the_mask(causal: bool, window: int) -> None:
    one = shapes.Shape(model="", batch=3, q_len=40, kv_len=40, heads=(4, 2), head_dim=(8, 16), causal=causal, window=window)
    mask = plan(one.spec, "host").expressions.mask
    pairs = sum(bool(evaluate(mask, {"q_idx": q, "kv_idx": k, "q_len": 40, "kv_len": 40})) for q in range(40) for k in range(40))
    diagonal = 20 if causal and not window else 0  # half of all is what is counted
    assert one.flops == 2 * 3 * 4 * (pairs - diagonal) * (8 + 16)


def test_every_shape_has_a_plan() -> None:
    for one in {(one.model, one.mask): one for one in EVERY}.values():
        assert plan(one.spec, "sm_90a").skeleton == "forward_sm90"
        assert one.sizes.heads % one.sizes.kv_heads == 0


def test_shapes_are_told_apart() -> None:
    assert len({one.text for one in EVERY}) == len(EVERY)


def test_a_picture_has_a_panel_a_model_and_mask(tmp_path: Path) -> None:
    rows = [shape(flashgen=90.0, cudnn=100.0), shape(7, flashgen=120.0), shape(7, flashgen=120.0, flex=7.0) | {"q_len": 200}]
    shapes.save_picture(MEASURED | {"rows": rows}, tmp_path / "shapes.png")
    assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")
