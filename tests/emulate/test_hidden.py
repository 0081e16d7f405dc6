"""Keys that their place hides from every query hold NaN: no kernel lets it through, and one that did would be found."""

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, emulate
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_integers import found_by
from tests.plan.agreement import arrays, judge

TENSORS = {
    "lens": {"shape": ["b"], "dtype": "int32"},
    "pad": {"shape": ["b", "kv_len"], "dtype": "bool"},
    "ids": {"shape": ["b", "kv_len"], "dtype": "int32"},
}
MASKS = {  # lengths
    "kv_idx < lens[b]": (70, 150),
    "causal & pad[b, kv_idx]": (70, 150),
    "window(40, 0)": (1, 200),
    "(kv_idx < 4) | (window(60, 0) & (kv_idx < lens[b]))": (20, 200),
    "where(h < 1, kv_idx < 30, kv_idx < lens[b])": (70, 150),
    "causal_top_left": (70, 200),
    "ids[b, kv_idx] == lens[b]": (70, 150),
}
KERNELS = {
    "host": ("host", {}),
    "sm_90a": ("sm_90a", {}),
    "sm_80": ("sm_80", {}),
    "standard": ("sm_80", {"schedule": "standard"}),
    "two_pass": ("sm_80", {"schedule": "two_pass"}),
    "keys_outer": ("sm_80", {"schedule": {"normalize": "each_step", "outer": "kv"}}),
    "columns": ("sm_90a", {"head_dim": {"qk": 64, "v": 320}}),
    "float32": ("sm_90a", {"dtype": "float32"}),
    "float32-sm_80": ("sm_80", {"dtype": "float32"}),
    "in_place": ("sm_90a", {"dtype": "float32", "block": {"n": 64}}),
}


def case(mask, said):
    spec = Spec(
        **{"head_dim": 16, "dtype": "bfloat16", **said},
        mask=mask,
        outputs=["o", "lse"],
        tensors={name: how for name, how in TENSORS.items() if name in mask},
    )
    q_len, kv_len = MASKS[mask]
    q, k, v = arrays(spec, 2, 4, 2, q_len, kv_len)
    random = np.random.default_rng(1)
    drawn = {"lens": np.array([min(q_len, kv_len) // 2 - 3, 2], np.int32), "pad": random.random((2, kv_len)) < 0.6}
    drawn["ids"] = np.sort(random.integers(0, 4, (2, kv_len), np.int32))
    return spec, q, k, v, {name: drawn[name] for name in spec.to_json()["tensors"]}


def poisoned(spec, q, k, v, values):
    """NaN in k and v where no query of any head of the group sees the key: where no row of the weights, as those of v = 1, has any."""
    keys = k.shape[1]
    spread = Spec(
        **{**spec.to_json(), "head_dim": {"qk": spec.head_dim.qk, "v": keys}, "dtype": "float32", "schedule": "auto", "block": "auto"}
    )
    one = np.tile(np.eye(keys, dtype=np.float32)[None, :, None], (2, 1, 2, 1))
    weights = reference(spread, 0 * q.astype(np.float32), 0 * k.astype(np.float32), one, **values)[0]
    seen = (weights.reshape(2, q.shape[1], 2, 2, keys) > 0).any((1, 3))  # [B, Hk, Sk]
    k, v = k.copy(), v.copy()
    for x in (k, v):
        x[~seen.swapaxes(1, 2)] = np.nan
    return k, v


FEW = ("kv_idx < lens[b]", "causal & pad[b, kv_idx]")
WITH = {"host": MASKS, "sm_90a": MASKS, "float32": FEW, "sm_80": FEW}


@pytest.mark.parametrize(("kernel", "mask"), [(kernel, mask) for kernel in KERNELS for mask in WITH.get(kernel, FEW[:1])])
def test_nothing_of_them_comes_through(kernel, mask):
    arch, said = KERNELS[kernel]
    spec, q, k, v, values = case(mask, said)
    k, v = poisoned(spec, q, k, v, values)
    assert np.isnan(v.astype(np.float32)).any()
    judge(spec, found_by(arch, spec, q, k, v, values), q, k, v, **values)


ARRIVES = "  if (lane == 0) ptx::mbarrier_arrive(shared + V_FULL + BARRIER_BYTES * stage);"
FAULTS = {  # of the warp that clears
    "fence": ("  if (any) ptx::async_proxy_fence();\n", "", "async proxy"),
    "wait": ("  ptx::mbarrier_wait(shared + V_ARRIVED + BARRIER_BYTES * stage, parities >> stage & 1);\n", "", "race"),
    "parity": ("  parities ^= 1 << stage;\n", "", "race|deadlock|phase"),
    "whole": ("? V_FULL : V_ARRIVED)", "? V_FULL : V_FULL)", "deadlock"),
    "lanes": (f"  __syncwarp();\n{ARRIVES}", ARRIVES, "race|async proxy"),
    "places": ("+ lane % 8 * 16, 0, 0, 0, 0);", "+ lane % 4 * 16, 0, 0, 0, 0);", None),
    "rows": ("if (hidden >> row & 1)", "if (hidden >> row & 2)", None),
    "words": ("+ (first + row) * ROW_BYTES", "+ row * ROW_BYTES", None),
    "some": ("any |= hidden != 0;", "any |= hidden != 0 && first == 0;", "async proxy"),
}


def is_found(fault, spec, q, k, v, values):
    """With any of two seeds, a rule of the machine broken is reported; another fault gives a wrong result."""
    old, new, message = fault
    chosen = plan(spec, "sm_90a")
    source = render(chosen)
    assert old in source.text
    broken = type(source)(source.name, source.text.replace(old, new), source.arch, source.entries, source.options)
    for seed in (0, 1):
        if message:
            with pytest.raises(EmulationFault, match=message):
                emulate(chosen, broken, q, k, v, values, seed=seed)
        else:
            with pytest.raises((AssertionError, EmulationFault)):
                judge(spec, emulate(chosen, broken, q, k, v, values, seed=seed), q, k, v, **values)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    spec, q, k, v, values = case("kv_idx < lens[b]", {"block": {"n": 64}, "stages": 2})
    is_found(FAULTS[fault], spec, q, *poisoned(spec, q, k, v, values), values)


WHOLE = {  # of key tiles in which no mask is tested, what tells them from others
    "all": ("(work.whole(tile) ? V_FULL : V_ARRIVED)", "V_ARRIVED", "deadlock"),
    "none": ("(work.whole(tile) ? V_FULL : V_ARRIVED)", "V_FULL", "deadlock|phase|race"),
    "cleared": ("if (!work.whole(tile)) clear_tile", "clear_tile", "deadlock|phase"),
    "where": ("return (begin[1] <= tile && tile < end[1]);", "return begin[1] <= tile;", None),
}


def padded():
    """A call whose keys are seen in tiles of 64: whole, with a hole, whole, with an end, and none."""
    tensors = {"pad": TENSORS["pad"]}
    spec = Spec(head_dim=16, dtype="bfloat16", mask="pad[b, kv_idx]", tensors=tensors, block={"n": 64}, stages=2, outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, 4, 2, 70, 320)
    pad = np.arange(320) < np.array([[230], [150]])
    pad[0, 70:80] = False
    k, v = poisoned(spec, q, k, v, {"pad": pad})
    return spec, q, k, v, {"pad": pad}


def test_tiles_without_a_mask_pass_by_the_warp_that_clears():
    spec, q, k, v, values = padded()
    source = render(plan(spec, "sm_90a"))
    assert all(old in source.text for old, *_ in WHOLE.values())
    for seed in range(4):
        judge(spec, emulate(plan(spec, "sm_90a"), source, q, k, v, values, seed=seed), q, k, v, **values)


@pytest.mark.parametrize("fault", WHOLE)
def test_faults_of_whole_tiles(fault):
    is_found(WHOLE[fault], *padded())
