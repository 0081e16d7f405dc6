"""Counts what an element of a key tile takes in each variant, foretold by the plan and counted in the machine code: a table.

Needs NVRTC and nvdisasm, no GPU.

    python benchmarks/instructions.py
"""

from flashgen.bench.cases import VARIANTS
from flashgen.plan import plan
from flashgen.plan.engines.instructions import instructions
from flashgen.render import render
from flashgen.runtime import nvrtc
from flashgen.runtime.machine_code import disassemble, key_tile
from flashgen.spec import Spec

HEAD_DIMS = (64, 128)


def row(variant: str, head_dim: int) -> str:
    """A row of one kernel: special functions, multiplies and adds, each foretold and found, and all instructions."""
    spec = Spec(head_dim=head_dim, dtype="bfloat16", name=variant, **VARIANTS[variant])
    chosen = plan(spec, "sm_90a")
    if chosen.attention.dealing.listed:  # a loop over a list holds both kinds of tiles
        chosen = plan(spec, "sm_90a", length=1024)
    binary = nvrtc.compile(render(chosen))
    per_element = 2 / chosen.attention.tile.block_n
    foretold = instructions(chosen.attention.tile, chosen.attention.pipeline, chosen.softmax, chosen.holes).times(per_element)
    found = key_tile(disassemble(binary), chosen).times(per_element)
    cells = [variant, str(head_dim), chosen.attention.tile.text]
    cells += [f"{x:.2f}" for x in (foretold.special, found.special, foretold.multiply, found.multiply, found.floats + found.other)]
    return " | ".join(["", *cells, str(binary.spill_bytes), ""]).strip()


def main() -> None:
    print("| variant | head dim | tile | MUFU foretold | found | FFMA, FMUL, FADD foretold | found | all | spilled |")
    print("|---|---|---|---|---|---|---|---|---|")
    for variant in VARIANTS:
        for head_dim in HEAD_DIMS:
            print(row(variant, head_dim), flush=True)


if __name__ == "__main__":
    main()
