"""The named masks, each an expression of the language; nothing downstream knows their names."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NamedMask:
    """A mask by name. Its parameters are integers of at least `least`, or names of int32 tensors [b, kv_len]."""

    text: str
    parameters: tuple[str, ...] = ()
    kind: Literal["int", "tensor"] = "int"
    least: int | None = None


# A query stands at the position q_idx + kv_len - q_len: the last query beside the last key (bottom-right).
MASKS = {
    "full": NamedMask("True"),
    "causal": NamedMask("kv_idx <= q_idx + kv_len - q_len"),
    "causal_top_left": NamedMask("kv_idx <= q_idx"),
    # -1: no limit on that side.
    "window": NamedMask(
        "((left < 0) | (kv_idx >= q_idx + kv_len - q_len - left)) & ((right < 0) | (kv_idx <= q_idx + kv_len - q_len + right))",
        ("left", "right"),
        least=-1,
    ),
    "prefix": NamedMask("kv_idx < n", ("n",)),
    "chunk": NamedMask("kv_idx // n == (q_idx + kv_len - q_len) // n", ("n",), least=1),
    "document": NamedMask("ids[b, kv_idx] == ids[b, q_idx + kv_len - q_len]", ("ids",), "tensor"),
}
