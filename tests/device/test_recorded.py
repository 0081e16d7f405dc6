"""The emulator's instructions against what an H100 gave for the same operands; record.py made the record."""

import functools
from pathlib import Path

import numpy as np
import pytest

from flashgen.emulate import HostKernel, tensor_map
from tests.device.cases import cases
from tests.emulate.kernels import record

RECORDED = Path(__file__).parent / "recorded" / "instructions.npz"


def emulated(case):
    arrays = {name: x.copy() for name, x in case.inputs.items()}
    arrays |= {name: np.zeros(shape, dtype) for name, (shape, dtype) in case.outputs.items()}
    members = [m.strip().split()[-1].lstrip("*") for m in case.params.replace(",", ";").split(";") if m.strip()]
    values = {name: x for name, x in arrays.items() if name in members} | case.scalars
    for member, (name, (columns, rows)) in case.maps.items():
        values[member] = tensor_map(arrays[name].swapaxes(1, 2), (1, 1, rows, columns), columns * 2)
    kernel = HostKernel(case.text)
    kernel.launch(1, case.threads, case.shared_bytes, record(case.params, **values))
    return {name: arrays[name] for name in case.outputs}


@functools.cache
def recorded():
    if not RECORDED.exists():
        pytest.skip("nothing recorded: run tests/device/record.py on an H100")
    with np.load(RECORDED) as file:
        return dict(file)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_as_the_hardware(case):
    found = emulated(case)
    known = recorded()
    assert str(known[f"{case.name}/digest"]) == case.digest, "the case has changed: run tests/device/record.py on an H100"
    for name, x in found.items():
        if case.tolerance and x.dtype == np.float32:
            np.testing.assert_allclose(x, known[f"{case.name}/{name}"], rtol=case.tolerance, atol=1e-37)
        else:
            np.testing.assert_array_equal(x, known[f"{case.name}/{name}"])
