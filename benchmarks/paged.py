"""Keys in pages beside the same keys in one piece: microseconds, GB/s or TFLOP/s, and whether o has the same bits.

    python benchmarks/paged.py            # all shapes and page sizes, to the terminal
    python benchmarks/paged.py --quick    # fewer of each

bfloat16, causal; pages in random order. Needs a GPU.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

from decode import Shape, drawn

from flashgen.api import Attention
from flashgen.bench.timing import measure
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.runtime import arrays, cache, device
from flashgen.runtime.choice import Choice
from flashgen.runtime.clock import DeviceClock
from flashgen.spec import Spec

SHAPES = [
    Shape(64, 1, 8192, 32, 8, 128),
    Shape(1, 4096, 4096, 16, 16, 128, flops=True),
    Shape(1, 1, 131072, 32, 8, 128),
    Shape(128, 1, 2048, 64, 8, 64),
    Shape(1, 512, 65536, 8, 1, 128, flops=True),
    Shape(8, 2048, 2048, 16, 16, 64, flops=True),
]
PAGES = (16, 1, 256, 64, 8)


def spec_of(shape: Shape, page: int) -> Spec:
    """The spec of a shape; `page`: keys of a page, 0 for keys in one piece."""
    where = {"page": page} if page else "contiguous"
    return Spec(head_dim=shape.head_dim, dtype="bfloat16", mask="causal", name="paged", cache=where)


def sizes_of(shape: Shape, page: int) -> Sizes:
    """The sizes of a call."""
    n = shape.sizes
    of_pages = {"pages": shape.batch * shape.kv_len // page, "page": page} if page else {}
    return Sizes(batch=n.batch, q_len=n.q_len, kv_len=n.kv_len, heads=n.heads, kv_heads=n.kv_heads, **of_pages)


def compiled(shapes: list[Shape], pages: tuple[int, ...]) -> dict[tuple[int, int], Attention]:
    """A kernel for each head dim and page size; those that the shapes run are compiled before, side by side."""
    target, programs = device.current(), {}
    for shape, page in product(shapes, (0, *pages)):
        choice = Choice(spec_of(shape, page))
        length, asked_for = choice.kind(target.arch, sizes_of(shape, page))
        for program in (choice.plan(target.arch), choice.plan(target.arch, 0, length, target.name, asked_for)):
            programs[program.digest] = program
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda program: cache.binary(program, render(program)), programs.values()))
    return {(shape.head_dim, page): Attention(spec_of(shape, page)) for shape, page in product(shapes, (0, *pages))}


def in_pages(x: Any, table: Any, page: int) -> Any:
    """Keys [B, S, Hk, D] in the pages that a table names."""
    bits = x.view("uint16").reshape(-1, page, *x.shape[2:])
    found = arrays.cupy().empty_like(bits)
    found[table.ravel()] = bits
    return found.view(x.dtype)


def row(shape: Shape, kernels: dict[tuple[int, int], Attention], pages: tuple[int, ...], clock: DeviceClock, repetitions: int) -> None:
    """Prints the times of one shape."""
    cp = arrays.cupy()
    q, k, v = drawn(shape)
    lens = cp.full(shape.batch, shape.kv_len, "int32")
    calls, outs = {}, {}
    for page in (0, *pages):
        out, kv, given = cp.empty_like(q), (k, v), {"kv_lens": lens}
        if page:
            table = cp.random.permutation(shape.batch * shape.kv_len // page).astype("int32").reshape(shape.batch, -1)
            kv, given = tuple(in_pages(x, table, page) for x in kv), {"kv_lens": lens, "block_table": table}
        attn = kernels[shape.head_dim, page]
        calls[str(page)], outs[page] = (lambda attn=attn, kv=kv, out=out, given=given: attn(q, *kv, out=out, **given)), out
        calls[str(page)]()
    taken = measure(calls, clock, repetitions)
    unit = "TFLOP/s" if shape.flops else "GB/s"
    for page in (0, *pages):
        ms, same = taken[str(page)].ms, bool((outs[page].view("uint16") == outs[0].view("uint16")).all())
        what = f"page {page}" if page else "one piece"
        times, bits = ms / taken["0"].ms, "same bits" if same else "OTHER BITS"
        print(f"{shape.text:30} {what:10} {1e3 * ms:9.1f} us {shape.rate(ms):7.0f} {unit:8} {times:5.2f} {bits}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and page sizes, fewer repetitions")
    a = parser.parse_args()
    shapes, pages = (SHAPES[:4], PAGES[:3]) if a.quick else (SHAPES, PAGES)
    kernels, clock = compiled(shapes, pages), DeviceClock()
    for shape in shapes:
        row(shape, kernels, pages, clock, 3 if a.quick else 9)
        arrays.cupy().get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
