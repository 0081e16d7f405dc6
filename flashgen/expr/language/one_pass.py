"""Messages for what one pass over the keys cannot have: why, and what people do instead."""

ROWS = "the sum of a row is known after its last key. Take two calls: outputs: [o, lse], and then with that lse as a tensor `row_lse` "
TWO_CALLS = f"{ROWS}softmax: none and score: min(exp(s - row_lse[b, h, q_idx]), limit), or any other function of the weight"
OWN = "a score sees only its own s, and nothing of other keys'"
SHAPES = (
    f"{OWN}: f(s) / sum f(s) is the softmax of score: log(f(s)); weights of another shape, as entmax, have no running sum, "
    "and want their scores in memory"
)
MIXED = f"{OWN}: what mixes scores of neighbours or of heads (convolutions, talking heads) wants q k^T in memory"

LEFT = "output is of a row whose keys are all taken in: it reads o, b, h, hk, q_idx, v_idx, q_len, kv_len, params and tensors"
LEAVING = "o is there once all keys are taken in: output reads it, and v_idx, its column"

HINTS = {
    **dict.fromkeys(("softmax", "entmax", "sparsemax", "softmax1", "normalize"), SHAPES),
    **dict.fromkeys(("mean", "cumsum", "cumprod", "sort", "topk", "argmax", "norm", "dropout", "conv", "roll", "shift"), OWN),
    **dict.fromkeys(("p", "weight", "weights", "prob", "attn", "lse", "l", "m"), TWO_CALLS),
}


def elsewhere(name: str, leaving: bool) -> str:
    """The advice for a word that `output` alone reads, or that it does not read; empty for other names."""
    if leaving:
        return LEFT if name in ("s", "kv_idx") else ""
    return LEAVING if name in ("o", "v_idx") else "only score reads s" if name == "s" else ""


def hint(name: str, otherwise: str) -> str:
    """The advice for a name that stands for something of other keys; `otherwise` where it stands for nothing of the kind."""
    return HINTS.get(name, otherwise)
