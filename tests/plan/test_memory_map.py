"""The shared memory of every kernel, piece by piece."""

import pytest

from flashgen.plan import plan
from flashgen.plan.memory_map import memory_map
from flashgen.spec import Spec

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "options",
    [
        {"mask": "causal", "outputs": ["o", "max_logit"]},
        {"mask": "document(ids)", "tensors": IDS},
        {"dtype": "float32"},
        {"schedule": "standard"},
    ],
)
def test_pieces_lie_inside_what_the_kernel_takes(arch, options):
    chosen = plan(Spec(**{"head_dim": 64, "dtype": "float16", **options}), arch)
    for kernel in chosen.launch.kernels:
        regions = memory_map(chosen, kernel)
        assert bool(regions) == bool(kernel.shared_bytes)
        assert max((r.offset + r.bytes * r.count for r in regions), default=0) == kernel.shared_bytes
        assert len({r.name for r in regions}) == len(regions)
