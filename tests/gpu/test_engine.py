"""Steps of an engine on a GPU: as a loop over sequences computes them, and captured once for other lengths."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.vllm.layer import Layer, attend, keep
from tests.vllm.steps import KINDS, D, Step

cupy = pytest.importorskip("cupy")
STEPS = {"single": ([(1, 4), (1, 30)], [(1, 0), (1, 17)]), "packed": ([(5, 3), (1, 20)], [(3, 30), (3, 0)])}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_serves_other_lengths(kind, steps):
    layer = Layer(head_dim=D, scale=0.3, **KINDS[kind])
    drawn = [Step(lengths, 2, KINDS[kind], tokens_inside=True) for lengths in STEPS[steps]]
    there = {name: cupy.asarray(getattr(drawn[0], name)) for name in ("q", "k", "v", "cache", "out")}
    lengths = {name: cupy.asarray(getattr(drawn[0].batch, name)) for name in ("cu_seqlens_q", "kv_lens", "block_table")}
    values = {name: cupy.asarray(x) for name, x in drawn[0].values.items()}
    batch, stream = replace(drawn[0].batch, **lengths), cupy.cuda.Stream(non_blocking=True)

    def run():
        keep(layer, there["cache"], batch, there["k"], there["v"])
        attend(layer, there["q"], there["cache"], batch, there["out"], values)

    run()  # compiled and loaded before
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        run()
        graph = stream.end_capture()
    for step in drawn:
        for name, x in (there | lengths).items():
            x[...] = cupy.asarray(getattr(step if name in there else step.batch, name))
        for name, x in values.items():
            x[...] = cupy.asarray(step.values[name])
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert np.abs(there["out"].get()[: step.total] - step.expected(layer)).max() < 4e-3
