"""Records on an H100 what each instruction gives: python tests/device/record.py [folder]"""

import sys
import tempfile
from pathlib import Path

import cupy
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from flashgen.render import Source
from flashgen.render.source import OPTIONS
from flashgen.runtime import nvrtc, tma
from flashgen.runtime.arrays import liken
from tests.device.cases import Case, cases
from tests.emulate.kernels import record

RECORDED = Path(__file__).parent / "recorded"


def on_device(case: Case) -> dict[str, np.ndarray]:
    """The outputs of a case's kernel."""
    binary = nvrtc.compile(Source("case", case.text, "sm_90a", "forward", OPTIONS))
    arrays = {name: cupy.asarray(x) for name, x in case.inputs.items()}
    arrays |= {name: cupy.zeros(shape, dtype) for name, (shape, dtype) in case.outputs.items()}
    members = [m.strip().split()[-1].lstrip("*") for m in case.params.replace(",", ";").split(";") if m.strip()]
    values = {name: int(x.data.ptr) for name, x in arrays.items() if name in members} | case.scalars
    for member, (name, box) in case.maps.items():
        x = arrays[name].view(cupy.float16)
        values[member] = np.frombuffer(tma.encoder(liken(x, name).layout, box)(x.data.ptr), np.uint8)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.cubin + b"\0")
        file.flush()
        kernel = cupy.RawModule(path=file.name).get_function("forward")
    kernel.max_dynamic_shared_size_bytes = case.shared_bytes
    kernel((1,), (case.threads,), (record(case.params, **values),), shared_mem=case.shared_bytes)
    return {name: arrays[name].get() for name in case.outputs}


def main() -> None:
    kept = {}
    for case in cases():
        kept |= {f"{case.name}/{name}": x for name, x in on_device(case).items()} | {f"{case.name}/digest": np.array(case.digest)}
        print(case.name, flush=True)
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    path = Path(sys.argv[1] if len(sys.argv) > 1 else RECORDED) / "instructions.npz"
    np.savez_compressed(path, device=np.array(device), **kept)
    print(f"{len(cases())} cases on {device}: {path}")


if __name__ == "__main__":
    main()
