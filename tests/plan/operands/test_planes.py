"""Plans of float32: what splits it, what is chosen for every head dim, what is refused and how that reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.bench.cases import VARIANTS
from flashgen.errors import PlanError, SpecError
from flashgen.plan import candidates, plan
from flashgen.plan.operands.planes_wgmma import ACCUMULATORS, IN_PLACE, REGISTERS
from flashgen.plan.search import LENGTHS
from flashgen.spec import Spec


@given(
    st.integers(1, 32), st.integers(1, 32), st.sampled_from(["full", "causal"]), st.sampled_from(["ieee", "tf32"]),
    st.sampled_from([0, 4, 16]), st.sampled_from(LENGTHS),
)  # fmt: skip
def test_every_head_dim_has_a_plan_that_fits(qk, v, mask, precision, copy_bytes, length):
    spec = Spec(head_dim={"qk": 8 * qk, "v": 8 * v}, dtype="float32", mask=mask, precision=precision)
    p = plan(spec, "sm_90a", copy_bytes, length)
    tile, in_place = p.attention.tile, p.attention.pipeline.in_place
    assert p.skeleton == "forward_sm90_split"
    assert tile.v_columns % tile.v_part == 0
    held = max(numbers for registers, numbers in ACCUMULATORS.items() if registers <= p.attention.workers.compute_registers)
    assert tile.v_columns // 2 + tile.v_part // 2 + tile.block_n * p.planes.count // 4 <= held
    assert max(kernel.smem.bytes for kernel in p.kernels) <= p.attention.smem.capacity
    assert [kernel.entry for kernel in p.kernels] == ["split_keys_values"] * (not in_place) + ["forward", "forward_plain"]
    assert [s.name for s in p.scratch if in_place or s.name == "lost"] == ["lost"]
    assert not (in_place and copy_bytes)


@given(
    st.integers(1, 32), st.integers(1, 32), st.sampled_from(["full", "causal"]), st.sampled_from(["ieee", "tf32"]),
    st.sampled_from(["sm_80", "sm_86", "sm_89", "sm_90", "sm_100a", "sm_120"]),
)  # fmt: skip
def test_every_other_architecture_too(qk, v, mask, precision, arch):
    p = plan(Spec(head_dim={"qk": 8 * qk, "v": 8 * v}, dtype="float32", mask=mask, precision=precision), arch, 4)
    assert p.skeleton == "forward_sm80_split"
    assert p.attention.tile.v_columns % p.attention.tile.v_part == 0
    assert max(kernel.smem.bytes for kernel in p.kernels) <= p.attention.smem.capacity


def test_the_plan_tells_the_split():
    p = plan(Spec(head_dim=64, dtype="float32"), "sm_90a")
    assert p.planes.products == ((1, 0), (0, 1), (0, 0))
    assert any("2 float16 planes" in why for _, why in p.decision.reasons)
    assert any("plain float32, slowly" in why for _, why in p.decision.reasons)
    assert len(p.to_json()["reasons"]) == len(p.decision.reasons)
    assert plan(Spec(head_dim=64, dtype="float32", precision="tf32"), "sm_90a").planes.count == 1
    assert plan(Spec(head_dim=64, dtype="bfloat16"), "sm_90a").planes is None


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_plan_tells_where_keys_and_values_are_split(length, precision):
    for head_dim in (64, 128, 192):
        p = plan(Spec(head_dim=head_dim, dtype="float32", mask="causal", precision=precision), "sm_90a", length=length)
        (why,) = (why for field, why in p.decision.reasons if field == "in_place")
        assert ("where they arrive" in why) == p.attention.pipeline.in_place
        assert ("Expected clocks of a query row" in why) == (head_dim < 192)
        (told,) = (kernel["pipeline"]["in_place"] for kernel in p.to_json()["kernels"] if "pipeline" in kernel)
        assert told == p.attention.pipeline.in_place
    p = plan(Spec(head_dim=64, dtype="float32", mask="causal", precision=precision), "sm_90a", 4, length)
    assert any("no candidate can in place: tensor maps copy" in why for _, why in p.decision.reasons)
    p = plan(Spec(head_dim=64, dtype="float32", mask="causal", precision=precision), "sm_80", length=length)
    assert "in_place" not in dict(p.decision.reasons)


@pytest.mark.parametrize("variant", ["bias", "t5", "dense"])
def test_every_head_dim_has_a_plan_where_tensors_are_read(variant):
    for head_dim in (136, 200, 256):
        assert plan(Spec(head_dim=head_dim, dtype="float32", **VARIANTS[variant]), "sm_90a").attention.tile.block_n >= 16


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
        ({"stages": 6}, "stages is 6: 1 to 5"),
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
    assert (
        p.attention.tile.block_m,
        p.attention.tile.block_n,
        p.attention.pipeline.stages,
        p.attention.pipeline.query_in_registers,
    ) == chosen


@pytest.mark.parametrize(("loading", "registers"), [(1, REGISTERS), (2, IN_PLACE)])
@pytest.mark.parametrize("groups", [1, 2])
def test_warpgroups_pass_on_no_more_registers_than_a_launch_gives(groups, loading, registers):
    """A launch gives every thread the same number, a multiple of 8; who wants more waits until others have given enough, or for ever."""
    load, compute = registers[groups]
    given = 65536 // (128 * (groups + loading)) // 8 * 8
    assert loading * load + groups * compute <= given * (groups + loading)


# Keys and stages that were the fastest measured, or within 2 % of them.
MEASURED = {(64, "full"): {(128, 3), (128, 2)}, (64, "causal"): {(128, 3)}, (128, "full"): {(128, 1)}, (256, "full"): {(48, 1)}}


@pytest.mark.parametrize(("head_dim", "mask"), MEASURED)
def test_what_is_chosen_is_what_was_fastest(head_dim, mask):
    p = plan(Spec(head_dim=head_dim, dtype="float32", mask=mask), "sm_90a")
    assert (p.attention.tile.block_n, p.attention.pipeline.stages) in MEASURED[head_dim, mask]


@pytest.mark.parametrize("head_dim", [64, 128])
def test_short_sequences_are_split_in_place(head_dim):
    """It was faster over the class: up to 512 keys always, up to 1,024 where a query tile does not split every key tile."""
    chosen = {
        (mask, length): plan(Spec(head_dim=head_dim, dtype="float32", mask=mask), "sm_90a", length=length).attention.pipeline.in_place
        for mask in ("full", "causal")
        for length in LENGTHS
    }
    assert chosen == {(mask, length): length == 512 or (mask, length) == ("causal", 1024) for mask, length in chosen}


def test_what_cannot_be_split_in_place():
    assert not any("in place" in text for text in candidates(Spec(head_dim={"qk": 64, "v": 192}, dtype="float32"), length=1024))
    one = Spec(head_dim=64, dtype="float32", mask="causal", stages=1)
    assert not any("in place" in text for text in candidates(one, length=1024))
    refused = {r.reason for r in plan(one, "sm_90a", length=1024).decision.rejected if r.candidate.endswith("split in place")}
    assert "stages is 1: in place a tile arrives while another is split, so 2 at least" in refused
