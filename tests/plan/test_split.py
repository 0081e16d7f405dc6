"""Plans of float32: what splits it, what is chosen for every head dim, what is refused and how that reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.bench.cases import VARIANTS
from flashgen.errors import PlanError, SpecError
from flashgen.plan import plan
from flashgen.plan.sm90_split import ACCUMULATORS, REGISTERS
from flashgen.spec import Spec


@given(
    st.integers(1, 32), st.integers(1, 32), st.sampled_from(["full", "causal"]), st.sampled_from(["ieee", "tf32"]), st.sampled_from([0, 4])
)
def test_every_head_dim_has_a_plan_that_fits(qk, v, mask, precision, copy_bytes):
    spec = Spec(head_dim={"qk": 8 * qk, "v": 8 * v}, dtype="float32", mask=mask, precision=precision)
    p = plan(spec, "sm_90a", copy_bytes)
    tile = p.tile
    assert p.skeleton == "forward_sm90_split"
    assert tile.v_columns % tile.v_part == 0
    assert tile.v_columns // 2 + tile.v_part // 2 + tile.block_n * p.split.planes // 4 <= ACCUMULATORS
    assert max(kernel.shared_bytes for kernel in p.launch.kernels) <= p.smem.capacity
    assert [kernel.entry for kernel in p.launch.kernels] == ["split_keys_values", "forward", "forward_plain"]


@given(
    st.integers(1, 32), st.integers(1, 32), st.sampled_from(["full", "causal"]), st.sampled_from(["ieee", "tf32"]),
    st.sampled_from(["sm_80", "sm_86", "sm_89", "sm_90", "sm_100a", "sm_120"]),
)  # fmt: skip
def test_every_other_architecture_too(qk, v, mask, precision, arch):
    p = plan(Spec(head_dim={"qk": 8 * qk, "v": 8 * v}, dtype="float32", mask=mask, precision=precision), arch, 4)
    assert p.skeleton == "forward_sm80_split"
    assert p.tile.v_columns % p.tile.v_part == 0
    assert max(kernel.shared_bytes for kernel in p.launch.kernels) <= p.smem.capacity


def test_the_plan_tells_the_split():
    p = plan(Spec(head_dim=64, dtype="float32"), "sm_90a")
    assert p.split.products == ((1, 0), (0, 1), (0, 0))
    assert any("2 float16 planes" in why for _, why in p.reasons)
    assert any("plain float32, slowly" in why for _, why in p.reasons)
    assert len(p.to_json()["reasons"]) == len(p.reasons)
    assert plan(Spec(head_dim=64, dtype="float32", precision="tf32"), "sm_90a").split.planes == 1
    assert plan(Spec(head_dim=64, dtype="bfloat16"), "sm_90a").split is None


@pytest.mark.parametrize("variant", ["bias", "t5", "dense"])
def test_every_head_dim_has_a_plan_where_tensors_are_read(variant):
    for head_dim in (136, 200, 256):
        assert plan(Spec(head_dim=head_dim, dtype="float32", **VARIANTS[variant]), "sm_90a").tile.block_n >= 16


def test_precision_is_of_float32():
    with pytest.raises(SpecError, match="precision: tf32 is of float32, and dtype is bfloat16"):
        Spec(head_dim=64, dtype="bfloat16", precision="tf32")
    with pytest.raises(SpecError, match="precision: expected ieee or tf32"):
        Spec(head_dim=64, dtype="float32", precision="fp32")
    spec = Spec(head_dim=64, dtype="float32", precision="tf32")
    assert Spec(**spec.to_json()) == spec
    assert "precision" not in Spec(head_dim=64, dtype="float32").to_json()


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"block": {"m": 144}}, "block m is 144: 1 to 8 warps take 16 query rows each"),
        ({"block": {"n": 24}}, "block n is 24: a product takes 16 keys"),
        ({"stages": 5}, "stages is 5: 1 to 4"),
        ({"warps": 4, "block": {"m": 128}}, "warps is 4: a warp computes 16 query rows, so 8 for block m = 128"),
        ({"head_dim": 256, "block": {"n": 128}}, "takes .* bytes of shared memory|registers a thread"),
    ],
)
def test_what_sm80_refuses(pins, message):
    with pytest.raises(PlanError, match=message):
        plan(Spec(**{"head_dim": 64, "dtype": "float32", **pins}), "sm_80")


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"schedule": "two_pass"}, r"float32 kernels run \{passes: 1"),
        ({"schedule": {"rescale": "lazy"}}, "schedule: lazy saves nothing with float32"),
        ({"block": {"m": 192}}, "block m is 192: a warpgroup takes 64 query rows"),
        ({"head_dim": 68}, "head_dim qk is 68: sm_90a takes multiples of 8"),
    ],
)
def test_what_is_refused(pins, message):
    with pytest.raises(PlanError, match=message):
        plan(Spec(**{"head_dim": 64, "dtype": "float32", **pins}), "sm_90a")


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize(("head_dim", "chosen"), [(64, (64, 64, 2, True)), (128, (64, 64, 1, False))])
def test_what_was_fastest_by_mma_sync_is_chosen(head_dim, chosen, mask):
    p = plan(Spec(head_dim=head_dim, dtype="float32", mask=mask), "sm_90")
    assert (p.tile.block_m, p.tile.block_n, p.pipeline.stages, p.pipeline.query_in_registers) == chosen


@pytest.mark.parametrize("groups", REGISTERS)
def test_warpgroups_pass_on_no_more_registers_than_a_launch_gives(groups):
    """A launch gives every thread the same number, a multiple of 8; who wants more waits until others have given enough, or for ever."""
    load, compute = REGISTERS[groups]
    given = 65536 // (128 * (groups + 1)) // 8 * 8
    assert load + groups * compute <= given * (groups + 1)


# Keys and stages that were the fastest measured, or within 2 % of them.
MEASURED = {(64, "full"): {(128, 3), (128, 2)}, (64, "causal"): {(128, 3)}, (128, "full"): {(128, 1)}, (256, "full"): {(48, 1)}}


@pytest.mark.parametrize(("head_dim", "mask"), MEASURED)
def test_what_is_chosen_is_what_was_fastest(head_dim, mask):
    p = plan(Spec(head_dim=head_dim, dtype="float32", mask=mask), "sm_90a")
    assert (p.tile.block_n, p.pipeline.stages) in MEASURED[head_dim, mask]
