"""Tables of the README, from files of results."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import table

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

MEASURED: dict[str, Any] = {"gpu": "Card", "driver": "1", "versions": {"torch": "2"}, "commit": "abc"}


def test_a_grid_has_a_row_a_head_dim_and_mask() -> None:
    row = {"mode": "backward", "head_dim": 64, "causal": True, "dtype": "bfloat16"}
    speeds = {"flashgen": (100.0, 300.0), "cudnn": (80.0, 400.0), "flash-attn 4": (50.0,)}
    rows = [row | {"seqlen": 512 << i, "implementation": name, "tflops": x} for name, found in speeds.items() for i, x in enumerate(found)]
    assert table.table(MEASURED | {"rows": rows}).splitlines() == [
        "| head dim | mask | 512 | 1024 |",
        "|---|---|---|---|",
        "| 64 | causal | 100 (1.25) | 300 (0.75) |",
        "",
        "Card, driver 1, beside cudnn; torch 2, commit abc.",
    ]


def test_decoding_has_a_row_a_shape_and_loads_apart() -> None:
    shape = {"batch": 2, "q_len": 1, "kv_len": 99, "heads": 8, "kv_heads": 2, "head_dim": 64, "unit": "GB/s", "flops": False}
    rates = {"flashgen": 90.0, "flashgen auto": 110.0, "cudnn": 100.0, "loads": 120.0}
    replayed = {"flashgen": 9.0, "flashgen auto": 7.0, "cudnn": 8.0, "loads": 6.0}
    assert table.decoding(MEASURED | {"rows": [shape | {"rates": rates, "replayed_us": replayed}]}).splitlines()[2] == (
        "| 2, 1, 99, 8/2, 64 | GB/s | 90 (0.90) | 110 (1.10) | 120 | 7.0 (8.0) |"
    )


def test_packed_has_a_row_a_case_with_what_it_is_beside() -> None:
    row = {"lengths": "one of 9, 3 of 2", "ms": 1.5, "tflops": 400.0, "beside": {"longest": 1.0, "others": 0.25}, "relative": 1.2}
    assert table.text(MEASURED | {"suite": "packed", "rows": [row]}).splitlines()[2] == (
        "| one of 9, 3 of 2 | 1.500 | 400 | 1.000 (longest) + 0.250 (others) | 1.20 |"
    )


def shape(window: int = 0, **speeds: float) -> dict[str, Any]:
    """A row of a file of shapes."""
    known = {"model": "Some", "batch": 2, "q_len": 99, "kv_len": 99, "heads": (8, 2), "head_dim": (64, 64), "causal": True}
    return {**known, "window": window, "mask": "causal" if not window else f"causal & window({window - 1}, 0)", "tflops": speeds}


def test_shapes_have_a_row_a_model_and_mask() -> None:
    rows = [
        shape(flashgen=90.0, cudnn=100.0),
        {**shape(flashgen=120.0), "kv_len": 500},
        {**shape(flashgen=55.0, cudnn=50.0), "q_len": 200, "kv_len": 200},
    ]
    assert table.text(MEASURED | {"suite": "shapes", "rows": rows}).splitlines()[2:] == [
        "| Some | 2, 8/2, 64 | `causal` | 99: 90 (0.90), 200: 55 (1.10) |",
        "| Some | 2, 8/2, 64 | `causal`, 500 keys | 99: 120 |",
        "",
        "Card, driver 1, beside cudnn; torch 2, commit abc.",
    ]


def test_masks_and_lists_have_a_row_a_case() -> None:
    row = {
        "mask": "fixed",
        "head_dim": 64,
        "ideal": 0.25,
        "by": "mask",
        "dense": 1.0,
        "ms": 0.3,
        "making": 0.02,
        "attention": 0.28,
        "times": 1.12,
    }
    assert table.text(MEASURED | {"suite": "masks", "rows": [row]}).splitlines()[2:] == [
        "| fixed | 64 | 25%, mask | 1.000 | 0.300 | 0.020 | 0.280 | 1.120 |  |  |  |",
        "",
        "Card, driver 1; torch 2, commit abc.",
    ]
    row = {"case": "a token", "dense": 0.02, "listed": 0.024, "relative": 1.2, "flex": 0.1}
    assert table.text(MEASURED | {"suite": "lists", "rows": [row]}).splitlines()[2] == "| a token | 0.0200 | 0.0240 |  |  | 1.20 | 0.1000 |"


@pytest.mark.parametrize("name", table.PAGES)
def test_a_page_has_a_place_for_each(name: str) -> None:
    for page in table.PAGES[name]:
        assert [page.read_text(encoding="utf-8").count(marker) for marker in table.markers(name)] == [1, 1]


@pytest.mark.parametrize("name", table.PAGES)
def test_a_page_says_what_a_file_says(name: str) -> None:
    """Nothing is written by hand: a table is that of some file which is kept."""
    kept = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    made = [
        table.text(found) for found in kept if "mode" in found["rows"][0] or found.get("suite") in table.PAGES or "rung" in found["rows"][0]
    ]
    for page in table.PAGES[name]:
        begin, end = table.markers(name)
        said = page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()
        assert said in made or said.startswith("Not run as a whole yet")
