"""Maxima that rise in one thread of a warp, scores that are large in one row of it: a step left out or done otherwise is found."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, emulate
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge

QUERIES, KEYS, TILE = 140, 256, 64
UNIT = 2.0**30
PAIRS = {"m": {"shape": ["q_len", "kv_len"], "dtype": "float32"}}
ROWS = {"m": {"shape": ["q_len"], "dtype": "float32"}}


def jumps(size, rows):
    """In these rows of every 16, at one key of some tiles, a number above those of all tiles seen before, by this size."""
    random = np.random.default_rng(3)
    m = np.zeros((QUERIES, KEYS), np.float32)
    for row in range(QUERIES):
        for tile in range(KEYS // TILE):
            if row % 16 in rows and random.random() < 0.5:
                m[row, tile * TILE + random.integers(TILE)] = size * (KEYS // TILE - tile)
    return m


def biases(**rows):
    """A number at these rows of every 16: 3 and 11, 5 and 13 are those of one thread."""
    m = np.zeros(QUERIES, np.float32)
    for row, bias in rows.items():
        m[int(row.removeprefix("row")) :: 16] = bias
    return m


RISING = jumps(300, range(16))
RISING[::3, -TILE:] = -np.inf  # no key in the tile that is seen first
CASES = {  # what the spec says, and m: with PAIRS of a query and a key, with ROWS of a query
    "rising": ({"tensors": PAIRS}, RISING),
    "row-5": ({"tensors": PAIRS}, jumps(300, [5])),
    "row-13": ({"tensors": PAIRS}, jumps(300, [13])),
    "lazily": ({"tensors": PAIRS, "schedule": {"rescale": "lazy"}}, jumps(300, [13])),
    "far": ({"tensors": PAIRS}, jumps(3e10, [3, 11]) + biases(row5=-6e10, row6=-7e10, row7=-8e10, row14=-9e10)[:, None]),
    "all-far": ({"tensors": PAIRS}, np.linspace(-6e10, -9e10, QUERIES, dtype=np.float32)[:, None].repeat(KEYS, 1)),
    "large-row": ({"tensors": ROWS}, biases(row5=-1e8)),
    "large-rows": ({"tensors": ROWS}, biases(row3=-3e7, row11=7e6)),
    "cancelling": ({"tensors": ROWS, "scale": UNIT}, None),
}
KERNELS = {"sm_90a": ("sm_90a", {"m": 128, "n": TILE}), "sm_80": ("sm_80", {"m": 64, "n": TILE})}

VOTE, LARGE_VOTE = "if (__any_sync(~0u, raised)) {", "if (!__any_sync(~0u, large)) return;"
RISES = "(top[r] - rows.max[r]) * variant.to_log2() > RESCALE_THRESHOLD"
BASE, BIAS = "fabsf(base[r]) * variant.to_log2()", "fmaxf(fabsf(base[r]), fabsf(bias[r])) * variant.to_log2()"
FACTORS = "factor[0] != 1.0f || factor[1] != 1.0f"
NEAR = "near(base[r], bias[r], top[r], variant)"
SUBTRACTED = "subtract(s, r, large ? near : 0.0f);"
FAULTS = {  # the case that shows it, what stands in its text, and what is planted
    "no vote": ("row-5", VOTE, "if (false) {"),
    "one lane votes": ("row-5", VOTE, "if (__any_sync(~0u, raised && threadIdx.x % 32 == 0)) {"),
    "one lane of a row votes": ("row-5", VOTE, "if (__any_sync(~0u, raised && threadIdx.x % 4 == 0)) {"),
    "each for itself": ("row-5", VOTE, "if (raised) {"),
    "all have to see it": ("row-5", VOTE, "if (__all_sync(~0u, raised)) {"),
    "falls": ("rising", RISES, RISES.replace(">", "<")),
    "rises in the second row": ("row-5", f"raised |= {RISES}", f"raised = {RISES}"),
    "rises in the first row": ("row-13", f"raised |= {RISES}", f"raised |= r == 0 && {RISES}"),
    "rises by more": ("lazily", RISES, f"{RISES} * 100.0f"),
    "the largest of two columns": ("row-5", "return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }", "return x; }"),
    "o stays": ("rising", "rescale_rows(o", "if (false) rescale_rows(o"),
    "o stays in half of the warps": ("rising", "rescale_rows(o", "if (threadIdx.x / 32 % 2) rescale_rows(o"),
    "o stays in a row": ("rising", "o[i] *= factor[i / 2 % 2];", "if (i & 2) o[i] *= factor[1];"),
    "o by the other row": ("rising", "o[i] *= factor[i / 2 % 2];", "o[i] *= factor[1 - i / 2 % 2];"),
    "o lazily, by a row": ("lazily", FACTORS, "factor[0] != 1.0f"),
    "o lazily, by a lane": ("lazily", FACTORS, f"threadIdx.x % 32 == 0 && ({FACTORS})"),
    "l stays": ("rising", "rows.sum[r] = rows.sum[r] * rescale + sum;", "rows.sum[r] += sum;"),
    "the maximum stays": ("rising", "  rows.max[r] = largest;\n", ""),
    "before the first key": ("rising", "{ return max == -INF ? 0.0f : max; }", "{ return max; }"),
    "large is no question": ("far", f" || {BASE} >= LARGE", ""),
    "large below": ("all-far", "magnitude >= LARGE", "magnitude < LARGE"),
    "no vote of large": ("far", LARGE_VOTE, "return;"),
    "one lane votes of large": ("far", LARGE_VOTE, "if (!__any_sync(~0u, large && threadIdx.x % 32 == 0)) return;"),
    "all have to be large": ("far", LARGE_VOTE, "if (!__all_sync(~0u, large)) return;"),
    "nothing subtracted": ("far", SUBTRACTED, ""),
    "one row subtracted": ("far", SUBTRACTED, f"if (r == 0) {SUBTRACTED}"),
    "the base of the other row": ("far", "subtract_large(s, r, base[r],", "subtract_large(s, r, base[0],"),
    "subtracted twice": ("far", "if (large) reference = 0.0f;", ""),
}
OF_SM_90A = {
    "o stays in the last warpgroup": ("rising", "rescale_rows(o, rescale)", "if (warpgroup < WARPGROUPS - 1) rescale_rows(o, rescale)"),
    "a large bias is no question": ("cancelling", f" || {BIAS} >= LARGE", ""),
    "no vote of a large bias": ("large-row", LARGE_VOTE, "return;"),
    "a large bias of the second row": ("large-row", f"{BIAS}, reference[r]", f"r * {BIAS}, reference[r]"),
    "large is a sum": ("cancelling", BIAS, BASE),
    "the bias of the other row": ("large-rows", NEAR, NEAR.replace("bias[r]", "bias[1 - r]")),
    "a sum less its bias": ("large-rows", "top + bias == base ? top + (bias - bias) : ", ""),
}


def case(kernel, name):
    arch, block = KERNELS[kernel]
    said, m = CASES[name]
    at = "m[q_idx, kv_idx]" if said["tensors"] is PAIRS else f"m[q_idx] * (kv_idx - {KEYS - 1})"  # which follows the key tile
    spec = Spec(head_dim=16, dtype="float16", score=f"s + {at}", block=block, outputs=["o", "lse"], **said)
    q, k, v = arrays(spec, 1, 1, 1, QUERIES, KEYS)
    k[0, -32:, 0] = np.vstack([8 * np.eye(16), -8 * np.eye(16)])  # the tile seen first has the largest products: nothing else rises
    if m is None:  # products are what biases take back, whatever the key
        q[..., 1:], q[..., 0] = 0, q[..., 0].round()
        k[0, :, 0, 0] = np.arange(KEYS) - (KEYS - 1)
        m = -UNIT * q[0, :, 0, 0].astype(np.float32)
    elif said["tensors"] is ROWS:
        q = 150 * q  # what float32 loses of scores with a large bias is no exponent
    chosen = plan(spec, arch)
    return spec, chosen, render(chosen), (q, k, v), {"m": m}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_nothing_to_find(kernel, name):
    spec, chosen, source, arrays, values = case(kernel, name)
    judge(spec, emulate(chosen, source, *arrays, values), *arrays, **values)


@pytest.mark.parametrize(("fault", "kernel"), [
    *((fault, list(KERNELS)[i % 2]) for i, fault in enumerate(FAULTS)),
    *((fault, "sm_90a") for fault in OF_SM_90A),
])  # fmt: skip
def test_faults(fault, kernel):
    name, old, new = (FAULTS | OF_SM_90A)[fault]
    spec, chosen, source, arrays, values = case(kernel, name)
    assert old in source.text
    broken = replace(source, text=source.text.replace(old, new))
    with pytest.raises((AssertionError, EmulationFault)):
        judge(spec, emulate(chosen, broken, *arrays, values), *arrays, **values)
