"""Calls of a backward prepared once: what a later call launches is what it would launch were it the first.

Arrays of CuPy at made-up addresses stand for those on a GPU, and instead of a launch its record and grids are kept.
"""

from typing import Any

import numpy as np
import pytest

from flashgen.errors import CallError
from flashgen.plan.params import record_dtype
from flashgen.runtime import backward as runtime_backward
from flashgen.runtime.arrays import liken
from flashgen.runtime.backward import GpuBackward
from flashgen.spec import Spec
from tests.runtime.launches import CARD, Launches, launches
from tests.runtime.test_arrays import on_gpu

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

__all__ = ["launches"]
SPEC = Spec(
    head_dim={"qk": 64, "v": 32},
    dtype="bfloat16",
    score="c * s + bias[h, q_idx]",
    mask="causal",
    params={"c": {"default": 2.0, "grad": True}},
    tensors={"bias": {"shape": ["hq", "q_len"], "dtype": "float32", "grad": True}},
    backward=True,
)


@pytest.fixture
def cleared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The addresses that were made zeros, and how many bytes of each."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(runtime_backward, "device", lambda _: CARD)
    monkeypatch.setattr(runtime_backward, "_clear", lambda _, address, nbytes, _stream: seen.append((address, nbytes)))
    return seen


def call(q_len: int, kv_len: int, address: int = 1, dlse: bool = False) -> dict[str, Any]:
    """The arrays of a call, 2^40 bytes apart from the address on."""
    bf16 = SPEC.element.numpy
    shapes = {name: (2, n, heads, d) for name, n, heads, d in (("q", q_len, 4, 64), ("k", kv_len, 2, 64), ("v", kv_len, 2, 32))}
    shapes |= dict.fromkeys(("o", "do"), (2, q_len, 4, 32)) | dict.fromkeys(("lse", *(["dlse"] if dlse else [])), (2, 4, q_len))
    shapes["bias"] = (4, q_len)
    return {name: on_gpu(s, bf16 if len(s) == 4 else np.float32, address=(address + i) << 40) for i, (name, s) in enumerate(shapes.items())}


def test_results_and_the_record(launches: Launches, cleared: list[tuple[int, int]]) -> None:
    launches.clear()
    backward = GpuBackward(SPEC, None)
    results = backward(call(100, 150, dlse=True), {"c": 3.0})
    assert [x.shape for x in results] == [(2, 100, 4, 64), (2, 150, 2, 64), (2, 150, 2, 32), (4, 100), ()]
    ((record, grids),) = launches
    (kernel,) = backward.kernels.values()
    assert len(grids) == len(kernel.program.kernels)
    values = np.frombuffer(record, record_dtype(kernel.program.arguments))[0]
    places = {"dlse": 7 << 40, "grad_c": results[4].data.ptr} | ({} if kernel.program.skeleton == "backward_sm90" else {"k": 2 << 40})
    assert {name: values[name] for name in places} == places
    assert values["grad_bias"]["data"] == results[3].data.ptr
    assert values["arg_bias"]["data"] == 8 << 40
    assert values["arg_c"] == 3.0
    assert cleared == [(results[3].data.ptr, 4 * 400), (results[4].data.ptr, 4)]


@pytest.mark.usefixtures("cleared")
def test_a_call_like_one_before_launches_what_it_would_were_it_the_first(launches: Launches) -> None:
    warm = GpuBackward(SPEC, None)
    sequence = [((100, 150), 1), ((100, 150), 9), ((7, 0), 1), ((100, 150), 1), ((100, 151), 1)]
    for lengths, address in sequence:
        made = []
        for backward in (warm, GpuBackward(SPEC, None)):
            launches.clear()
            launches.made = 0
            backward(call(*lengths, address), {"c": 2.0})
            made.append(list(launches))
        assert made[0] == made[1]
    assert len(warm._prepared) == 3


@pytest.mark.usefixtures("cleared")
def test_without_dlse_its_pointer_is_null(launches: Launches) -> None:
    launches.clear()
    backward = GpuBackward(SPEC, None)
    backward(call(5, 6), {"c": 2.0})
    (kernel,) = backward.kernels.values()
    assert np.frombuffer(launches[0][0], record_dtype(kernel.program.arguments))[0]["dlse"] == 0


def test_without_queries_nothing_is_launched_and_all_is_zero(launches: Launches, cleared: list[tuple[int, int]]) -> None:
    launches.clear()
    results = GpuBackward(SPEC, None)(call(0, 6), {"c": 2.0})
    assert not launches
    assert cleared == [(x.data.ptr, x.nbytes) for x in results]


@pytest.mark.usefixtures("cleared", "launches")
def test_arrays_that_do_not_fit() -> None:
    given = call(5, 6)
    with pytest.raises(CallError, match=r"do has shape \[2, 4, 4, 32\]"):
        GpuBackward(SPEC, None)({**given, "do": given["do"][:, 1:]}, {"c": 2.0})
    with pytest.raises(CallError, match="lse lies on the host and q on GPU 0"):
        GpuBackward(SPEC, None)({**given, "lse": np.zeros((2, 4, 5), np.float32)}, {"c": 2.0})


def test_short_sequences_get_tiles_of_their_own() -> None:
    """Smaller ones leave room for the next key tile, which then loads while this one is worked on. Query rows decide, not keys."""
    spec = Spec(head_dim=128, dtype="bfloat16", backward=True)

    def tile(q_len: int, kv_len: int) -> tuple[str, int]:
        lengths = {"q": q_len, "k": kv_len, "v": kv_len, "o": q_len, "do": q_len}
        arrays = {name: on_gpu((1, n, 4, 128), spec.element.numpy, address=(i + 1) << 40) for i, (name, n) in enumerate(lengths.items())}
        program = GpuBackward(spec, None).serving(CARD.arch, {name: liken(x, name).layout for name, x in arrays.items()})
        return program.main.tile.text, program.by_symbol["K"].count

    assert {tile(512, 512), tile(1024, 9000)} == {("64x128", 2)}
    assert {tile(1025, 100), tile(8192, 8192)} == {("80x128", 1)}
