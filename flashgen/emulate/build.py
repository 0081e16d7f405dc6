"""The C++ compiler of this machine: found, asked what it is, and its outputs kept in the user's cache."""

import atexit
import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import platformdirs

from flashgen.emulate.translate import HostText, MissingTwin
from flashgen.errors import BackendError, CompileError

HOST = Path(__file__).parent / "host"
STACK = 256 << 10  # bytes of a thread's
OPTIONS = (
    *("-std=c++20", "-march=native", "-fPIC", "-fvisibility=hidden", "-w", f"-DSTACK_BYTES={STACK}"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fno-strict-aliasing"),  # as device code is compiled
)
MACHINE_OPTIONS = ("-O3", "-c")
KERNEL_OPTIONS = (
    *("-O2", "-shared", "-Wl,-Bsymbolic"),
    *("-gdwarf-4", "-fno-optimize-sibling-calls"),  # reports name lines, from return addresses; addr2line misreads clang's version 5
)
KEPT = 256 << 20  # bytes of outputs in the cache; beyond that the ones go that were used longest ago


@functools.cache
def compiler() -> str:
    """The path of a C++20 compiler: $CXX, else g++, else clang++."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "clang++"]:
        if path := shutil.which(name):
            return path
    raise BackendError(
        f"the emulator compiles kernels with {wanted or 'g++ or clang++'}, which is not on PATH: "
        "install g++ 11 or later (Debian: apt install g++) or clang++ 14 or later, or set CXX"
    )


def run_compiler(text: Path, *arguments: str) -> str:
    """What the compiler prints, or a CompileError with its log that names the text."""
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise CompileError(f"{compiler()} refused {text.name}:\n" + "\n".join(errors[:8]))
    return done.stdout


@functools.cache
def macros() -> str:
    """What the compiler predefines: it tells compilers and processors apart."""
    return run_compiler(Path(os.devnull), *OPTIONS, "-dM", "-E", "-x", "c++", os.devnull)


@functools.cache
def identity() -> str:
    """A digest of what else an output depends on: compiler, target processor, options, headers."""
    headers = [path.read_text() for path in sorted(HOST.glob("*.?pp"))]
    return digest(compiler(), macros(), *OPTIONS, *MACHINE_OPTIONS, *KERNEL_OPTIONS, *headers)


@functools.cache
def twins() -> frozenset[str]:
    """The names of all functions that ptx.hpp declares, after its macros."""
    header = HOST / "ptx.hpp"
    text = run_compiler(header, *OPTIONS, "-E", "-P", "-x", "c++", str(header))
    return frozenset(re.findall(r"\b([a-z]\w*)(?=\()", text[text.index("namespace ptx") :]))


@functools.cache
def cache_folder() -> Path:
    """Where outputs are kept: the user's cache, or a folder of this process where that cannot be written."""
    folder = platformdirs.user_cache_path("flashgen") / "emulate"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        warnings.warn(f"{folder} cannot be written ({error}): the emulator compiles anew in each process", stacklevel=2)
        folder = Path(tempfile.mkdtemp(prefix="flashgen-emulate-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def machine() -> Path:
    """The emulator itself, compiled once for a compiler and these headers, in about ten seconds."""
    output = cache_folder() / f"machine-{identity()}.o"
    if not kept(output):
        compile_to(output, HOST / "machine.cpp", *MACHINE_OPTIONS)
    return output


def library(kernel: HostText, name: str) -> Path:
    """A text's kernels as a shared library, compiled once. Raises MissingTwin, CompileError, BackendError."""
    for instruction in kernel.instructions:
        if instruction.twin not in twins():
            raise MissingTwin(instruction, name)
    output = cache_folder() / f"kernel-{digest(identity(), kernel.text)}.so"
    if not kept(output):
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            source = Path(folder) / name  # the name that line tables give
            source.write_text(kernel.text)
            compile_to(output, source, *KERNEL_OPTIONS, f"-I{HOST}", str(machine()))
        forget_the_oldest(output.parent)
    return output


def compile_to(output: Path, text: Path, *arguments: str) -> None:
    unfinished = f"{output}.{os.getpid()}"
    run_compiler(text, *OPTIONS, "-o", unfinished, *arguments, "-x", "c++", str(text))
    Path(unfinished).replace(output)


def kept(output: Path) -> bool:
    """Whether an output is there, which counts as a use of it."""
    try:
        os.utime(output)
    except FileNotFoundError:
        return False
    return True


def forget_the_oldest(folder: Path) -> None:
    total = 0
    with contextlib.suppress(FileNotFoundError):  # another process is at it
        outputs = sorted(((path.stat().st_mtime_ns, path) for path in folder.glob("*-*")), reverse=True)
        for _, path in outputs:
            total += path.stat().st_size
            if total > KEPT:
                path.unlink()


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]
