"""Compiling: reports are read, mistakes are shown where they are, a missing compiler is named. No GPU is needed."""

import sys
from pathlib import Path

import pytest

from flashgen.errors import BackendError, CompileError
from flashgen.render import Source
from flashgen.runtime import nvrtc
from flashgen.runtime.machine_code import disassemble

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda13 or cuda12 extra")

TEXT = """\
extern "C" __global__ void f(float* x) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x ^ 1];
}
"""
SERIALISED = """\
extern "C" __global__ void f(float* x, unsigned long long a) {
  float d[4] = {x[0], x[1], x[2], x[3]};
  for (int i = 0; i < 8; ++i) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a));
    asm volatile("wgmma.commit_group.sync.aligned;");
    d[0] += 1.0f;
    asm volatile("wgmma.wait_group.sync.aligned 0;");
  }
  x[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""
SPILLS = """\
extern "C" __global__ void __launch_bounds__(1024) f(float* x, int n) {
  float a[128];
  #pragma unroll
  for (int i = 0; i < 128; ++i) a[i] = x[i * 1024 + threadIdx.x];
  for (int j = 0; j < n; ++j) {
    #pragma unroll
    for (int i = 0; i < 128; ++i) a[i] = a[i] * a[(i + 1) % 128] + a[(i + 7) % 128];
  }
  #pragma unroll
  for (int i = 0; i < 128; ++i) x[i * 1024 + threadIdx.x] = a[i];
}
"""


def source(text: str, arch: str = "sm_90a") -> Source:
    return Source("f", text, arch, "f", ("--std=c++17", "--fmad=true"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_a_report_is_read(arch: str) -> None:
    binary = nvrtc.compile(source(TEXT, arch))
    assert binary.cubin[:4] == b"\x7fELF"
    assert 0 < binary.registers <= 64
    assert (binary.spill_bytes, binary.shared_bytes) == (0, 1024)
    assert binary.compiler == nvrtc.compiler()
    assert f"'{arch}'" in binary.log


def test_spills_are_reported() -> None:
    assert nvrtc.compile(source(SPILLS)).spill_bytes > 0


def test_serialised_products_do_not_pass() -> None:
    with pytest.raises(CompileError, match=r"gives up on asynchronous products.*C75"):
        nvrtc.compile(source(SERIALISED))


def test_a_mistake_is_shown_with_its_line_and_kept() -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile(source(TEXT.replace("s[threadIdx.x ^ 1]", "t[threadIdx.x ^ 1]")))
    message = str(caught.value)
    assert 'identifier "t" is undefined' in message
    assert "  >    5 |   x[threadIdx.x] = t[threadIdx.x ^ 1];" in message
    path = Path(message.split(" ", 1)[0])
    assert "t[threadIdx.x ^ 1]" in path.read_text()
    assert (path.parent / "log.txt").read_text()


def test_a_long_log_is_cut() -> None:
    wrong = "\n".join(f"int a{i} = b{i};" for i in range(90))
    with pytest.raises(CompileError) as caught:
        nvrtc.compile(source(wrong))
    assert len(str(caught.value).splitlines()) < 50
    assert "more lines in" in str(caught.value)


def test_an_instruction_that_is_none_is_an_error() -> None:
    with pytest.raises(CompileError, match="Not a name of any known instruction"):
        nvrtc.compile(source('extern "C" __global__ void f() { asm("mmma.sync;"); }'))


def test_an_unknown_arch_names_the_known() -> None:
    with pytest.raises(BackendError, match=r"does not know sm_199a; it knows .*sm_90.*nvidia-cuda-nvrtc"):
        nvrtc.compile(source(TEXT, "sm_199a"))


def test_ptx_and_sass() -> None:
    assert ".target sm_90a" in nvrtc.to_ptx(source(TEXT))
    binary = nvrtc.compile(source(TEXT))
    try:
        assert "BAR.SYNC" in disassemble(binary)
    except BackendError as error:
        assert "nvidia-cuda-nvdisasm" in str(error)  # noqa: PT017


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc._nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(BackendError, match=r"no NVRTC here.*flashgen\[cuda13\]"):
        nvrtc.compile(source(TEXT))
    nvrtc._nvrtc.cache_clear()
