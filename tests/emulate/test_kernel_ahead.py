"""Kernels that start before the one ahead of them has ended: who touches memory has waited, or met a thread that has."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel, emulate
from flashgen.emulate.memory import Watched
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate import test_split
from tests.emulate.kernels import kernel_text, record

DOCUMENT = {"mask": "causal & document(ids)", "tensors": {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}}
SPECS = {
    "alone": {"dtype": "float16", "mask": "causal"},
    "ranges": {"dtype": "float16", **DOCUMENT},
    "planes": {"dtype": "float32", "mask": "causal"},
    "planes_of_ranges": {"dtype": "float32", **DOCUMENT},
}
WAIT = "ptx::previous_kernel_wait();"


def run(name, change=lambda text: text, seed=0):
    chosen = plan(Spec(head_dim=64, **SPECS[name]), "sm_90a")
    source = render(chosen)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 200, 2, 64)).astype(chosen.spec.element.numpy) for _ in range(3))
    values = {"ids": np.repeat(np.arange(4, dtype=np.int32), 50)[None]} if "tensors" in SPECS[name] else {}
    emulate(chosen, replace(source, text=change(source.text)), q, k, v, values, seed=seed)


@pytest.mark.parametrize("name", SPECS)
def test_every_kernel_waits(name):
    run(name)


def test_ranges_before_keys_that_are_split_in_place():
    """No kernel before the attention splits them, so the ranges start early as it does."""
    chosen, source = test_split.planned(1, in_place=True)
    assert [kernel.grid.early for kernel in chosen.kernels] == [True, True, True, False]
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 200, 1, 128)).astype(np.float32) for _ in range(3))
    values = {"ids": np.repeat(np.arange(4, dtype=np.int32), 50)[None]}
    emulate(chosen, source, q, k, v, values)
    faulty = replace(source, text=without(source.text, source.text.count(WAIT) - 2))
    with pytest.raises(EmulationFault, match=r"`arg_ids`.* is accessed before griddepcontrol.wait"):
        emulate(chosen, faulty, q, k, v, values)


def without(text, number):
    """The text without one of its waits."""
    before, after = text.split(WAIT)[: number + 1], text.split(WAIT)[number + 1 :]
    return WAIT.join(before) + ";" + WAIT.join(after)


@pytest.mark.parametrize(
    ("name", "number", "found"),
    [
        ("ranges", 0, r"`counter`\+0 is accessed before griddepcontrol.wait"),  # by the warp that deals query tiles
        ("ranges", 2, r"`arg_ids`.* is accessed before griddepcontrol.wait"),
        ("ranges", 3, r"`arg_ids`.* is accessed before griddepcontrol.wait"),
        ("planes", 0, r"`q`.* is accessed before griddepcontrol.wait"),
        ("planes_of_ranges", 0, r"`seen_0`.* is accessed before griddepcontrol.wait"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wait_left_out(name, number, found, seed):
    with pytest.raises(EmulationFault, match=found):
        run(name, lambda text: without(text, number), seed)


def test_every_wait_left_out():
    with pytest.raises(EmulationFault, match=r"`[qkv]`.* is accessed before griddepcontrol.wait"):
        run("alone", lambda text: text.replace(WAIT, ";"))


def test_the_loader_is_after_whoever_deals():
    """It reads nothing before a query tile is handed to it, by a warp that has waited: its own wait is one more."""
    run("ranges", lambda text: without(text, 1))


BODY = """  if (threadIdx.x == 0) ptx::previous_kernel_wait();
  __syncthreads();
  if (blockIdx.x == 0) p.out[threadIdx.x] = p.in[threadIdx.x];"""
MEMBERS = "const float* in; float* out;"


def copy(body, early=True):
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    kernel = HostKernel(kernel_text(MEMBERS, body, threads=64))
    arrays = {"in": Watched(x, "read"), "out": Watched(y, "fill")}
    kernel.launch(2, 64, 0, record(MEMBERS, **{"in": x, "out": y}), arrays=arrays, early=early)
    assert (y == 1).all()


def test_one_thread_waits_for_those_that_it_meets():
    copy(BODY)
    with pytest.raises(EmulationFault, match=r"`in`\+0(x\w+)? is accessed before griddepcontrol.wait"):
        copy(BODY.replace("  __syncthreads();\n", ""))


def test_a_kernel_that_does_not_start_early_need_not_wait():
    copy(BODY.replace("if (threadIdx.x == 0) ptx::previous_kernel_wait();", ""), early=False)


def test_somebody_waits_even_where_nothing_is_touched():
    with pytest.raises(EmulationFault, match="no thread of forward waits for the kernel ahead"):
        copy("")
