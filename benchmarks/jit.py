"""Times what flashgen costs in JAX: a call under jit beside a direct call on arrays of CuPy.

    python benchmarks/jit.py                       # needs a GPU, CuPy and JAX with CUDA
    python benchmarks/jit.py --lengths 2048 8192

bfloat16, causal, 8 heads of dim 128, one sequence of each length. Milliseconds a call of 400 in a row, of gradients 50, waited for at the
end: 400 calls share what JAX takes to begin and to wait. Medians of six, one after the other in both orders behind calls that nobody
measures: what runs first on a card that has rested runs at a higher clock. `captured`: under jit in a command buffer, which is a CUDA
graph, as XLA makes of programs with five steps. `in one`: eight calls in one program, each on the result of the one before it, a call of
them; `direct in a row` is the same of direct calls. `issued`: until the last call of `jit` is made, before what is waited for. `off`: the
largest difference of results from those of the direct call.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy
import jax
import jax.numpy as jnp

import flashgen
from flashgen.jax import attention

CALLS, GRADIENTS, CHAIN, TURNS = 400, 50, 8, 6


def milliseconds(run: Callable[[], Any], wait: Callable[[Any], Any], calls: int = CALLS) -> tuple[float, float]:
    """The milliseconds of a call until it is issued, and until it is done, on average over many in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        found = run()
    issued = time.perf_counter()
    wait(found)
    return (issued - start) / calls * 1e3, (time.perf_counter() - start) / calls * 1e3


def compare(length: int) -> None:
    """Prints calls under jit, gradients and direct calls, at a length."""
    shape = (1, length, 8, 128)
    q, k, v = (jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i in range(3))
    jitted = jax.jit(attention)
    captured = jax.jit(attention, compiler_options={"xla_gpu_graph_min_graph_size": 1})
    chained = jax.jit(lambda q, k, v: functools.reduce(lambda x, _: attention(x, k, v), range(CHAIN), q))
    learning = jax.jit(jax.grad(lambda *x: attention(*x).astype(jnp.float32).sum(), (0, 1, 2)))
    attn = flashgen.compile({"dtype": "bfloat16", "head_dim": 128, "mask": "causal"})
    direct = [cupy.from_dlpack(jax.lax.bitcast_convert_type(x, jnp.uint16)).view(attn.spec.element.numpy) for x in (q, k, v)]
    wait = lambda _: cupy.cuda.get_current_stream().synchronize()  # noqa: E731
    runs: dict[str, tuple[Any, ...]] = {
        "direct": (lambda: attn(*direct), wait),
        "jit": (lambda: jitted(q, k, v), jax.block_until_ready),
        "captured": (lambda: captured(q, k, v), jax.block_until_ready),
        "direct in a row": (lambda: functools.reduce(lambda x, _: attn(x, *direct[1:]), range(CHAIN), direct[0]), wait, CALLS // CHAIN),
        "in one": (lambda: chained(q, k, v), jax.block_until_ready, CALLS // CHAIN),
        "gradients": (lambda: learning(q, k, v), jax.block_until_ready, GRADIENTS),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for together in (["direct", "jit", "captured"], ["direct in a row", "in one"], ["gradients"]):
        for turn in range(TURNS):
            milliseconds(*runs[together[0]])
            for name in together[:: 1 if turn % 2 else -1]:
                times[name].append(milliseconds(*runs[name]))
    ours = cupy.asnumpy(attn(*direct)).astype("float32")
    off = abs(jitted(q, k, v).astype(jnp.float32) - ours).max()
    share = {"direct in a row": CHAIN, "in one": CHAIN}
    row = "  ".join(f"{name} {statistics.median(took for _, took in found) / share.get(name, 1):7.3f}" for name, found in times.items())
    issued = statistics.median(took for took, _ in times["jit"])
    print(f"{length:6}  {row}  issued {issued:7.3f}  off {float(off):.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 16384])
    given = parser.parse_args()
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    for length in given.lengths:
        compare(length)


if __name__ == "__main__":
    main()
