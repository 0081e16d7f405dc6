"""A spec's expressions ready for a kernel: proved, and constants folded."""

from dataclasses import replace
from typing import TYPE_CHECKING

from flashgen.dtypes import float32_fault
from flashgen.errors import SpecError
from flashgen.expr.language.fold import fold
from flashgen.expr.language.nodes import V_IDX, Name, names
from flashgen.expr.language.read import Expressions, written
from flashgen.expr.language.reads import indices
from flashgen.expr.meaning.evaluate import evaluate
from flashgen.expr.prove.claims import prove
from flashgen.expr.prove.decided import decided

if TYPE_CHECKING:
    from flashgen.spec import Spec


def lower(spec: "Spec") -> Expressions:
    """The expressions of a spec, constants folded, named masks replaced by what they stand for.

    >>> from flashgen.spec import Spec
    >>> from flashgen.expr.language.text import show
    >>> show(lower(Spec(head_dim=64, dtype="bfloat16", mask="causal & window(127, 0)")).mask)
    '(kv_idx <= q_idx + kv_len - q_len) & ((kv_idx >= q_idx + kv_len - q_len - 127) & (kv_idx <= q_idx + kv_len - q_len))'

    Raises SpecError, at the column of the mistake.
    """
    parsed, claims = written(spec)
    for tensor in spec.tensors:
        at = spec.geometry.joined(tensor.shape)
        if at is not None and any(index != Name("b", "int") for index in indices(spec)[tensor.name][at]):
            what = f"{tensor.name} is read at another sequence than b, where the axes b and {tensor.shape[at + 1]} are one"
            raise SpecError(what, spec.name_position("tensors", tensor.name), "of packed sequences each reads its own rows: [b, ...]")
    requires = dict.fromkeys(requirement for scope, of_text in claims for requirement in prove(of_text, scope))
    if spec.backward:
        from flashgen.expr.meaning.gradient import derivatives  # which no forward needs

        derivatives(spec)  # or an error, where one is missing
    sink = None if parsed.sink is None else fold(parsed.sink)
    if spec.scale and not names(parsed.scale) and (fault := float32_fault(scale := float(evaluate(parsed.scale, {})))):
        raise SpecError(f"scale is {scale}: {fault}", spec.position("scale"), "write a number, or an expression of d and params")
    score, mask = (decided(fold(node), spec.params) for node in (parsed.score, parsed.mask))
    weight, output = (None if node is None else decided(fold(node), spec.params) for node in (parsed.weight, parsed.output))
    _check_columns(spec)
    return replace(parsed, score=score, mask=mask, requires=tuple(requires), sink=sink, weight=weight, output=output)


def _check_columns(spec: "Spec") -> None:
    """Raises SpecError for an axis that v_idx indexes and that has other entries than o has columns, or 1."""
    columns = spec.head_dim.v
    for tensor in spec.tensors:
        for i, read_at in enumerate(indices(spec)[tensor.name]):
            if Name(V_IDX, "int") in read_at and tensor.shape[i] not in (1, columns):
                what = f"v_idx runs over the {columns} columns of o, and this axis of {tensor.name} is {tensor.shape[i]}"
                raise SpecError(what, spec.axis_position(tensor.name, i, str(tensor.shape[i])), f"write {columns}, or 1 for all alike")
