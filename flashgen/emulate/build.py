"""The C++ compiler of this machine: found, asked what it is, and its outputs kept in the user's cache."""

import atexit
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

from flashgen import store
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
    *("-O1", "-shared", "-Wl,-Bsymbolic"),
    # Reports name lines and functions from return addresses, inlined ones too; no variables. addr2line misreads version 5 of clang.
    *("-gdwarf-4", "-g1", "-fno-optimize-sibling-calls"),
)
# Kernels are compiled more often than they run long, and most of the time they are in the machine: of g++'s passes, those that take time
# are left out, which halves it; the one that fuses products into sums, as on a GPU, stays.
FEW_PASSES = (
    *("-fexpensive-optimizations", "-fira-region=one", "-fno-tree-loop-optimize", "-fno-tree-ch", "-fno-tree-dominator-opts"),
    *("-fno-thread-jumps", "-fno-tree-vrp", "-fno-tree-bit-ccp", "-fno-tree-pta", "-fno-dse", "-fno-guess-branch-probability"),
    *("-fno-if-conversion", "-fno-if-conversion2"),
)


@functools.cache
def compiler() -> tuple[str, ...]:
    """A C++20 compiler, as the words of a command: $CXX, which may hold options or a launcher as ccache, else g++, else clang++."""
    wanted = os.environ.get("CXX")
    commands = [[wanted], shlex.split(wanted)] if wanted else [["g++"], ["clang++"]]  # first as one path, which may hold blanks
    for program, *words in commands:
        if path := shutil.which(program):
            return path, *words
    raise BackendError(
        f"the emulator compiles kernels with {wanted or 'g++ or clang++'}, which is not on PATH: "
        "install g++ 11 or later (Debian: apt install g++) or clang++ 14 or later, or set CXX"
    )


def warnings_of(text: Path, *wanted: str) -> str:
    """The warnings of the compiler for a kernel's text, which it does not compile."""
    options = (option for option in OPTIONS if option != "-w")
    arguments = (*compiler(), *options, *wanted, "-fsyntax-only", "-isystem", str(HOST), "-x", "c++", str(text))
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stderr


def run_compiler(text: Path, *arguments: str) -> str:
    """The output of the compiler. Raises CompileError with its log, which names the text."""
    done = subprocess.run([*compiler(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise CompileError(f"{shlex.join(compiler())} refused {text.name}:\n" + "\n".join(errors[:8]))
    return done.stdout


@functools.cache
def macros() -> str:
    """The macros that the compiler predefines: they tell compilers and processors apart."""
    return run_compiler(Path(os.devnull), *OPTIONS, "-dM", "-E", "-x", "c++", os.devnull)


@functools.cache
def kernel_options() -> tuple[str, ...]:
    """The options that kernels are compiled with: clang++ knows no names of g++'s passes. gold links in half the time."""
    if "__clang__" in macros():
        return KERNEL_OPTIONS
    return (*KERNEL_OPTIONS, *FEW_PASSES, *(("-fuse-ld=gold",) if shutil.which("ld.gold") else ()))


@functools.cache
def identity() -> str:
    """A digest of all else that an output depends on: compiler, target processor, options, headers."""
    headers = [path.read_text() for path in sorted(HOST.glob("*.?pp"))]
    return digest(*compiler(), macros(), *OPTIONS, *MACHINE_OPTIONS, *kernel_options(), *headers)


@functools.cache
def twins() -> frozenset[str]:
    """The names of all functions that ptx.hpp declares, after its macros."""
    header = HOST / "ptx.hpp"
    text = run_compiler(header, *OPTIONS, "-E", "-P", "-x", "c++", str(header))
    return frozenset(re.findall(r"\b([a-z]\w*)(?=\()", text[text.index("namespace ptx") :]))


def folder() -> Path:
    """The folder that keeps outputs: beside the compiled kernels, or one of this process where that cannot be."""
    return usable(store.root() / "emulate")


@functools.cache
def usable(wanted: Path) -> Path:
    """The folder if outputs can be kept there; else one of this process, with a RuntimeWarning."""
    try:
        store.make(wanted)
        store.trust(wanted)
        tempfile.TemporaryFile(dir=wanted).close()
    except OSError as error:
        why = f"{wanted} cannot be used ({error.strerror})"
        warnings.warn(f"the emulator compiles anew in each process, {why}: set FLASHGEN_CACHE_DIR", RuntimeWarning, stacklevel=2)
        alone = Path(tempfile.mkdtemp(prefix="flashgen-emulate-"))
        atexit.register(shutil.rmtree, alone, ignore_errors=True)
        return alone
    return wanted


def machine() -> Path:
    """The emulator itself, compiled once for a compiler and these headers, in about ten seconds."""
    output = folder() / f"machine-{identity()}.o"
    if not store.found(output):
        compile_to(output, HOST / "machine.cpp", *MACHINE_OPTIONS)
    return output


def headers() -> Path:
    """A folder with what g++ made of ptx.hpp, which it takes in place of reading it for each kernel; clang++ passes it over."""
    output = folder() / f"headers-{identity()}"
    if not store.found(output):
        unfinished, header = store.aside(output), HOST / "ptx.hpp"
        unfinished.mkdir()
        run_compiler(header, *OPTIONS, *kernel_options(), "-o", str(unfinished / f"{header.name}.gch"), "-x", "c++-header", str(header))
        try:
            unfinished.rename(output)
        except OSError:  # another process was faster
            store.remove(unfinished)
    return output


def library(kernel: HostText, name: str) -> Path:
    """A text's kernels as a shared library, compiled once. Raises MissingTwin, CompileError, BackendError."""
    for instruction in kernel.instructions:
        if instruction.twin not in twins():
            raise MissingTwin(instruction, name)
    output = folder() / f"kernel-{digest(identity(), kernel.text)}.so"
    if not store.found(output):
        store.make_room()
        with tempfile.TemporaryDirectory() as beside:
            source = Path(beside) / name  # the name that line tables give
            source.write_text(kernel.text)
            compile_to(output, source, *kernel_options(), f"-I{headers()}", f"-I{HOST}", str(machine()))
    return output


def compile_to(output: Path, text: Path, *arguments: str) -> None:
    """Compiles a C++ text to a file, which is there whole or not at all. Raises CompileError, BackendError."""
    unfinished = store.aside(output)
    run_compiler(text, *OPTIONS, "-o", str(unfinished), *arguments, "-x", "c++", str(text))
    unfinished.replace(output)


def digest(*texts: str) -> str:
    """A name for texts, by what they hold."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]
