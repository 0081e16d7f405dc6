"""Inside: the plan and its reasons, the CUDA text, a cubin for another machine's GPU. None of it needs a GPU."""

from pathlib import Path

import flashgen
from flashgen.plan import plan
from flashgen.render import render
from flashgen.runtime import nvrtc

SPEC = Path(__file__).parent.parent / "specs" / "softcap.yaml"


def main() -> None:
    spec = flashgen.load(SPEC)
    chosen = plan(spec, "sm_90a")
    for field, reason in chosen.decision.reasons:
        print(f"{field}: {reason}")
    others = chosen.decision.rejected
    print(f"{len(others)} other candidates, the next best {others[0].candidate}: {others[0].reason}")
    source = render(chosen)
    lines = source.text.splitlines()
    score = next(i for i, line in enumerate(lines) if " float score(" in line)
    print("\nthe spec's score in the kernel:", *lines[score - 1 : score + 3], sep="\n")
    binary = nvrtc.compile(source)
    print(f"\n{len(binary.cubin)} bytes of cubin for {source.arch} by {binary.compiler}:")
    print(f"{binary.registers} registers, {binary.spill_bytes} bytes spilled")


if __name__ == "__main__":
    main()
