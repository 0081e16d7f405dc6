"""The functions of an emitted text that show what a rung does."""

from flashgen.ladder.climb import Shape
from flashgen.ladder.rungs import Rung
from flashgen.plan import plan
from flashgen.render import render


def inner_loops(rung: Rung, arch: str | None, shape: Shape) -> str:
    """The functions that the rung names, in the order of the text for an architecture."""
    assert arch
    return "\n\n".join(functions(render(plan(rung.spec(shape.head_dim, shape.dtype), arch)).text, rung.loops))


def functions(text: str, names: tuple[str, ...]) -> list[str]:
    """The functions of these names with the comments above them, moved to the margin.

    >>> functions("  // Two.\\n  __device__ int two(int x) {\\n    return 2;\\n  }\\n", ("two",))
    ['// Two.\\n__device__ int two(int x) {\\n  return 2;\\n}']
    """
    lines, found = text.splitlines(), []
    for i, line in enumerate(lines):
        name = line.partition("(")[0].split(" ")[-1]
        if name not in names or "__device__" not in line or not line.endswith(("{", ",")):
            continue
        indent = len(line) - len(line.lstrip())
        end = next(n for n in range(i + 1, len(lines)) if lines[n] == " " * indent + "}")
        first = i
        while lines[first - 1].lstrip().startswith(("//", "template <")) and "// ---" not in lines[first - 1]:
            first -= 1
        found.append("\n".join(part[indent:].replace("__device__ __forceinline__ ", "") for part in lines[first : end + 1]))
    return found
