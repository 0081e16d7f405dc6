"""Times every spec that ships beside causal attention of the same sizes: what each costs, which `docs/variants.py` puts into its table.

    python benchmarks/library.py                            # written to benchmarks/results/library_<card>.json

Sequences of 4,096 tokens, 8,192 in all, arrays as `flashgen.bench` draws them; both take turns. A spec that fails is named, and the
others are timed. Needs a GPU.
"""

import argparse
import functools
from pathlib import Path
from typing import Any

import compiling
import cupy

import flashgen
from flashgen.bench import DeviceClock, case
from flashgen.bench.cases import draw
from flashgen.bench.results import card_name, environment, save_json
from flashgen.bench.timing import Run, measure
from flashgen.runtime import device
from flashgen.spec import Spec
from flashgen.spec.files import load
from flashgen.spec.shipped import library

BATCH, LENGTH, REPETITIONS = 2, 4096, 5
RESULTS = Path(__file__).parent / "results"


def forward(spec: Spec) -> Spec:
    """A spec's forward, and no output besides o."""
    return Spec(**(spec.to_json() | {"outputs": ["o"], "backward": None}))


def causal(spec: Spec) -> Spec:
    """Causal attention on arrays like those of a spec."""
    plain = {"head_dim": spec.to_json()["head_dim"], "dtype": spec.dtype, "mask": "causal", "name": "causal"}
    return forward(Spec(**plain, **({"group": spec.group} if spec.group else {})))


def call(spec: Spec) -> Run:
    """A call on arrays of its own."""
    values, attention = draw(case(spec, LENGTH, BATCH), cupy), flashgen.compile(spec)
    return lambda: attention(**values)


kept = functools.cache(call)  # of what many specs are timed beside, whose arrays stay


def row(spec: Spec, clock: DeviceClock) -> dict[str, Any]:
    """The time of a call, and of causal attention beside it."""
    found = measure({"spec": call(spec), "causal": kept(causal(spec))}, clock, REPETITIONS)
    ms, beside = found["spec"].ms, found["causal"].ms
    return {"dtype": spec.dtype, "ms": round(ms, 4), "causal_ms": round(beside, 4), "causal": round(ms / beside, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(library()), help="names of specs")
    a = parser.parse_args()
    specs = {name: forward(load(library()[name].path)) for name in a.only}
    arch = device.current().arch.name
    every = [one for spec in specs.values() for one in (spec, causal(spec))]
    compiling.compiled(compiling.Asked(spec, arch, LENGTH) for spec in every)
    found, clock = environment(), DeviceClock()
    results: dict[str, Any] = found | {"suite": "library", "batch": BATCH, "length": LENGTH, "skipped": {}, "rows": []}
    path = RESULTS / f"library_{card_name(found)}.json"
    for name, spec in specs.items():
        try:
            timed = row(spec, clock)
            results["rows"].append({"spec": name} | timed)
            print(f"{name:22} {timed['ms']:8.3f} ms  {timed['causal']:6.2f} of causal", flush=True)
        except Exception as error:  # whatever it is: the others are still timed
            results["skipped"][name] = reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            print(f"{name:22} not timed: {reason}", flush=True)
        cupy.get_default_memory_pool().free_all_blocks()
        save_json(results, path)


if __name__ == "__main__":
    main()
