"""The spec language, its reader and its JSON Schema: a spec says what to compute."""

from typing import Any

from flashgen.spec.files import load, loads
from flashgen.spec.model import Spec
from flashgen.spec.parts import Block, HeadDim, Param
from flashgen.spec.softmax import Schedule, Softmax
from flashgen.spec.tensors import Tensor

__all__ = ["Block", "HeadDim", "Param", "Schedule", "Softmax", "Spec", "Tensor", "json_schema", "load", "loads"]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the YAML form, for editors."""
    from flashgen.spec import schema  # pydantic: as long to import as everything else

    return schema.json_schema()
