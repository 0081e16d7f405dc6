"""Gradients beside the float64 reference: at most three times the error of a standard backward in the same dtype, and a bit."""

from dataclasses import replace

import numpy as np

from flashgen.bench.standard_backward import standard_backward
from flashgen.emulate import Given
from flashgen.expr.language.bound import UNITS
from flashgen.expr.meaning.reference import before_output, reference
from flashgen.expr.meaning.reference_backward import backward
from tests.plan.agreement import SLACK, arrays

FEW = 16  # numbers of a gradient whose errors may all be small by chance
LARGE = 2.0**10  # lse from which on the rounding of scores is seen in weights


def given(spec, batch, heads, kv_heads, q_len, kv_len, *, seed=0, dlse=False, **values):
    """Arrays of a call and what the forward gives for them, by the reference."""
    q, k, v = arrays(spec, batch, heads, kv_heads, q_len, kv_len, seed)
    return completed(spec, q, k, v, seed=seed, dlse=dlse, **values)


def completed(spec, q, k, v, *, seed=0, dlse=False, **values):
    """The same for these q, k, v."""
    random = np.random.default_rng(seed + 1)
    lse, o = reference(spec, q, k, v, **values)[1], before_output(spec, q, k, v, **values)
    do = random.standard_normal(o.shape).astype(spec.out_element.numpy)
    of_lse = random.standard_normal(lse.shape).astype(np.float32) if dlse and spec.softmax.normalized else None
    lse = np.float32(lse) if spec.softmax.normalized else None
    return Given(q=q, k=k, v=v, o=o.astype(spec.out_element.numpy), do=do, lse=lse, dlse=of_lse)


def judge(spec, found, given, **values):
    """The error rule of each gradient."""
    true = backward(spec, given.q, given.k, given.v, given.do, given.dlse, **values)
    plain = [standard_backward(spec, each, values) for each in _as_rounded(spec, given)]
    asked = {one.name: true.values[one.name] for one in spec.with_grad}
    for name, right in {"dq": true.q, "dk": true.k, "dv": true.v, **asked}.items():
        assert found[name].dtype == (np.float32 if name in asked else spec.element.numpy)
        assert found[name].shape == right.shape
        assert np.isfinite(np.float64(found[name])).all(), name
        off, *errors = (np.abs(np.float64(x) - right).max(initial=0) for x in (found[name], *(x[name] for x in plain)))
        usual = max(errors)
        usual = max([usual, *_of_others(spec, name, given, values)]) if name in asked and right.size <= FEW else usual
        assert off <= 3 * usual + SLACK[spec.dtype] * max(1, np.abs(right).max(initial=0)), (name, off, usual)


def _as_rounded(spec, given):
    """Gives what is given, and where scores are large, the same with keys that make of each another number that float32 may know it by."""
    yield given
    if given.lse is not None and np.abs(given.lse[np.isfinite(given.lse)]).max(initial=0) >= LARGE:
        k = given.k.astype(np.float32)
        for seed in range(3):
            rows = [1 if axis == spec.order.axis("d") else n for axis, n in enumerate(k.shape)]
            yield replace(given, k=k * (1 + UNITS * np.random.default_rng(seed).choice([-1, 1], rows).astype(np.float32)))


def _of_others(spec, name, given, values):
    """The errors of a gradient of few numbers for other do: those of one alone are small by chance."""
    for seed in range(8):
        do = np.random.default_rng(seed).permuted(given.do.astype(np.float32), axis=-1).astype(given.do.dtype)
        other = replace(given, do=do)
        true = backward(spec, other.q, other.k, other.v, other.do, other.dlse, **values)
        yield np.abs(standard_backward(spec, other, values)[name] - true.values[name]).max(initial=0)
