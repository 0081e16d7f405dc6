"""clang++ in g++'s place: kernels compute the same, and reports read the same."""

import dataclasses
import shutil

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel, build, emulate, run
from flashgen.emulate.memory import Watched, fence
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.kernels import record
from tests.emulate.test_machine import TRAPS, TRAPS_PARAMS

COMPILERS = ("g++", "clang++")
pytestmark = pytest.mark.skipif(not all(map(shutil.which, COMPILERS)), reason=f"{' and '.join(COMPILERS)} are not both on PATH")
CACHES = (build.compiler, build.macros, build.identity, build.twins, run.compiled)


@pytest.fixture
def with_each(monkeypatch):
    """Calls a function once with each compiler."""

    def both(function):
        results = []
        for name in COMPILERS:
            monkeypatch.setenv("CXX", name)
            for cache in CACHES:
                cache.cache_clear()
            results.append(function())
        return results

    yield both
    for cache in CACHES:
        cache.cache_clear()


@pytest.mark.parametrize("values", [{"shift": 1}, {"index": 2}, {"index": 4}])
def test_what_a_thread_does_wrong(values, with_each):
    x, y = fence(np.ones(64, np.float32)), np.zeros(32, np.float32)

    def report():
        params = record(TRAPS_PARAMS, **{"in": x, "out": y}, **values)
        with pytest.raises(EmulationFault) as caught:
            HostKernel(TRAPS).launch(1, 32, 0, params, arrays={"in": Watched(x, "read"), "out": Watched(y)})
        return str(caught.value)

    ours, theirs = with_each(report)
    assert theirs == ours


@pytest.mark.parametrize(
    ("arch", "wait"),
    [("sm_90a", "await(V_FULL, at);"), ("sm_80", "ptx::copy_wait<STAGES - 2>();")],
)
def test_kernels_with_and_without_a_wait(arch, wait, with_each):
    chosen = plan(Spec(head_dim=64, dtype="float16", mask="causal"), arch)
    source = render(chosen)
    faulty = dataclasses.replace(source, text=source.text.replace(wait, ""))
    assert faulty.text != source.text
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 1, 64)).astype(np.float16) for n in (200, 300, 300))

    def both():
        with pytest.raises(EmulationFault) as caught:
            emulate(chosen, faulty, q, k, v)
        return emulate(chosen, source, q, k, v)["o"], str(caught.value)

    (o, ours), (same, theirs) = with_each(both)
    assert np.abs(o.astype(np.float32) - same).max() < 1e-3  # fused or not, as the compiler likes
    assert theirs == ours
