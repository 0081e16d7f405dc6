"""Keywords of other libraries are refused with what to write instead, in both doors."""

import numpy as np
import pytest

import flashgen
from flashgen.errors import CallError
from flashgen.runtime.arguments import check_names
from flashgen.runtime.habits import HABITS
from flashgen.spec import Spec

X = np.ones((1, 5, 2, 16), np.float32)


@pytest.mark.parametrize("word", HABITS)
@pytest.mark.parametrize("value", [None, True, 0.5, np.ones((5, 5), np.float32)], ids=["none", "flag", "number", "array"])
def test_a_keyword_that_nothing_reads_is_refused_with_what_to_write(word: str, value: object) -> None:
    attn = flashgen.compile({"head_dim": 16, "dtype": "float32", "mask": "causal & prefix(n)", "params": {"n": 3}}, backend="interpreter")
    for call in (flashgen.attention, attn):
        with pytest.raises(CallError, match=f"^unknown argument '{word}': ") as caught:
            call(X, X, X, **{word: value})
        assert str(caught.value).endswith(HABITS[word])


@pytest.mark.parametrize(("word", "meant"), [("scaale", "scale"), ("cpa", "cap"), ("laytou", "layout"), ("socre", "score")])
def test_a_typo_is_told_what_was_meant(word: str, meant: str) -> None:
    with pytest.raises(CallError, match=f"^unknown argument '{word}': did you mean '{meant}'"):
        flashgen.attention(X, X, X, score="cap * tanh(s / cap)", **{word: 3.0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "word", "lengths"),
    [
        ({"layout": "thd"}, "kv_lens", "cu_seqlens_q, cu_seqlens_k"),
        ({"layout": "thd", "cache": {"page": 16}}, "cu_seqlens_k", "cu_seqlens_q, kv_lens, block_table"),
        ({"cache": "contiguous"}, "block_table", "kv_lens"),
        ({"cache": {"page": 16}}, "seqused_k", "kv_lens, block_table"),
    ],
)
def test_a_spec_with_sequences_is_told_how_it_takes_them(place: dict[str, object], word: str, lengths: str) -> None:
    spec = Spec(head_dim=16, dtype="float32", **place)
    with pytest.raises(CallError, match=f"^unknown argument '{word}': of this spec, sequences are told by {lengths}$"):
        check_names(spec, {word: np.zeros(2, np.int32)})
