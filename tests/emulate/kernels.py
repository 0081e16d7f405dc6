"""Small kernels for these tests, with the wrappers of templates/device as their vocabulary."""

from typing import Any

import numpy as np

from flashgen.render.snippets import used

TYPES = """\
using u16 = unsigned short;
using i64 = long long;
using u32 = unsigned int;
using u64 = unsigned long long;
struct __align__(64) TensorMap { unsigned char bytes[128]; };
"""
PARAMS = {
    "TensorMap": (np.dtype((np.uint8, 128)), 64),
    "u64": (np.dtype(np.uint64), 8),
    "int": (np.dtype(np.int32), 4),
    "float": (np.dtype(np.float32), 4),
}


def kernel_text(params: str, body: str, before: str = "", threads: int = 1024, blocks: int = 1) -> str:
    """A kernel `forward(p)` whose Params has these members; `shared` is the address of its shared memory."""
    kernel = (
        f"struct Params {{ {params} }};\n{before}\n"
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks}) forward(const __grid_constant__ Params p) {{\n'
        "  extern __shared__ __align__(1024) unsigned char memory[];\n"
        f"  const u32 shared = __cvta_generic_to_shared(memory);\n{body}\n}}\n"
    )
    found = used(kernel)
    return f"{TYPES}namespace ptx {{\n{found['ptx']}\n}}\n{found['plain']}\n{kernel}"


def record(params: str, **values: Any) -> np.ndarray[Any, Any]:
    """The Params of such a kernel; arrays stand for their addresses."""
    names, formats, offsets, end, alignment = [], [], [], 0, 1
    for member in params.split(";")[:-1]:
        cuda, _, members = member.strip().removeprefix("const ").partition(" ")
        for name in members.split(","):
            dtype, align = PARAMS.get(cuda, PARAMS["u64"])
            end = -(-end // align) * align
            names.append(name.strip())
            formats.append(dtype)
            offsets.append(end)
            end, alignment = end + dtype.itemsize, max(alignment, align)
    one = np.zeros((), np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": -(-end // alignment) * alignment}))
    for name, value in values.items():
        one[name] = value.ctypes.data if isinstance(value, np.ndarray) and value.dtype != np.uint8 else value
    return one


def bits(x: np.ndarray[Any, Any], element: str) -> np.ndarray[Any, Any]:
    """Numbers that the element type holds exactly, as 16-bit words."""
    return x.astype(np.float16).view(np.uint16) if element == "f16" else (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
