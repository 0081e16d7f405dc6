"""Gradients of packed sequences on a GPU, each beside the same sequence alone."""

from typing import Any

import numpy as np
import pytest

import flashgen
from tests.emulate.test_packed import alone, ends
from tests.emulate.test_packed_backward import GRADIENTS, one_by_one, own_part, spec_of
from tests.gpu.judge import down, replayed, up
from tests.plan.gradients import judge

LENGTHS = [(700, 700), (0, 5), (1, 1), (130, 200), (5, 0), (127, 64), (300, 1000)]
SPECS: dict[str, dict[str, Any]] = {
    "causal": {"head_dim": 128, "dtype": "bfloat16", "mask": "causal"},
    "window": {"head_dim": 64, "mask": "causal & window(100, 0)"},
    "gradients": {"head_dim": 64, **GRADIENTS},
    "deterministic": {"head_dim": 64, "deterministic": True},
    "two blocks": {"head_dim": {"qk": 192, "v": 128}, "dtype": "bfloat16", "mask": "causal"},
    "256": {"head_dim": 256, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("name", SPECS)
def test_as_each_sequence_alone(name: str) -> None:
    spec = spec_of(SPECS[name])
    cu_seqlens_q, cu_seqlens_k = (ends(x) for x in zip(*LENGTHS, strict=True))
    places, calls, whole, values = one_by_one(spec, cu_seqlens_q, cu_seqlens_k)
    rows, keys = places[3]
    whole.q[rows] = whole.do[rows] = np.nan
    whole.k[keys] = whole.v[keys] = np.inf
    values |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    sent = {one: up(x)[0] for one, x in (vars(whole) | values).items()}
    results = down(flashgen.compile(spec).backward(**sent))
    found = dict(zip(("dq", "dk", "dv", *(one.name for one in spec.with_grad)), results, strict=True))
    for b, (place, (call, own)) in enumerate(zip(places, calls, strict=True)):
        if b != 3:
            judge(alone(spec), own_part(found, *place), call, **own)


@pytest.mark.parametrize("name", ["causal", "deterministic", "two blocks"])
def test_a_graph_of_cupy_replays_with_other_lengths(name: str) -> None:
    """There are as many tokens in all: a captured call reads where sequences begin when it is replayed."""
    spec, calls, given = spec_of(SPECS[name]), [], []
    for lengths in ([130, 300, 70], [400, 0, 100]):
        places, own_calls, whole, values = one_by_one(spec, ends(lengths), ends(lengths))
        calls.append((places, own_calls))
        given.append(vars(whole) | values | {"cu_seqlens_q": ends(lengths), "cu_seqlens_k": ends(lengths)})
    for (places, own_calls), results in zip(calls, replayed(flashgen.compile(spec).backward, given), strict=True):
        found = dict(zip(("dq", "dk", "dv"), results, strict=True))
        for place, (call, own) in zip(places, own_calls, strict=True):
            judge(alone(spec), own_part(found, *place), call, **own)
