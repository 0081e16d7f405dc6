"""The tensors that a norm and a rotary embedding read, as reads of the language: a row a token, a column of it."""

from typing import TYPE_CHECKING

from flashgen.dtypes import READ
from flashgen.errors import SpecError
from flashgen.expr.language.nodes import Load, Name
from flashgen.spec.embedding import INDICES, LENGTHS, SIDES

if TYPE_CHECKING:
    from flashgen.spec import Spec

COLUMN = Name("column", "int")  # of q and k, or a pair of columns


def tables(spec: "Spec") -> tuple[Load, ...]:
    """The reads. Raises SpecError, where it is named, for a tensor that there is none of, or of other axes or dtype.

    >>> from flashgen.spec import Spec
    >>> learned = {"w": {"shape": [64], "dtype": "float32"}}
    >>> [load.tensor for load in tables(Spec(dtype="float16", head_dim=64, norm={"query": "w"}, tensors=learned))]
    ['w']
    """
    found = []
    for role, side in SIDES.items():
        if spec.norm and (name := spec.norm.columns(role)):
            found.append(_read(spec, f"norm.{side}", name, ((spec.head_dim.qk,),)))
        if spec.rotary and (name := spec.rotary.table(role)):
            axes = (LENGTHS[role], spec.rotary.columns // 2)
            found.append(_read(spec, f"rotary.angles.{side}", name, (axes, ("b", *axes)), INDICES[role]))
    return tuple(found)


def _read(spec: "Spec", path: str, name: str, shapes: tuple[tuple[str | int, ...], ...], index: str = "") -> Load:
    tensor = next((t for t in spec.tensors if t.name == name), None)
    allowed = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
    if tensor is None:
        raise SpecError(f"{path}: {name!r} is no tensor", spec.position(path), f"declare it under tensors, of shape {allowed}")
    if READ[tensor.dtype][0] != "float" or (index and tensor.dtype != "float32"):
        what = f"{path}: {name} is {tensor.dtype}"
        raise SpecError(what, spec.position(path), "dtype: float32" if index else "dtype: float32, float16 or bfloat16")
    if tensor.shape not in shapes:
        what = f"{path}: {name} has shape [{', '.join(map(str, tensor.shape))}]"
        raise SpecError(what, spec.position(path), f"expected {allowed}")
    rows = (Name("b", "int"),) * (len(tensor.shape) == 3) + ((Name(index, "int"),) if index else ())
    return Load(name, (*rows, COLUMN), "float")
