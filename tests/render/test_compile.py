"""NVRTC compiles every shipped spec for every architecture; kernels of usual head dims keep everything in registers."""

import re

import pytest
from hypothesis import given, settings

from flashgen.bench.cases import VARIANTS
from flashgen.bench.masks import ROWS
from flashgen.errors import BackendError
from flashgen.ladder import RUNGS
from flashgen.plan import plan
from flashgen.plan.appending import AppendPlan
from flashgen.plan.backward import plan_backward
from flashgen.plan.merging import MergePlan
from flashgen.plan.shares import Demand
from flashgen.render import render
from flashgen.render.source import render_alone
from flashgen.runtime import nvrtc
from flashgen.spec import HeadDim, Spec, load
from flashgen.spec.shipped import spec_root
from tests.plan.any_spec import specs

ARCHES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120")
SPECS = sorted(path.stem for path in spec_root().glob("*.yaml"))


def shipped(name: str) -> Spec:
    return load(spec_root() / f"{name}.yaml")


@pytest.fixture(scope="module", autouse=True)
def compiler():
    try:
        nvrtc.compiler()
    except BackendError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", SPECS)
def test_compiles(name, arch):
    """Serialised warpgroup products (C75xx) are errors of `compile`."""
    chosen = plan(shipped(name), arch)
    binary = nvrtc.compile(render(chosen))
    registers = dict(re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", binary.log, re.DOTALL))
    assert all(int(registers[kernel.entry]) * kernel.grid.threads <= chosen.arch.registers for kernel in chosen.kernels)
    assert binary.cubin.startswith(b"\x7fELF")
    if arch == "sm_90a":
        assert binary.spill_bytes == 0, binary.log


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_packed_sequences_and_kernels_of_no_program_compile(dtype, arch):
    """Lists of work and shares, rows of a group, pages; new keys into a cache; states that merge."""
    for together in (False, True):
        spec = Spec(head_dim=128, dtype=dtype, mask="causal", layout="thd", outputs=["o", "lse"], cache={"page": 16})
        demand = Demand(shared=True, together=together) if dtype == "bfloat16" else None
        assert nvrtc.compile(render(plan(spec, arch, demand=demand))).spill_bytes <= (0 if arch == "sm_90a" else 64)
    append = AppendPlan(arch=arch, dtype=dtype, qk=128, v=64, rotary=128, packed=True, paged=True)
    for alone in (append, MergePlan(arch=arch, dtype=dtype, columns=128)):
        assert nvrtc.compile(render_alone(alone)).spill_bytes == 0


@pytest.mark.parametrize("mask", ["block diffusion", "zigzag"])
def test_many_ranges_fit_registers_of_warps_that_have_few(mask):
    """Those who deal, load and clear have 32 each."""
    assert nvrtc.compile(render(plan(ROWS[mask].spec(64), "sm_90a"))).spill_bytes <= 16


@pytest.mark.parametrize(("head_dim", "deterministic"), [(128, False), (256, True)])
def test_a_backward_of_mma_sync_keeps_its_sums_in_registers(head_dim, deterministic):
    chosen = plan_backward(Spec(head_dim=head_dim, dtype="bfloat16", mask="causal", backward=True, deterministic=deterministic), "sm_80")
    binary = nvrtc.compile(render(chosen))
    assert binary.spill_bytes <= 64, binary.log


@pytest.mark.parametrize("mask", ["kv_idx == 4", "~(kv_idx != 0)", "bit(lens[b], kv_idx)", "document(ids) & (kv_idx == 1)"])
@pytest.mark.parametrize("softmax", ["off_by_one", "none"])
def test_masks_of_keys_alone_compile(mask, softmax):
    """Anything that holds the same for all rows would be known while products are in flight, which then were serialised."""
    tensors = {"lens": {"shape": ["b"], "dtype": "int32"}, "ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
    read = {name: how for name, how in tensors.items() if name in mask}
    spec = Spec(head_dim={"qk": 16, "v": 48}, dtype="float16", mask=mask, softmax=softmax, tensors=read)
    assert nvrtc.compile(render(plan(spec, "sm_90a"))).spill_bytes == 0


WEIGHED = {"dtype": "bfloat16", "mask": "causal", "weight": "g[b, hk, kv_idx]", "backward": True}


@pytest.mark.parametrize("head_shares", [1, 2])
@pytest.mark.parametrize(
    "spec",
    [
        Spec(head_dim=128, dtype="bfloat16", mask="causal", backward=True),
        Spec(head_dim=128, dtype="float16", mask="causal", score="cap * tanh(s / cap)", params={"cap": 20.0}, backward=True),
        Spec(head_dim=64, dtype="float16", mask="kv_idx == 4", softmax="off_by_one", backward=True),
        Spec(**WEIGHED, head_dim=64, score="30.0 * tanh(s / 30.0)", tensors={"g": {"shape": ["b", "hk", "kv_len"], "dtype": "float32"}}),
        Spec(**WEIGHED, head_dim=128, tensors={"g": {"shape": ["b", "hk", "kv_len"], "dtype": "float32", "grad": True}}),
    ],
    ids=["causal", "softcap", "one key", "weight", "gradients of a weight"],
)
def test_the_backward_of_hopper_keeps_everything_in_registers(spec, head_shares):
    """One of its small kernels may spill a word."""
    log = nvrtc.compile(render(plan_backward(spec, "sm_90a", head_shares=head_shares))).log
    spilled = dict(re.findall(r"entry function '(\w+)'.*?(\d+) bytes spill stores", log, re.DOTALL))
    assert int(spilled["backward"]) == 0, log


@settings(max_examples=6)
@given(specs(step=8))
def test_any_spec_compiles(spec):
    nvrtc.compile(render(plan(spec, "sm_90a")))


@pytest.mark.parametrize("name", [name for name in SPECS if shipped(name).head_dim == HeadDim(128, 128)])
def test_nothing_spills_at_head_dim_64(name):
    spec = shipped(name)
    spec = Spec(**(spec.to_json() | {"head_dim": 64} | ({} if spec.dtype == "float32" else {"dtype": "float16"})))
    assert nvrtc.compile(render(plan(spec, "sm_90a"))).spill_bytes == 0


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["standard", "two_pass", "fa1", "each_step"])
def test_schedules_compile_everywhere(name, head_dim):
    """The multipass kernels at head dim 128 spill a few words that their tile saves in loads."""
    (rung,) = (rung for rung in RUNGS if rung.name == name)
    arch = "sm_80" if head_dim == 64 else "sm_120"
    binary = nvrtc.compile(render(plan(rung.spec(head_dim, "bfloat16"), arch)))
    assert binary.spill_bytes <= (0 if head_dim == 64 else 64), binary.log


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("variant", ["document", "bias", "dilated"])
def test_nothing_spills_where_tensors_are_read_or_columns_divided(variant, head_dim):
    spec = Spec(head_dim=head_dim, dtype="bfloat16", **VARIANTS[variant])
    assert nvrtc.compile(render(plan(spec, "sm_90a"))).spill_bytes == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_sum_that_is_a_loop_spills_next_to_nothing(arch, head_dim):
    """FIRE has 32 hidden units in its paper, of three coefficients each."""
    keys = load(spec_root() / "language" / "fire.yaml").to_json()
    tensors = {name: {"shape": [32, *shape], "dtype": "float32"} for name, shape in {"a": [], "r": [], "w": ["hq"]}.items()}
    spec = Spec(**keys | {"head_dim": head_dim, "score": keys["score"].replace("4", "32"), "tensors": tensors})
    assert nvrtc.compile(render(plan(spec, arch))).spill_bytes <= 16


LISTS = {"m": 128, "n": 128, "lists": "idx"}


@pytest.mark.parametrize(
    ("arch", "blocks", "backward"),
    [("sm_90a", LISTS, True), ("sm_80", LISTS | {"kind": "bitmap"}, True), ("sm_80", LISTS | {"n": 1}, False)],
)
def test_kernels_of_lists_compile(arch, blocks, backward):
    spec = Spec(head_dim=64, dtype="bfloat16", mask="causal", blocks=blocks, backward=backward)
    for made in (plan(spec, arch), *([plan_backward(spec, arch)] if backward else [])):
        assert nvrtc.compile(render(made)).spill_bytes <= 16


@pytest.mark.parametrize(
    ("arch", "mask"), [("sm_90a", "block diffusion"), ("sm_90a", "longformer"), ("sm_80", "longformer"), ("sm_80", "bigbird")]
)
def test_nearly_nothing_spills_where_tiles_are_skipped(arch, mask):
    """By six runs of key tiles, which are gone through one by one, and by lists, beside what tensors hold."""
    assert nvrtc.compile(render(plan(ROWS[mask].spec(128), arch))).spill_bytes <= 16


@pytest.mark.parametrize(("arch", "head_dim"), [("sm_90a", 64), ("sm_90a", 128), ("sm_90a", 256), ("sm_80", 64), ("sm_80", 128)])
def test_nothing_spills_where_the_entropy_is_asked_for(arch, head_dim):
    """The plan foresees what a sum over the keys takes, beside a score that computes."""
    capped = {"score": "cap * tanh(s / cap)", "params": {"cap": 20.0}}
    spec = Spec(head_dim=head_dim, dtype="bfloat16", mask="causal", outputs=["o", "lse", "entropy"], **capped)
    assert nvrtc.compile(render(plan(spec, arch))).spill_bytes == 0


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("variant", ["bias", "t5"])
def test_float32_does_not_spill_where_tensors_are_read(variant, head_dim):
    """But for the kernel of plain float32, which takes the few tiles that planes do not hold."""
    spec = Spec(head_dim=head_dim, dtype="float32", **VARIANTS[variant])
    log = nvrtc.compile(render(plan(spec, "sm_90a"))).log
    spilled = dict(re.findall(r"entry function '(\w+)'.*?(\d+) bytes spill stores", log, re.DOTALL))
    assert spilled.pop("forward_plain") in ("0", "4", "8")
    assert set(spilled.values()) == {"0"}, spilled


@pytest.mark.parametrize(
    ("head_dim", "precision"), [(16, "ieee"), (64, "ieee"), (64, "tf32"), ({"qk": 40, "v": 104}, "ieee"), (128, "ieee"), (128, "tf32")]
)
@pytest.mark.parametrize("mask", ["causal", "causal & window(255, 0)"])
def test_nothing_spills_where_keys_and_values_are_split_in_place(mask, head_dim, precision):
    chosen = plan(Spec(head_dim=head_dim, dtype="float32", mask=mask, precision=precision), "sm_90a", length=512)
    assert chosen.attention.pipeline.in_place
    binary = nvrtc.compile(render(chosen))
    assert binary.spill_bytes == 0, binary.log
