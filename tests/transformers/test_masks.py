"""Mask functions of transformers, where it is installed: what a query sees by the expression is what it sees by `sdpa_mask`."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import masking_utils as known  # noqa: E402
from transformers.models.gemma3.modeling_gemma3 import _bidirectional_window_overlay  # noqa: E402

from flashgen.torch import attention  # noqa: E402
from flashgen.transformers.mask import mask  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would compile a kernel for each, and expressions are the same")
POSITIONS = 12
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] * 3 + [1] * 4 + [2] * 5])
IMAGES = torch.tensor([[-1] * 3 + [0] * 4 + [-1] * 5, [0] * 4 + [-1] * 2 + [1] * 4 + [-1] * 2])
LEFT, RIGHT = (torch.ones(2, POSITIONS, dtype=torch.bool) for _ in range(2))
LEFT[0, :5] = RIGHT[1, 7:] = False
causal, window = known.causal_mask_function, known.sliding_window_overlay(4)
FUNCTIONS = {
    "causal": causal,
    "window": known.sliding_window_causal_mask_function(4),
    "chunks": known.chunked_causal_mask_function(4, torch.tensor([5, 0])),
    "both ways": known.bidirectional_mask_function,
    "window both ways": known.sliding_window_bidirectional_mask_function(3),
    "documents": known.and_masks(causal, known.packed_sequence_mask_function(DOCUMENTS)),
    "ids beyond 32 bits": known.packed_sequence_mask_function(DOCUMENTS << 40),
    "images": known.or_masks(causal, known.blockwise_overlay(IMAGES)),
    "images in a window": known.and_masks(window, known.or_masks(causal, known.blockwise_overlay(IMAGES))),
    "all of EmbeddingGemma": known.or_masks(causal, lambda *_: torch.tensor(True)),
    "its window": known.and_masks(window, known.or_masks(causal, _bidirectional_window_overlay(4))),
}
PLACES = [(12, 12, 0, 0), (1, 12, 11, 0), (3, 8, 9, 4), (5, 12, 2, 0)]  # queries, keys, and where each begin


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("padding", [None, LEFT, RIGHT], ids=["", "left", "right"])
def test_what_is_seen(name, padding):
    for queries, keys, q_offset, kv_offset in PLACES:
        found = mask(2, queries, keys, q_offset, kv_offset, FUNCTIONS[name], padding)
        q, k, v = torch.zeros(2, queries, 1, 16), torch.zeros(2, keys, 1, 16), torch.eye(keys).repeat(2, 1, 1)[:, :, None]
        weights = attention(q, k, v, found.text, **found.values)
        places = {"q_offset": q_offset, "kv_offset": kv_offset}
        want = known.sdpa_mask(
            2, queries, keys, mask_function=FUNCTIONS[name], attention_mask=padding, allow_is_causal_skip=False, use_vmap=True, **places
        )
        assert torch.equal(weights.transpose(1, 2) > 0, want.expand(2, 1, queries, keys))
