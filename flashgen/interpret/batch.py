"""Sequences of a call that are interpreted at once, and what their queries and keys become before they meet."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.meaning.embedding import embedded
from flashgen.expr.meaning.sequences import Sequence, sequences
from flashgen.plan.program import Program
from flashgen.spec import Spec

Array = NDArray[Any]


def by_sequence(x: Array, indices: Array) -> Array:
    """An array that is found by the indices of sequences: of sequences one behind the other, each lies in the only one there is."""
    return np.broadcast_to(x, (int(indices.max()) + 1, *x.shape[1:])) if len(x) == 1 else x


def alike(program: Program, q: Array, k: Array, values: Mapping[str, Any]) -> Iterator[tuple[Array, Sequence]]:
    """The indices of sequences that lie alike in their arrays, and one of them."""
    found: dict[tuple[int, ...], list[Sequence]] = {}
    for each in sequences(program.spec, (len(q), q.shape[2], k.shape[2]), values):
        found.setdefault((each.rows.start, each.rows.stop, each.keys.start, each.keys.stop), []).append(each)
    for some in found.values():
        yield np.array([each.b for each in some]), some[0]


def embedded_parts(spec: Spec, parts: Mapping[str, Array], indices: Array, known: Mapping[str, Any]) -> dict[str, Array]:
    """q and k [B, H, S, D] after the norm and the rotary embedding, where there is one."""
    found = {}
    for role in spec.embedded:
        x = parts[role].astype(np.float32)
        for b in indices.tolist():
            x[b] = embedded(spec, role, x[b], np.arange(x.shape[2]), {**known, "b": b})
        found[role] = x.astype(spec.element.numpy)
    return found
