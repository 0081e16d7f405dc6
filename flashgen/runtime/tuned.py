"""The candidates that `flashgen tune` found fastest: a file a card, architecture, spec and class of lengths, beside compiled kernels."""

import errno
import hashlib
import json
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flashgen import store
from flashgen.arch import Arch
from flashgen.errors import BackendError
from flashgen.plan import Program, candidates, plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.search import LENGTHS, LONG
from flashgen.runtime import device
from flashgen.spec import Spec

FORWARD, BACKWARD = "forward", "backward"  # the parts of a spec that are tuned apart
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # the last two: nor can there be


def length_class(keys: int) -> int:
    """The length that plans for so many keys are made for."""
    return LENGTHS[min(bisect_left(LENGTHS, keys), len(LENGTHS) - 1)]


def rows_class(rows: int) -> int:
    """The same of a backward and its query rows."""
    return length_class(rows) if rows <= LENGTHS[-1] else LONG


def of_sequence(sizes: Sizes, packed: bool) -> int:
    """The keys of a sequence: as many as arrays have place for, or on average where they lie one behind the other."""
    return -(-sizes.kv_len // max(1, sizes.batch)) if packed else sizes.kv_len


def planned(spec: Spec, arch: Arch, length: int = LENGTHS[-1], card: str | None = None) -> Program:
    """The plan for a card, by default the current one: as tuned there, else the cost model's. Raises PlanError, SpecError."""
    card = card or (None if device.missing() else device.current().name)
    found = choice(spec, arch, length, card) if card else None
    return plan(spec, arch.name, 0, length, found)


def planned_backward(spec: Spec, arch: Arch, length: int = LENGTHS[-1], card: str | None = None, head_shares: int = 1) -> Program:
    """The same of the backward; `head_shares` as of `flashgen.plan.backward.plan_backward`."""
    from flashgen.plan.backward import plan_backward  # which no forward needs

    card = card or (None if device.missing() else device.current().name)
    found = choice(spec, arch, min(length, LENGTHS[-1]), card, BACKWARD) if card else None
    if found and length == LONG and found not in _candidates(BACKWARD)(spec, arch, length):  # it was tuned for shorter ones
        found = None
    further: dict[str, Any] = ({"candidate": found} if found else {}) | ({"head_shares": head_shares} if head_shares > 1 else {})
    return plan_backward(spec, arch, length=length, **further)


def choice(spec: Spec, arch: Arch, length: int, card: str, part: str = FORWARD) -> str | None:
    """The candidate of a part of the spec that was kept."""
    path = entry(spec, arch, length, card, part)
    try:
        found = str(json.loads(path.read_bytes())["choice"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno in _NOTHING_THERE:
            return None
        _warn(f"a tuned choice cannot be read: {path} ({error}). Run flashgen tune again")
        return None
    if found in _candidates(part)(spec, arch, length):
        return found
    _warn(f"a tuned choice is none of the planner's candidates any more: {found} in {path}. Run flashgen tune again")
    return None


def _candidates(part: str) -> Callable[[Spec, Arch, int], tuple[str, ...]]:
    """The function that gives the candidates of a part of a spec."""
    if part == FORWARD:
        return candidates
    from flashgen.plan.backward import backward_candidates

    return backward_candidates


def keep(spec: Spec, arch: Arch, length: int, card: str, found: Mapping[str, Any], part: str = FORWARD) -> None:
    """Keeps a choice with what it was measured by, in place of what was there. Raises BackendError where nothing can be written."""
    path = entry(spec, arch, length, card, part)
    try:
        store.put(path, json.dumps({"card": card, "arch": arch.name, "length": length, **found}, indent=1))
    except OSError as error:
        raise BackendError(f"cannot keep what was tuned in {path.parent} ({error.strerror}): set FLASHGEN_CACHE_DIR") from None


def entry(spec: Spec, arch: Arch, length: int, card: str, part: str = FORWARD) -> Path:
    """The file of a choice; specs that differ by name alone share it."""
    said = {key: value for key, value in spec.to_json().items() if key != "name"}
    digest = hashlib.sha256(
        json.dumps([said, arch.name, length, *([part] if part != FORWARD else [])], sort_keys=True).encode()
    ).hexdigest()[:32]
    return store.root() / "tuned" / card.replace(" ", "_").replace("/", "_") / f"{digest}.json"


@cache
def _warn(text: str) -> None:
    """Warns once for each text."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)
