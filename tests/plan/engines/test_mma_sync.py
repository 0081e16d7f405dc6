"""Plans for mma.sync: what is chosen, what a spec may pin, what is refused and how that reads."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashgen.errors import PlanError
from flashgen.plan import plan
from flashgen.plan.engines.mma_sync import FRAGMENTS, MAX_WARPS, RESERVED_BYTES
from flashgen.spec import Spec

ARCHES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100a", "sm_120")
# Rows, keys, warps and stages that work well, by architecture and head dim; where another tile is chosen, it is no guess far from these.
KNOWN = {
    ("sm_80", 32): (128, 64, 4, 2),
    ("sm_80", 64): (128, 64, 4, 2),
    ("sm_80", 96): (128, 64, 4, 1),
    ("sm_80", 128): (128, 64, 4, 1),
    ("sm_80", 192): (128, 64, 8, 2),
    ("sm_80", 256): (128, 64, 8, 1),
    ("sm_86", 32): (128, 64, 4, 2),
    ("sm_86", 64): (128, 64, 4, 2),
    ("sm_86", 96): (128, 64, 8, 2),
    ("sm_86", 128): (128, 64, 8, 2),
    ("sm_86", 192): (128, 32, 8, 2),
}


def choice(spec, arch, copy_bytes=16):
    p = plan(spec, arch, copy_bytes)
    return (
        p.attention.tile.block_m,
        p.attention.tile.block_n,
        p.attention.workers.warps,
        p.attention.pipeline.stages,
        p.attention.pipeline.query_in_registers,
    )


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize(("arch", "head_dim"), KNOWN)
def test_what_is_chosen_costs_about_what_works_well(arch, head_dim, mask):
    m, n, warps, stages = KNOWN[arch, head_dim]
    pins = {"block": {"m": m, "n": n}, "warps": warps, "stages": stages}
    chosen, known = (plan(Spec(head_dim=head_dim, dtype="bfloat16", mask=mask, **given), arch) for given in ({}, pins))
    assert dict(known.decision.cost)["total"] <= 1.13 * dict(chosen.decision.cost)["total"]


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize(("head_dim", "chosen"), [(64, (128, 64, 4, 2, True)), (128, (128, 64, 4, 1, False))])
def test_choice(head_dim, chosen, mask):
    assert choice(Spec(head_dim=head_dim, dtype="bfloat16", mask=mask), "sm_80") == chosen


@pytest.mark.parametrize("copy_bytes", [16, 8, 4, 2])
def test_hopper_takes_this_way_where_tma_does_not_reach(copy_bytes):
    spec = Spec(head_dim=128, dtype="float16", mask="causal")
    p = plan(spec, "sm_90a", copy_bytes)
    assert (p.skeleton, p.attention.pipeline.copy_bytes) == ("forward_sm80", copy_bytes)
    assert p.attention.tile == plan(spec, "sm_90", copy_bytes).attention.tile, "wgmma's rate must not count for mma.sync"
    assert plan(spec, "sm_90a").skeleton == "forward_sm90"


@given(
    st.sampled_from(ARCHES), st.integers(1, 32), st.integers(1, 32), st.sampled_from(["full", "causal", "window(100, 0)"]),
    st.sampled_from([16, 8, 4, 2]), st.sampled_from(["float16", "bfloat16"]),
)  # fmt: skip
def test_every_head_dim_has_a_plan_that_fits(arch, qk, v, mask, copy_bytes, dtype):
    p = plan(Spec(head_dim={"qk": 8 * qk, "v": 8 * v}, dtype=dtype, mask=mask), arch, copy_bytes)
    tile, warps, blocks = p.attention.tile, p.attention.workers.warps, p.attention.workers.blocks
    rows = tile.block_m // (16 * warps)
    assert 0 <= tile.qk_columns - 8 * qk < 16
    assert 0 <= tile.v_columns - 8 * v < 16
    assert p.kernels[0].grid.threads == 32 * warps
    assert rows * 16 * warps == tile.block_m
    assert rows * (tile.block_n + tile.v_columns) // 2 <= FRAGMENTS
    assert (
        p.attention.smem.bytes
        == (
            max(tile.qk_columns, tile.v_columns) * tile.block_m
            + p.attention.pipeline.stages * tile.block_n * (tile.qk_columns + tile.v_columns)
        )
        * 2
    )
    assert blocks * (p.attention.smem.bytes + RESERVED_BYTES) <= p.arch.multiprocessor_shared_bytes
    assert blocks * warps <= MAX_WARPS
    steps = dict(p.decision.cost)
    assert steps["step"] > max(cost for name, cost in steps.items() if name not in ("step", "total"))


@given(
    st.sampled_from(["sm_80", "sm_86", "sm_90"]), st.sampled_from([8, 64, 128, 200]),
    *(st.none() | st.sampled_from(sizes) for sizes in ([16, 48, 64, 96, 128, 256], [16, 48, 80, 112, 128, 256], [1, 2, 3, 4])),
    st.none() | st.integers(1, 8),
)  # fmt: skip
def test_pins_are_kept_or_refused(arch, head_dim, m, n, stages, warps):
    assume(any(pin is not None for pin in (m, n, stages, warps)))
    block = {name: pin for name, pin in (("m", m), ("n", n)) if pin is not None} or "auto"
    spec = Spec(head_dim=head_dim, dtype="float16", block=block, stages=stages, warps=warps)
    try:
        chosen = choice(spec, arch)
    except PlanError as error:
        refusal = str(error)
    else:
        assert all(pin in (None, value) for pin, value in zip((m, n, warps, stages), chosen[:4], strict=True))
        return
    assert f"is not legal on {arch}" in refusal
    assert "The nearest legal choice: " in refusal


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"warps": 9}, "warps is 9: 1 to 8"),
        ({"block": {"m": 100, "n": 64}, "warps": 4}, "block m is 100: each of 4 warps takes 16 rows or more, so a multiple of 64"),
        ({"block": {"m": 128, "n": 40}}, "block n is 40: a product takes 16 keys, so a multiple of 16 up to 256"),
        ({"stages": 6}, "stages is 6: 1 to 5"),
        ({"block": {"m": 128, "n": 256}, "warps": 4}, "q, s and o take 368 registers a thread, 208 can be held"),
        ({"block": {"m": 128, "n": 128}, "stages": 4}, "takes 147456 bytes of shared memory, 101376 are there"),
    ],
)
def test_a_pin_that_cannot_be(given, said):
    with pytest.raises(PlanError) as caught:
        plan(Spec(head_dim=64, dtype="float16", **given), "sm_86", 16)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"head_dim": 0}, "head_dim qk is 0: sm_80 takes multiples of 8 from 8 to 576; the nearest is 8"),
        ({"head_dim": 7}, "the nearest is 8"),
        ({"head_dim": {"qk": 64, "v": 520}}, "head_dim v is 520: sm_80 takes multiples of 8 from 8 to 512; the nearest is 512"),
        ({"head_dim": {"qk": 584, "v": 64}}, "head_dim qk is 584: sm_80 takes multiples of 8 from 8 to 576; the nearest is 576"),
        ({"head_dim": {"qk": 64, "v": 264}, "dtype": "bfloat16"}, "2 blocks share its columns on sm_80, so it takes multiples of 16"),
        ({"schedule": {"outer": "kv"}}, "on the CPU (arch host) every schedule has"),
    ],
)
def test_what_no_kernel_serves(given, said):
    with pytest.raises(PlanError) as caught:
        plan(Spec(**{"head_dim": 64, "dtype": "float16", **given}), "sm_80")
    assert said in str(caught.value)


def test_params_in_order():
    spec = Spec(
        head_dim=64, dtype="float16", outputs=["o", "lse"],
        score="softcap * tanh(s / softcap) + slopes[h] * kv_idx", params={"softcap": 50.0},
        tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}},
    )  # fmt: skip
    names = [a.name for a in plan(spec, "sm_80").arguments]
    strides = [f"{x}_strides" for x in "qkvo"]
    sizes = ["q_len", "kv_len", "heads", "batch", "group", "section"]
    assert names == ["q", "k", "v", "o", "lse", *strides, "arg_slopes", "softmax_scale", "arg_softcap", *sizes]
