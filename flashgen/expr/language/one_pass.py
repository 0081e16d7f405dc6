"""Advice for names that the language has not: of what one pass over the keys cannot have, and of what is written in other words."""

from flashgen.errors import did_you_mean
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.masks import MASKS
from flashgen.expr.language.scope import SUM, Scope

ROWS = "the sum of a row is known after its last key. Take two calls: outputs: [o, lse], and then with that lse as a tensor `row_lse` "
TWO_CALLS = f"{ROWS}softmax: none and score: min(exp(s - row_lse[b, h, q_idx]), limit), or any other function of the weight"
OWN = "a score sees only its own s, and nothing of other keys'"
SHAPES = (
    f"{OWN}: f(s) / sum f(s) is the softmax of score: log(f(s)); weights of another shape, as entmax, have no running sum, "
    "and want their scores in memory"
)
MIXED = f"{OWN}: what mixes scores of neighbours or of heads (convolutions, talking heads) wants q k^T in memory"

LEFT = "output is of a row whose keys are all taken in: it reads o, b, h, hk, q_idx, v_idx, q_len, kv_len, params and tensors"
COLUMNS = "output is of one number of o, and of no other column: a norm or a sum over columns is of o, after the call"
OF_ROWS = "outputs: [o, lse] returns what is known of a row beside o: compute with it after the call"
LEAVING = "o is there once all keys are taken in: output reads it, and v_idx, its column"

HINTS = {
    **dict.fromkeys(("softmax", "entmax", "sparsemax", "softmax1", "normalize"), SHAPES),
    **dict.fromkeys(("mean", "cumsum", "cumprod", "sort", "topk", "argmax", "norm", "dropout", "conv", "roll", "shift"), OWN),
    **dict.fromkeys(("p", "weight", "weights", "prob", "attn", "lse", "l", "m"), TWO_CALLS),
}


ONLY = (
    "only score reads s. A key is hidden by its own with score: where(s > 0.1, s, log(0.0)); what a weight becomes by it after the "
    "softmax takes two calls: outputs: [o, lse], and then softmax: none with that lse as a tensor"
)
OF_OUTPUT = {
    **dict.fromkeys(("s", "kv_idx"), LEFT),
    **dict.fromkeys(("mean", "norm", "layernorm", "rmsnorm", "rms_norm", "layer_norm", "softmax", "normalize"), COLUMNS),
    **dict.fromkeys(("lse", "l", "m", "entropy"), OF_ROWS),
}
OF_KEYS = HINTS | {"s": ONLY}
IN_OTHER_WORDS = {
    **dict.fromkeys(("clip", "clamp"), "write min(max(x, low), high)"),
    **dict.fromkeys(("maximum", "fmax", "fmaxf"), "write max(a, b)"),
    **dict.fromkeys(("minimum", "fmin", "fminf"), "write min(a, b)"),
    **dict.fromkeys(("pow", "power"), "write x ** y"),
    **dict.fromkeys(("inf", "nan"), "minus infinity is log(0.0) in a score; the mask hides keys at less cost"),
    "float": "an integer becomes a float where it meets one, as in 1.0 * q_idx; minus infinity is log(0.0) in a score",
    "relu": "write max(x, 0.0)",
    "ceil": "write -floor(-x)",
    "log1p": "write log(1.0 + x)",
    "log2": "write log(x) / log(2.0)",
    "rsqrt": "write 1.0 / sqrt(x)",
    "square": "write x ** 2",
}


def of_name(name: str, scope: Scope) -> str:
    """The advice for a name that a scope does not know."""
    if name in scope.below:
        return f"a let reads those above it, and {name} is not among them"
    if name == "sum":
        return SUM
    if "hq" in scope.names:
        advice = did_you_mean(name, scope.names, 0.7)
        return advice + "; an array binds a name of your own where it is an axis alone" * advice.startswith("known")
    return _of(name, scope) or (LEAVING if name in ("o", "v_idx") else did_you_mean(name, scope.known))


def of_function(name: str, scope: Scope) -> str:
    """The advice for a function that a scope does not know."""
    return _of(name, scope) or did_you_mean(name, [*FUNCTIONS, "sum", *(MASKS if scope.masks else ())], 0.7)


def _of(name: str, scope: Scope) -> str:
    """The advice for a name that stands for something elsewhere; empty where it stands for nothing."""
    found = OF_OUTPUT if "o" in scope.names else OF_KEYS if "kv_idx" in scope.names else {"s": "only score reads s"}
    return found.get(name, "") or IN_OTHER_WORDS.get(name, "")
