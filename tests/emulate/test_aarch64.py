"""The emulator as built for aarch64, under qemu: whole kernels against the reference, and a finding."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, emulate, run
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.cross import COMPILER, QEMU, CrossKernel, available, compile_to

pytestmark = [
    pytest.mark.skipif(not available(), reason=f"{COMPILER} and {QEMU} are not on PATH (Debian: g++-aarch64-linux-gnu, qemu-user)"),
    pytest.mark.usefixtures("_cross"),
]
IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
KERNELS = {
    "TMA and wgmma": ("sm_90a", {"block": {"m": 128, "n": 64}}),
    "cp.async and mma.sync": ("sm_80", {"block": {"m": 64, "n": 32}}),
    "scratch memory": ("sm_90a", {"mask": "document(ids)", "tensors": IDS, "block": {"m": 64, "n": 64}}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aarch64")
    compile_to(folder / "machine.o", Path(__file__).with_name("cross.cpp"), "-c")
    return folder


@pytest.fixture
def _cross(folder, monkeypatch):
    monkeypatch.setattr(CrossKernel, "folder", folder, raising=False)
    monkeypatch.setattr(run, "HostKernel", CrossKernel)
    run.compiled.cache_clear()
    yield
    run.compiled.cache_clear()


def planned(arch, options):
    chosen = plan(Spec(**{"head_dim": 64, "dtype": "float16", "outputs": ["o", "lse"], "mask": "causal", **options}), arch)
    rng = np.random.default_rng(0)
    return chosen, render(chosen), [rng.standard_normal((1, n, 1, 64)).astype(np.float16) for n in (70, 100, 100)]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compute_the_reference(name):
    chosen, source, inputs = planned(*KERNELS[name])
    values = {t.name: np.arange(100, dtype=np.int32)[None] // 30 for t in chosen.spec.tensors}
    found = emulate(chosen, source, *inputs, values, seed=2)
    o, lse = reference(chosen.spec, *inputs, **values)
    assert np.abs(found["o"].astype(np.float64) - o).max() < 2e-3
    assert np.allclose(found["lse"], lse, rtol=2e-4, atol=2e-4)


def test_a_race_is_found():
    chosen, source, inputs = planned(*KERNELS["cp.async and mma.sync"])
    waits = "ptx::copy_wait<STAGES - 2>();"
    assert waits in source.text
    with pytest.raises(EmulationFault, match=r"race: warp . reads .*, written by cp.async of warp"):
        emulate(chosen, dataclasses.replace(source, text=source.text.replace(waits, "")), *inputs)
