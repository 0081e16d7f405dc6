"""The same text for the same plan, whatever order a process hashes in; different text for what differs."""

import os
import subprocess
import sys

from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec

EVERY_DIGEST = """
from flashgen.spec.shipped import spec_root
from flashgen.plan import plan
from flashgen.render import render
from flashgen.render.header import header
from flashgen.spec import load

for path in sorted(spec_root().glob("*.yaml")):
    for arch in ("sm_80", "sm_90a"):
        chosen = plan(load(path), arch)
        source = render(chosen)
        print(path.name, arch, chosen.digest, source.digest, hash_of(header(chosen, source)), hash_of(str(chosen.to_json())))
"""


def test_hash_seeds_change_nothing():
    code = "import hashlib\nhash_of = lambda text: hashlib.sha256(text.encode()).hexdigest()\n" + EVERY_DIGEST
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "4711")
    ]
    assert runs[0]
    assert runs[0] == runs[1]


def test_a_second_rendering_is_the_same():
    spec = Spec(
        head_dim=64,
        dtype="float16",
        mask="causal",
        score="s + bias[h, kv_idx]",
        tensors={"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}},
    )
    first = render(plan(spec, "sm_90a"))
    plan.cache_clear()
    assert render(plan(spec, "sm_90a")) == first


def test_digests_tell_specs_apart():
    specs = [
        Spec(head_dim=d, dtype=dtype, mask=mask) for d in (64, 128) for dtype in ("float16", "bfloat16") for mask in ("full", "causal")
    ]
    assert len({render(plan(spec, arch)).digest for spec in specs for arch in ("sm_90a", "sm_80")}) == 16


def test_a_renamed_spec_is_compiled_no_more():
    first, second = (render(plan(Spec(name=name, head_dim=64, dtype="float16", mask="causal"), "sm_90a")) for name in ("mine", "yours"))
    assert first.text != second.text
    assert first.digest == second.digest


def test_the_text_names_its_spec_and_plan():
    chosen = plan(Spec(name="mine", head_dim=64, dtype="float16", mask="causal"), "sm_90a")
    first = render(chosen).text.splitlines()[0]
    assert first.endswith("generated, do not edit")
    assert f"spec mine | arch sm_90a | plan {chosen.digest}" in first
