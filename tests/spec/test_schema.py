"""The JSON Schema: complete, described, and true of the specs that ship."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from flashgen.spec import Spec, json_schema, load
from flashgen.spec.model import KEY

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """The part of JSON Schema that the schema uses."""
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in schema:
        return any(accepts(option, value, root) for option in schema["anyOf"])
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        return False
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}
    if not isinstance(value, kinds[schema["type"]] if "type" in schema else object):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        return set(schema.get("required", ())) <= set(value) and all(
            accepts(known[k], v, root) if k in known else bool(rest) and (rest is True or accepts(rest, v, root)) for k, v in value.items()
        )
    return all(accepts(schema["items"], v, root) for v in value) if isinstance(value, list) and "items" in schema else True


def test_shipped_specs_are_accepted() -> None:
    schema = json_schema()
    for path in SPECS:
        assert accepts(schema, load(path).to_json(), schema), path


def test_mistakes_are_not() -> None:
    schema = json_schema()
    good = {"dtype": "float16", "head_dim": 64}
    assert accepts(schema, good, schema)
    for wrong in ({"dtype": "float15"}, {"head_dim": "64"}, {"msk": "full"}, {"schedule": "fast"}, {"stages": "many"}, {"block": {"k": 1}}):
        assert not accepts(schema, {**good, **wrong}, schema), wrong
    assert not accepts(schema, {"dtype": "float16"}, schema)


def test_every_key_is_there_and_described() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == {f.name for f in dataclasses.fields(Spec)} - {"positions"}
    assert schema["required"] == ["dtype", "head_dim"]
    for owner in (schema, *schema["$defs"].values()):
        assert owner["additionalProperties"] is False
        for name, key in owner["properties"].items():
            assert key.get("description"), name
    assert KEY not in json.dumps(schema)


def test_bounds_are_said_in_words_of_json_schema() -> None:
    schema = json_schema()
    known = {"$defs", "$ref", "additionalProperties", "anyOf", "const", "default", "description", "enum", "examples", "items", "properties"}
    known |= {"required", "title", "type", "minimum", "maximum", "minLength", "minItems", "maxItems", "$schema", "$id"}

    def judge(part: dict[str, Any]) -> None:
        assert part.keys() <= known, part
        below = [*part.get("properties", {}).values(), *part.get("$defs", {}).values(), *part.get("anyOf", ())]
        below += [part[key] for key in ("items", "additionalProperties") if isinstance(part.get(key), dict)]
        for one in below:
            judge(one)

    judge(schema)
    tensor, (group, _) = schema["$defs"]["TensorKeys"]["properties"], schema["properties"]["group"]["anyOf"]
    assert (tensor["shape"]["minItems"], tensor["shape"]["maxItems"]) == (1, 8)
    assert group == {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
