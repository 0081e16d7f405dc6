"""The device vocabulary: of templates/device, the functions that a text calls, each as it stands in its file."""

import re
from functools import cache

from flashgen.render.environment import template_root

_NAME = re.compile(r"__forceinline__ [\w ]+? (\w+)\(")
_CALL = re.compile(r"(?<![.\w])(?:ptx::(\w+)|(\w+)\()")
KINDS = ("ptx", "plain")
_PLAIN = "division.cuh"  # ordinary ones, outside namespace ptx


@cache
def vocabulary() -> dict[str, dict[str, str]]:
    """Every static function of templates/device by file and name, files in alphabetical order. Overloads stand together."""
    files: dict[str, dict[str, str]] = {}
    for path in sorted((template_root() / "device").glob("*.cuh")):
        items = files[path.name] = {}
        for item in path.read_text(encoding="utf-8").split("\n\n"):
            if name := _NAME.search(item):
                assert all(name[1] not in other for other in files.values()), f"{path.name}: {name[1]} is defined twice"
                items[name[1]] = item.strip("\n")
    return files


def used(text: str) -> dict[str, str]:
    """The functions that the text calls, in the vocabulary's order: those of namespace `ptx`, and plain ones."""
    called, plainly = map(set, zip(*_CALL.findall(text), ("", ""), strict=True))
    asked = {file: plainly if file == _PLAIN else called for file in vocabulary()}
    chosen = {file: [item for name, item in items.items() if name in asked[file]] for file, items in vocabulary().items()}
    plain = chosen.pop(_PLAIN)
    return dict(zip(KINDS, ("\n".join(item for items in chosen.values() for item in items), "\n".join(plain)), strict=True))
