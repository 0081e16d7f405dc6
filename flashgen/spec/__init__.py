"""What to compute: the spec language, its reader and its JSON Schema."""

from typing import Any

from flashgen.spec.model import Block, HeadDim, Param, Schedule, Spec, Tensor

__all__ = ["Block", "HeadDim", "Param", "Schedule", "Spec", "Tensor", "json_schema"]


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the YAML form, for editors."""
    from flashgen.spec import schema

    return schema.json_schema()
