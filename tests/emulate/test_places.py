"""The place that o leaves from and how many tiles of q are in flight: each way with query tiles of many keys, of few and of none."""

import pytest

from flashgen.emulate import emulate
from flashgen.plan import candidates, plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge_of

SHAPES = [(230, 333), (300, 130), (129, 0)]  # queries, keys; causal, so that with more queries some see none
PLACES = {"own": "o staged", "keys": "o in place of keys", "queries": "8 warps", "ahead": "2 q tiles"}


@pytest.mark.parametrize(("place", "head_dim"), [("own", 64), ("keys", 64), ("keys", 256), ("queries", 256), ("ahead", 64)])
def test_places(place, head_dim):
    spec = Spec(dtype="bfloat16", head_dim=head_dim, mask="causal", outputs=["o", "lse"])
    chosen = plan(spec, "sm_90a", candidate=next(text for text in candidates(spec, "sm_90a") if text.endswith(PLACES[place])))
    assert (chosen.attention.pipeline.output_place, chosen.attention.pipeline.query_stages) == (
        ("own", 2) if place == "ahead" else (place, 1)
    )
    source = render(chosen)
    for q_len, kv_len in SHAPES:
        q, k, v = arrays(spec, 1, 2, 1, q_len, kv_len)
        judged = judge_of(spec, q, k, v)
        for seed in range(2):
            found = emulate(chosen, source, q, k, v, seed=seed)
            judged(found)
