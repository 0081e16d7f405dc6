"""The README tells the truth: its spec, call, commands and inner loop are those of the repository."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks import table
from flashgen.cli.commands import app
from flashgen.spec import load, loads

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = dict(re.findall(r"```(yaml|cuda)\n(.*?)```", TEXT, re.DOTALL))
CALL, *FURTHER = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)\n```", TEXT, re.DOTALL)


def test_the_spec_is_the_shipped_one():
    assert loads(BLOCKS["yaml"]) == load(ROOT / "specs" / "softcap.yaml")


def test_the_call_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    scope = {}
    exec(CALL, scope)
    assert scope["o"].shape == scope["q"].shape
    assert scope["lse"].shape == (1, 8, 256)
    for further in FURTHER:  # with what the call imported
        exec(further, scope)
        assert scope["o"].shape == scope["q"].shape


def inner_loop(golden: str) -> str:
    """The function that takes one key tile, with the comment above it."""
    lines = golden.splitlines()
    name = next(i for i, line in enumerate(lines) if " void advance_tile(" in line)
    end = lines.index("  }", name)
    return "\n".join(line[2:] for line in lines[name - 2 : end + 1]) + "\n"


def test_the_inner_loop_is_in_the_golden(request):
    """`pytest tests/test_readme.py --snapshot-update` puts it there."""
    golden = (ROOT / "tests" / "golden" / "softcap-sm_90a.cu").read_text()
    loop = inner_loop(golden)
    if request.config.getoption("update_snapshots"):
        (ROOT / "README.md").write_text(re.sub(r"```cuda\n.*?```", lambda _: f"```cuda\n{loop}```", TEXT, flags=re.DOTALL))
        return
    assert BLOCKS["cuda"] == loop
    assert "return ptx::tanh(inner * s);" in golden


def test_ci_runs_the_test_command_as_it_stands():
    pattern = re.search(r"grep -E '(.*)' README\.md", (ROOT / ".ci" / "run").read_text())[1]
    assert [line for line in TEXT.splitlines() if re.search(pattern, line)] == [COMMANDS[1]]
    assert len(COMMANDS) == 2


@pytest.mark.parametrize("name", sorted(set(re.findall(r"flashgen (\w+) (?:SPEC|softcap)", TEXT)) | {"doctor", "schema"}))
def test_commands_exist(name):
    assert name in {command.callback.__name__ for command in app.registered_commands}


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", TEXT))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()


def test_links_to_sections_lead_somewhere():
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in TEXT.splitlines() if line.startswith("#")}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


def test_what_the_first_lines_say_of_speed():
    first = int(re.search(r"ahead of cuDNN from ([\d,]+) tokens on", TEXT)[1].replace(",", ""))
    speed = defaultdict(dict)
    for row in json.loads((ROOT / "benchmarks" / "results" / "NVIDIA_H100_80GB_HBM3.json").read_text())["rows"]:
        if row["dtype"] == "bfloat16":
            speed[row["implementation"]][row["head_dim"], row["causal"], row["seqlen"]] = row["tflops"]
    assert all(tflops >= speed["cudnn"][cell] for cell, tflops in speed["flashgen"].items() if cell[2] >= first)


RESULTS = ["NVIDIA_H100_80GB_HBM3", "backward_NVIDIA_H200", "decode_NVIDIA_H200"]


@pytest.mark.parametrize("name", [name for name in RESULTS if (ROOT / "benchmarks" / "results" / f"{name}.json").exists()])
def test_a_table_is_that_of_its_results(name):
    """`python benchmarks/table.py benchmarks/results/NAME.json` puts it there."""
    results = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    begin, end = table.markers(table.kind(results))
    for page in table.PAGES[table.kind(results)]:
        written = page.read_text().partition(begin)[2].partition(end)[0].strip()
        assert written == table.text(results)
