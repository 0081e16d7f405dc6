"""`explain --html` and `bench --html`: pages that stand alone and tell what the commands tell."""

import json
from pathlib import Path

import pytest

from flashgen.cli import bench_html
from flashgen.cli.explain import explain
from flashgen.cli.explain_html import html
from flashgen.spec import Spec
from tests.pages.stands_alone import check

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "NVIDIA_H100_80GB_HBM3.json"
SPECS = {
    "causal": {"mask": "causal"},
    "softcap": {
        "score": "cap * tanh(s / cap)",
        "mask": "s_ok[b] < 3",
        "params": {"cap": 9.0},
        "tensors": {"s_ok": {"shape": ["b"], "dtype": "int32"}},
    },
    "document": {"mask": "causal & document(ids)", "tensors": {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}},
    "float32": {"dtype": "float32"},
    "backward": {"mask": "causal", "backward": True, "head_dim": 64},
    "paged": {"mask": "causal", "cache": {"page": 16}, "group": 4},
    "hidden": {"mask": "kv_idx < 0"},
}


def page(name, arch="sm_90a", q_len=512, kv_len=700):
    spec = Spec(**{"name": name, "dtype": "float16", "head_dim": 128, **SPECS[name]})
    return html(explain(spec, arch, q_len, kv_len))


@pytest.mark.parametrize("name", SPECS)
def test_a_page_of_every_kind_stands_alone(name):
    made = page(name)
    links = check(made)
    for said in ("512 queries downwards, 700 keys", "rejected candidates", "Roofline", "Shared memory", "Clocks of a step", "BLOCK_M"):
        assert said in made
    named = "backward" if name == "backward" else "forward"
    assert sum(link.startswith(f"#{named}-") and link[len(named) + 2 :].isdigit() for link in links) > 10  # into the text


def test_words_of_the_plan_lead_to_their_lines():
    made = page("causal")
    (line,) = (row for row in made.splitlines() if "constexpr int BLOCK_M =" in row)
    anchor = line.partition('id="')[2].partition('"')[0]
    assert f'<td><a href="#{anchor}">tile</a>' in made.partition('<tr id="forward-tile">')[2]
    assert '<a class="of" href="#forward-tile">tile</a>' in made


@pytest.mark.parametrize(
    ("name", "arch", "q_len", "kv_len"), [("causal", "sm_120", 300, 300), ("causal", "host", 64, 64), ("paged", "sm_90a", 1, 8192)]
)
def test_other_architectures_and_shapes(name, arch, q_len, kv_len):
    check(page(name, arch, q_len, kv_len))


def test_the_command_writes_it(flashgen, tmp_path):
    path = tmp_path / "a.html"
    assert flashgen("explain", "causal", "--q-len", 256, "--html", path).code == 0
    assert path.read_text().startswith("<!DOCTYPE html>")
    ran = flashgen("explain", "causal", "--q-len", 256, "--html", tmp_path / "none" / "a.html")
    assert ran.code == 2
    assert "cannot write" in ran.err


def test_a_page_of_results():
    results = json.loads(RESULTS.read_text())
    made = bench_html.html(results)
    check(made)
    assert made.count("<figure>") == len({(row["head_dim"], row["causal"], row["dtype"]) for row in results["rows"]})
    assert results["gpu"] in made
    assert all(one["reason"].split("<")[0] in made for one in results["skipped"][:3])
