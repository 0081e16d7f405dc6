"""The gradients of q and k before their norm and rotary embedding, from those of what they become: of all sequences of a call."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.meaning.embedding import embedding_gradient
from flashgen.expr.meaning.sequences import Sequence, sequences

if TYPE_CHECKING:
    from flashgen.spec import Spec

Array = NDArray[Any]


def before_embedding(
    spec: "Spec", given: Mapping[str, Array], gradients: dict[str, Array], values: Mapping[str, Any], learn: Callable[[str, Array], None]
) -> None:
    """Brings gradients of q and k back, in place. `given`: q and k [B, H, S, D] as a call has them; `gradients`: dq and dk, likewise;
    `learn` takes what each row makes of the gradient of a norm's learned columns, by the name of their tensor."""
    if not spec.embedded:
        return
    for one in sequences(spec, (len(given["q"]), given["q"].shape[2], given["k"].shape[2]), values):
        known = one.read(spec, values) | {"b": one.b, "q_len": one.q_len, "kv_len": one.kv_len}
        for role in spec.embedded:
            at, d = own_part(one, role), gradients[f"d{role}"]
            x, rows = given[role][at].astype(d.dtype), np.arange(d[at].shape[1])
            d[at], learned = embedding_gradient(spec, role, x, d[at], rows, known)
            if learned is not None and (norm := spec.norm_of(role)) and (name := norm.columns(role)):
                learn(name, learned)


def own_part(one: Sequence, role: str) -> tuple[Any, ...]:
    """The part of a sequence in an array [B, H, S, D] of queries or of keys."""
    return (one.keys_at, slice(None), one.keys) if role == "k" else (one.at, slice(None), one.rows)
