"""Times each variant beside the plain kernel of the same run and the peers that can express it, B 2, S 8192, hidden size 2048.

    python benchmarks/variants.py                         # written to benchmarks/results/variants_<card>.json

`predicted_ms`: the plain causal kernel's time, times the keys that the variant's rows take over those that causal's take. A first
call's time (`compile_s`, on whatever cache there is) and the time to build a mask (`mask_ms`) are apart. Needs a GPU.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from flashgen.bench import Case, DeviceClock, Results, case, implementations, run
from flashgen.bench.cases import VARIANTS, draw_tensor
from flashgen.bench.peers import OURS, is_peer
from flashgen.bench.results import card_name, environment, save_json, to_json
from flashgen.plan import plan
from flashgen.runtime import arrays, device
from flashgen.spec import Spec

BATCH, LENGTH = 2, 8192
RESULTS = Path(__file__).parent / "results"


def key_tiles(one: Case) -> float:
    """Keys that rows which compute together take, on average."""
    chosen = plan(one.spec, device.current().arch)
    values = {t.name: draw_tensor(t, one.sizes, np) for t in one.spec.tensors if t.dtype == "int32"}  # that masks read
    known = {**values, **{p.name: p.default for p in one.spec.params}, "b": 0, "h": 0, "hk": 0}
    begin, end = chosen.attention.computed.evaluate(LENGTH, LENGTH, known)
    return float(np.maximum(end - begin, 0).sum(0).mean()) * chosen.attention.tile.block_n


def rows(results: Results, found: dict[str, Any]) -> dict[str, Any]:
    """The results, each row with what is particular to variants."""
    ours = {(one.case.spec.head_dim.qk, one.case.variant): one for one in results.measured if one.implementation == OURS}
    made = to_json(results, "variants", found)
    for row, one in zip(made["rows"], results.measured, strict=True):
        row |= {"compile_s": round(one.compile_s, 2), "mask_ms": round(one.mask_ms, 2)}
        causal = ours.get((row["head_dim"], "causal"))
        if one.implementation == OURS and causal:
            row["predicted_ms"] = round(causal.ms * key_tiles(one.case) / key_tiles(causal.case), 4)
    return made


def line(row: dict[str, Any], causal: dict[int, float]) -> str:
    """One row for people."""
    predicted = f"{row['ms'] / row['predicted_ms']:.2f} of what causal predicts" if "predicted_ms" in row else ""
    apart = f"first call {row['compile_s']:.1f} s, mask {row['mask_ms']:.1f} ms"
    relative = f"{row['ms'] / causal[row['head_dim']]:.2f} of causal"
    return f"{row['head_dim']:3} {row['spec']:13} {row['implementation']:16} {row['ms']:7.3f} ms  {relative}  {apart}  {predicted}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    a = parser.parse_args()
    cases = [
        case(Spec(head_dim=d, dtype="bfloat16", name=name, **VARIANTS[name]), LENGTH, BATCH)
        for d in a.head_dims
        for name in dict.fromkeys(["causal", *a.only])
    ]
    found = environment()
    contenders = [one for one in implementations(device.current().arch) if one.name == OURS or is_peer(one.name)]
    results = run(cases, contenders, DeviceClock(), arrays.cupy())
    made = rows(results, found)
    save_json(made, RESULTS / f"variants_{card_name(found)}.json")
    causal = {r["head_dim"]: r["ms"] for r in made["rows"] if r["spec"] == "causal" and r["implementation"] == OURS}
    for row in made["rows"]:
        print(line(row, causal))
    for skipped in made["skipped"]:
        print(f"not timed: {skipped['case']}, {skipped['implementation']}: {skipped['reason']}")


if __name__ == "__main__":
    main()
