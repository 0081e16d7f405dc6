"""The rungs of the ladder: time, memory, and bytes of DRAM by Nsight Compute, beside what flashgen.plan.counts says.

    python benchmarks/ladder.py                     # all lengths, written to benchmarks/results/ladder_<card>.json
    python benchmarks/ladder.py --page folder       # also ladder.html and ladder.png

DRAM bytes are those of one cold call, all kernels of it, measured where `ncu` is on the path and may read the counters. Needs a GPU.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import flashgen
from flashgen.bench.results import card_name, environment
from flashgen.ladder import RUNGS, Shape, climb, write
from flashgen.runtime import arrays, device, measure

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")


def profile(shape: Shape, lengths: list[int]) -> dict[tuple[str, int], int] | None:
    """Bytes of DRAM by rung and length; None where they cannot be measured."""
    if not shutil.which("ncu"):
        return None
    script = [sys.executable, __file__, "--one-call-each", "--lengths", *map(str, lengths), "--head-dim", str(shape.head_dim)]
    script += ["--heads", str(shape.heads), "--batch", str(shape.batch)]
    command = ["ncu", "--metrics", ",".join(METRICS), "--csv", "--print-units", "base", "--profile-from-start", "off", *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    order = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("#call ")]
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))
    by_kernel: dict[str, int] = {}
    for row in rows:
        by_kernel[row["ID"]] = by_kernel.get(row["ID"], 0) + int(float(row["Metric Value"].replace(",", "")))
    if len(by_kernel) != sum(int(kernels) for _, _, kernels in order) or not order:
        print(f"ncu measured {len(by_kernel)} kernels: {(done.stdout + done.stderr)[-500:]}", file=sys.stderr)
        return None
    values = iter(by_kernel.values())
    return {(rung, int(length)): sum(next(values) for _ in range(int(kernels))) for rung, length, kernels in order}


def one_call_each(shape: Shape, lengths: list[int]) -> None:
    """Runs what ncu watches: a call of every rung that is kernels; says before each how many they are."""
    cupy = arrays.cupy()
    for length in lengths:
        q, k, v = map(measure.to_gpu, replace(shape, length=length).arrays())
        for rung in RUNGS:
            arch = rung.arch(device.current().arch)
            if rung.schedule is None or arch is None:
                continue
            attention = flashgen.compile(rung.spec(shape.head_dim, shape.dtype), arch)
            out = attention(q, k, v)
            print("#call", rung.name, length, len(attention.program.kernels), flush=True)
            cupy.cuda.profiler.start()
            attention(q, k, v, out=out)
            cupy.cuda.Device().synchronize()
            cupy.cuda.profiler.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--page", type=Path, help="a folder for ladder.html and ladder.png")
    parser.add_argument("--one-call-each", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    shape = Shape(max(a.lengths), a.head_dim, a.heads, a.batch, "float16")
    if a.one_call_each:
        one_call_each(shape, a.lengths)
        return
    if reason := device.missing():
        raise SystemExit(reason)
    found = climb(shape, a.lengths)
    if a.page:
        write(found, a.page)
    report = found.to_json() | environment()
    output = a.output or Path(__file__).parent / "results" / f"ladder_{card_name(report)}.json"
    output.write_text(json.dumps(report, indent=1) + "\n")
    dram = profile(shape, a.lengths) or {}
    for row in report["rows"]:
        row["dram"] = dram.get((row["rung"], row["length"]))
        counted, measured = row["counted"].get("dram"), row["dram"]
        beside = f"{measured / 1e6:8.1f} MB of DRAM, {measured / counted:.2f} of the formula" if measured and counted else ""
        cost = f"{row['milliseconds']:8.3f} ms {row['memory'] / 1e6:8.1f} MB"
        print(f"{row['length']:6} {row['rung']:11} {cost}  {row['error']:.1e}  {beside}")
    output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
