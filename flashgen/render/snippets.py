"""The device vocabulary: of templates/device, the functions that a text calls, each as it stands in its file."""

import re
from functools import cache

from flashgen.render.environment import template_root

_NAME = re.compile(r"__forceinline__ \S+ (\w+)\(")
_CALL = re.compile(r"\bptx::(\w+)")


@cache
def vocabulary() -> dict[str, str]:
    """Every static function of templates/device by name, files in alphabetical order."""
    found: dict[str, str] = {}
    for path in sorted((template_root() / "device").glob("*.cuh")):
        for item in path.read_text(encoding="utf-8").split("\n\n"):
            if name := _NAME.search(item):
                assert name[1] not in found, f"{path.name}: {name[1]} is defined twice"
                found[name[1]] = item.strip("\n")
    return found


def used(text: str) -> str:
    """The functions that the text calls by `ptx::name`, in the vocabulary's order."""
    called = set(_CALL.findall(text))
    return "\n".join(item for name, item in vocabulary().items() if name in called)
