"""Times every spec that ships beside causal attention of the same sizes: what each costs, which `docs/variants.py` puts into its table.

    python benchmarks/library.py                            # written to benchmarks/results/library_<card>.json

Sequences of 4,096 tokens, 8,192 in all, arrays as `flashgen.bench` draws them. Needs a GPU.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import compiling

import flashgen
from flashgen.bench import Case, DeviceClock, case
from flashgen.bench.cases import draw
from flashgen.bench.results import card_name, environment
from flashgen.bench.timing import measure
from flashgen.errors import FlashgenError
from flashgen.runtime import arrays, device
from flashgen.spec import Spec
from flashgen.spec.files import load
from flashgen.spec.shipped import library

BATCH, LENGTH, REPETITIONS = 2, 4096, 7
RESULTS = Path(__file__).parent / "results"


def causal(spec: Spec) -> Spec:
    """Causal attention on arrays like those of a spec."""
    plain = {"head_dim": spec.to_json()["head_dim"], "dtype": spec.dtype, "mask": "causal", "name": "causal"}
    return Spec(**plain, **({"group": spec.group} if spec.group else {}))


def milliseconds(one: Case, clock: DeviceClock) -> float:
    """Milliseconds of a call."""
    values = draw(one, arrays.cupy())
    attention = flashgen.compile(Spec(**(one.spec.to_json() | {"outputs": ["o"], "backward": None})))
    return measure({"": lambda: attention(**values)}, clock, REPETITIONS)[""].ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(library()), help="names of specs")
    a = parser.parse_args()
    specs = {name: load(library()[name].path) for name in a.only}
    arch = device.current().arch.name
    every = [Spec(**(one.to_json() | {"outputs": ["o"], "backward": None})) for spec in specs.values() for one in (spec, causal(spec))]
    compiling.compiled(compiling.Asked(spec, arch, LENGTH) for spec in every)
    found, clock, plain = environment(), DeviceClock(), {}
    rows: dict[str, Any] = {}
    for name, spec in specs.items():
        base = causal(spec)
        try:
            if base not in plain:
                plain[base] = milliseconds(case(base, LENGTH, BATCH), clock)
            ms = milliseconds(case(spec, LENGTH, BATCH), clock)
        except FlashgenError as error:
            print(f"{name:22} not timed: {str(error).splitlines()[0][:120]}", flush=True)
            continue
        rows[name] = {"ms": round(ms, 4), "causal": round(ms / plain[base], 2)}
        print(f"{name:22} {ms:8.3f} ms  {ms / plain[base]:6.2f} of causal", flush=True)
    path = RESULTS / f"library_{card_name(found)}.json"
    path.write_text(json.dumps({"environment": found, "batch": BATCH, "length": LENGTH, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
