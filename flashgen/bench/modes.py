"""The modes of `flashgen bench`, a row each: its cases, and what it counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flashgen.bench.cases import LENGTHS, Case, case, grid
from flashgen.spec import Spec
from flashgen.spec.layout import TOKENS_FIRST

DECODE_LENGTHS, DECODE_BATCHES = (1024, 4096, 16384, 65536), (1, 16, 64)
_MOST_KEYS = 1 << 20  # of a decode case, all sequences together
Cases = Callable[[Sequence[Spec], Sequence[int]], list[Case]]


@dataclass(frozen=True)
class Mode:
    """A mode of measuring. `cases`: of specs at lengths, of either usual ones where none are given."""

    name: str
    unit: str
    cases: Cases
    about: str


def _forward(specs: Sequence[Spec], lengths: Sequence[int]) -> list[Case]:
    lengths = lengths or LENGTHS
    return [case(spec, length) for spec in specs for length in lengths] if specs else grid(lengths=lengths)


def _decode(specs: Sequence[Spec], lengths: Sequence[int]) -> list[Case]:
    """One query a sequence, which sees all keys; 32 query and 8 key/value heads of 128 columns, where no spec says otherwise."""
    usual = [Spec(head_dim=128, dtype="bfloat16", name="decode", group=4)]
    found = []
    for spec in specs or usual:
        for batch in DECODE_BATCHES:
            for length in lengths or DECODE_LENGTHS:
                if batch * length <= _MOST_KEYS:
                    one = case(spec, length, batch=batch, heads=32 if spec.group in (None, 1, 2, 4, 8) else None)
                    found.append(replace(one, queries=1))
    return found


def _packed(specs: Sequence[Spec], lengths: Sequence[int]) -> list[Case]:
    """Sequences one behind the other, 16k tokens in all, of one length and of several; a spec of another layout is taken with this one."""
    usual = [Spec(head_dim=d, dtype="bfloat16", name="causal", mask="causal") for d in (64, 128)]
    packed = [Spec(**(spec.to_json() | {"layout": TOKENS_FIRST})) for spec in specs or usual]
    alike = [case(spec, length) for spec in packed for length in lengths or LENGTHS]
    return alike + [replace(one, unequal=True) for one in alike if one.batch > 1]


def _backward(specs: Sequence[Spec], lengths: Sequence[int]) -> list[Case]:
    return [one.differentiated() for one in _forward(specs, lengths)]


MODES = {
    mode.name: mode
    for mode in (
        Mode("forward", unit="TFLOP/s", cases=_forward, about="as many queries as keys, 16k tokens in all"),
        Mode("decode", unit="GB/s", cases=_decode, about="one query a sequence; GB/s of k and v"),
        Mode(
            "packed",
            unit="TFLOP/s",
            cases=_packed,
            about="sequences one behind the other, as long as each other and not, beside the same in arrays of their own",
        ),
        Mode("backward", unit="TFLOP/s", cases=_backward, about="gradients alone, of what a forward gave"),
    )
}


def mode_of(case: Case) -> Mode:
    """The mode that a case is of."""
    return MODES["backward" if case.gradients else "decode" if case.queries else "packed" if case.spec.order.packed else "forward"]
