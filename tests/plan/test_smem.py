"""The shared memory of every kernel, piece by piece."""

import pytest

from flashgen.plan import plan
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
    for kernel in chosen.kernels:
        regions = kernel.smem.regions
        assert bool(regions) == bool(kernel.smem.bytes)
        assert max((region.end for region in regions), default=0) == kernel.smem.bytes
        assert len({r.name for r in regions}) == len(regions)


@pytest.mark.parametrize("head_dim", [16, 64, {"qk": 64, "v": 256}, {"qk": 256, "v": 64}])
def test_kernels_of_standard_attention_share_their_bytes(head_dim):
    """And nothing that is there at once: o alone lies where p and values have been."""
    chosen = plan(Spec(head_dim=head_dim, dtype="float16", schedule="standard"), "sm_80")
    scores, _, output = (kernel.smem.regions for kernel in chosen.kernels)
    assert [region.name for region in scores] == ["Q", "K"]
    assert [region.name for region in output] == ["P", "V", "O"]
    assert (scores[0].offset, output[0].offset, output[2].offset) == (0, 0, 0)
    assert scores[0].end <= scores[1].offset
    assert output[0].end <= output[1].offset
    assert [kernel.smem.bytes for kernel in chosen.kernels] == [scores[-1].end, 0, max(region.end for region in output)]
