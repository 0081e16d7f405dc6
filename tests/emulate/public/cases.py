"""Faults of synchronisation that were reported of others' kernels, as kernels of these files: `p.fault` says what is wrong."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flashgen.emulate import EmulationFault, HostKernel, tensor_map
from flashgen.emulate.memory import Watched
from flashgen.plan.kernel import Region
from flashgen.render.snippets import used
from tests.emulate.kernels import TYPES, record
from tests.render.products import KINDS, product

HERE = Path(__file__).parent
PARAMS = "TensorMap map, to, line, floats; const u16* in; float* out; float* work; u32* flag; int fault, bytes;"
SHARED = 1024 + 4 * 8192  # bytes: barriers, four tiles
REGIONS = [Region("bar", "BAR", 0, 8, 8), Region("tile", "TILE", 1024, 8192, 4)]
DEFAULTS = {"faults": {}, "rights": [0], "adverse": [], "strict": False, "ahead": False, "threads": 128, "blocks": 1, "cluster": 1}
CASES: dict[str, dict[str, Any]] = {name: DEFAULTS | case for name, case in tomllib.loads((HERE / "cases.toml").read_text()).items()}


@cache
def kernel(family: str, entry: str) -> HostKernel:
    text = (HERE / "vocabulary.cuh").read_text() + (HERE / f"{family}.cu").read_text()
    products = "\n".join(product(kind, 64, "bfloat16") for kind in KINDS)
    return HostKernel(f"{TYPES}namespace ptx {{\n{used(text)['ptx']}\n{products}\n}}\n{text}", entry, f"{family}.cu")


def run(case: dict[str, Any], fault: int, seed: int) -> None:
    """Launches a kernel with this fault, none where it is 0 or below. Raises EmulationFault."""
    x, out = np.full((500, 64), 0x3F80, np.uint16), np.zeros((256, 64), np.uint16)
    work, flag = np.zeros(4096, np.float32), np.zeros(8, np.uint32)
    values = record(
        PARAMS,
        map=tensor_map(x[None, None], (1, 1, 64, 64)),
        to=tensor_map(out[None, None], (1, 1, 64, 64)),
        line=tensor_map(x[None, None], (1, 1, 1, 32), 64),
        floats=tensor_map(out.view(np.float32)[None, None], (1, 1, 1, 32), 128),
        **{"in": x, "out": out, "work": work, "flag": flag, "fault": fault, "bytes": SHARED},
    )
    arrays = {"in": Watched(x, "constant"), "out": Watched(out), "work": Watched(work, "fill"), "flag": Watched(flag)}
    family, _, entry = case["kernel"].partition(".")
    if case["ahead"]:
        kernel(family, "ahead").launch(1, case["threads"], SHARED, values, seed, arrays=arrays)
    kernel(family, entry).launch(
        *(case["blocks"], case["threads"], SHARED, values, seed, "strict" if case["strict"] else True, REGIONS, arrays),
        ordinal=1 + case["ahead"],
        early=case["ahead"],
        cluster=case["cluster"],
    )


def found(case: dict[str, Any], fault: int, seed: int) -> str:
    """Returns what is found of a fault; empty if nothing."""
    try:
        run(case, fault, seed)
    except EmulationFault as report:
        return str(report)
    return ""
