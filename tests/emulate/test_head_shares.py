"""Gradients whose blocks share the query heads of a key tile, on the emulator under its race checker; and how many blocks a call gets."""

import pytest

from flashgen.arch import by_name
from flashgen.emulate import emulate_backward
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.head_shares import head_shares
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_backward import tensor
from tests.emulate.test_packed import alone, ends
from tests.emulate.test_packed_backward import one_by_one, own_part, spec_of
from tests.plan.gradients import given, judge

SLOPES = {"slopes": {"shape": ["hq"], "dtype": "float32", "grad": True}}
CASES = {
    "causal": (2, {"head_dim": 64, "mask": "causal & (kv_idx >= 140)"}, (2, 5, 1, 150, 270)),  # 2 and 3 heads; a tile that nobody sees
    "gradients": (4, {"head_dim": {"qk": 40, "v": 72}, "score": "s + slopes[h] * kv_idx", "tensors": SLOPES}, (1, 8, 2, 90, 140)),
    "turns": (2, {"head_dim": 128, "mask": "causal", "deterministic": True}, (1, 4, 2, 140, 270)),
    "two blocks": (2, {"head_dim": {"qk": 136, "v": 72}, "mask": "causal"}, (1, 4, 2, 100, 200)),
}


@pytest.mark.parametrize("case", CASES)
def test_beside_the_reference(case):
    shares, said, shape = CASES[case]
    spec = Spec(dtype="bfloat16", backward=True, **said)
    values = {t.name: 0.02 * tensor(shape[1]) for t in spec.tensors}
    program = plan_backward(spec, "sm_90a", head_shares=shares)
    after = ["finish_queries"] if program.main.finish == "after" else []
    assert [kernel.entry for kernel in program.kernels] == ["delta", "backward", *after, "finish_keys"]
    arrays = given(spec, *shape, **values)
    judge(spec, emulate_backward(program, render(program), arrays, values), arrays, **values)


def test_packed_sequences():
    """Some are empty, some have fewer rows than a tile."""
    spec = spec_of({"mask": "causal"})
    lengths = ends([0, 150, 7, 40])
    places, calls, whole, values = one_by_one(spec, lengths, lengths)
    program = plan_backward(spec, "sm_90a", head_shares=2)
    found = emulate_backward(program, render(program), whole, values | {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths})
    for place, (call, own) in zip(places, calls, strict=True):
        judge(alone(spec), own_part(found, *place), call, **own)


def shares(mask="causal", head_dim=128, **sizes):
    program = plan_backward(Spec(head_dim=head_dim, dtype="bfloat16", mask=mask, backward=True), by_name("sm_90a"))
    length = sizes.pop("length")
    return head_shares(program, Sizes(**{"batch": 1, "q_len": length, "kv_len": length, "heads": 32, "kv_heads": 8} | sizes), {})


def test_few_key_tiles_or_unlike_ones_are_shared():
    assert shares(length=2048) > 1
    assert shares(length=8192) > 1  # the last section is of one head
    assert shares(length=2048, head_dim=256) > 1
    assert shares(length=2048, heads=8) == 1  # nobody to share with
    assert shares(length=2048, batch=32) == 1  # a card is full
    assert shares(length=2048, mask="full", batch=4) == 1
