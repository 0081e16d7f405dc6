"""The numbers of the cost model that this card asks for: candidates of the planner timed, and the numbers fitted to their times.

    python benchmarks/fit.py                     # times, kept in benchmarks/results/fit_<card>.json, and fits: under two minutes of a GPU
    python benchmarks/fit.py --timings FILE      # fits to times that were kept; needs no GPU

Writes flashgen/plan/costs/<card>.toml: the tables that were fitted. An architecture is planned for by the file that names it in `serves`;
the one that is written names those that no other file serves. Of each table it prints how far the model is from the times (standard
deviation of the ratio), and what the model's choice loses against the fastest candidate, before and after.
"""

import argparse
import json
import math
import re
import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

from flashgen.arch import Arch, by_name
from flashgen.bench import DeviceClock, case
from flashgen.bench.cases import VARIANTS, draw
from flashgen.bench.results import card_name, environment, save_json
from flashgen.bench.timing import measure
from flashgen.plan import candidates, plan
from flashgen.plan.costs import model
from flashgen.plan.search import scored
from flashgen.plan.strategies import STRATEGIES
from flashgen.render import render
from flashgen.runtime import arrays, cache, device
from flashgen.runtime.choice import Choice
from flashgen.runtime.gpu import Gpu
from flashgen.spec import Spec

RESULTS, COSTS = Path(__file__).parent / "results", Path(model.__file__).parent
LENGTHS = (1024, 8192)
WORK = [("full", 64), ("causal", 64), ("full", 128), ("causal", 128), ("softcap", 128), ("full", 256), ("causal", 256)]
CANDIDATES, ROUNDS = 5, 3
KEPT_UNITS = ("keys", "FLOP a clock")  # of numbers that decide, or that are the hardware's
RANGE = 3.0  # times its first value, up or down, that a number may become
FIRST_STEP, LAST_STEP = 0.2, 0.01  # of the logarithm of a number
RELUCTANCE = 2e-4  # against leaving its first value: what times say nothing of stays there

Table = dict[str, dict[str, Any]]  # value, unit, of; by name


@dataclass(frozen=True)
class Group:
    """Candidates of one call: the clocks that the cost model counts, as a function, and the milliseconds measured."""

    name: str
    clocks: tuple[Callable[[], float], ...]
    ms: tuple[float, ...]


def specs() -> list[Spec]:
    """The specs to time."""
    return [Spec(name=name, head_dim=d, dtype="bfloat16", **VARIANTS[name]) for name, d in WORK]


def strategy_of(spec: Spec, arch: Arch) -> str:
    """The table of the strategy that serves a spec."""
    skeleton = plan(spec, arch).skeleton
    return next(one.costs for one in STRATEGIES if one.skeleton == skeleton)


def spread(names: Sequence[str], most: int = CANDIDATES) -> list[str]:
    """Some of the candidates, from the model's first to its last.

    >>> spread(["a", "b", "c", "d", "e"], 3)
    ['a', 'c', 'e']
    """
    count = min(most, len(names))
    return [names[round(i * (len(names) - 1) / max(1, count - 1))] for i in range(count)]


def chosen(spec: Spec, arch: Arch) -> list[str]:
    """The candidates that are timed: some of those that are legal at every length."""
    others = [set(candidates(spec, arch, length)) for length in LENGTHS[:-1]]
    return spread([name for name in candidates(spec, arch, LENGTHS[-1]) if all(name in found for found in others)])


def compile_one(given: dict[str, Any], arch: str, name: str) -> None:
    """Compiles a candidate for each length, into the cache on disk."""
    for length in LENGTHS:
        program = plan(Spec(**given), arch, 0, length, name)
        cache.binary(program, render(program))


def compile_all(arches: Sequence[Arch]) -> None:
    """Compiles all candidates, in processes, so that every core compiles while this one still plans: NVRTC takes seconds for each."""
    with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
        jobs = [
            pool.submit(compile_one, spec.to_json(), arch.name, name) for arch in arches for spec in specs() for name in chosen(spec, arch)
        ]
        for done, job in enumerate(jobs, 1):
            job.result()
            if done % 20 == 0 or done == len(jobs):
                print(f"{done} of {len(jobs)} candidates compiled", flush=True)


def timed(spec: Spec, arch: Arch, length: int, clock: DeviceClock) -> list[dict[str, Any]]:
    """The milliseconds of some candidates at a length."""
    kernels = {name: Gpu(spec, arch, Choice(spec, name)) for name in chosen(spec, arch)}
    drawn = draw(case(spec, length), arrays.cupy())
    given = tuple(drawn[name] for name in "qkv")
    taken = measure({name: lambda gpu=gpu: gpu(given, (), {}) for name, gpu in kernels.items()}, clock, ROUNDS)
    fastest = min(taken, key=lambda name: taken[name].ms)
    print(f"{arch.name}, {spec.name} {spec.head_dim.qk}, {length} keys: {taken[fastest].ms:.3f} ms by {fastest}", flush=True)
    known = {"spec": spec.name, "head_dim": spec.head_dim.qk, "arch": arch.name, "length": length}
    return [{**known, "candidate": name, "ms": round(timing.ms, 5)} for name, timing in taken.items()]


def groups(rows: Sequence[Mapping[str, Any]], arch: Arch) -> list[Group]:
    """The times of an architecture's kernels beside the model's clocks."""
    found: list[Group] = []
    for spec in specs():
        for length in LENGTHS:
            known = {"spec": spec.name, "head_dim": spec.head_dim.qk, "arch": arch.name, "length": length}
            model_of = scored(spec, arch, length)
            of = [row for row in rows if known.items() <= row.items() and row["candidate"] in model_of]
            if of:
                name = f"{spec.name} {spec.head_dim.qk} {length}"
                found.append(Group(name, tuple(model_of[row["candidate"]] for row in of), tuple(row["ms"] for row in of)))
    return found


def deviation(found: Sequence[Group]) -> float:
    """The standard deviation of the logarithm of times over clocks, within groups: how large a clock is does not count."""
    squares: list[float] = [] if found else [0.0]
    for group in found:
        ratios = [math.log(ms / clocks()) for clocks, ms in zip(group.clocks, group.ms, strict=True)]
        squares += [(ratio - statistics.fmean(ratios)) ** 2 for ratio in ratios]
    return math.sqrt(statistics.fmean(squares))


def lost(found: Sequence[Group]) -> float:
    """The time that the candidate of fewest clocks loses against the fastest, on average: 0.02 is 2 %."""
    choices = [min(zip(group.clocks, group.ms, strict=True), key=lambda one: one[0]())[1] / min(group.ms) for group in found]
    return statistics.fmean(choices) - 1


def fitted(strategy: str, table: Table, found: Sequence[Group]) -> dict[str, float | list[float]]:
    """The numbers with which the model is nearest to the times: one after the other a step up or down, ever smaller steps."""
    first = {name: entry["value"] for name, entry in table.items()}
    places = [(name, i) for name, entry in table.items() if entry["unit"] not in KEPT_UNITS for i in range(len(_listed(first[name])))]
    logs = dict.fromkeys(places, 0.0)

    def numbers() -> dict[str, float | list[float]]:
        made = {name: [x * math.exp(logs.get((name, i), 0.0)) for i, x in enumerate(_listed(value))] for name, value in first.items()}
        return {name: x if isinstance(first[name], list) else x[0] for name, x in made.items()}

    def badness() -> float:
        with model.trying(strategy, numbers()):
            return deviation(found) ** 2 + RELUCTANCE * sum(log * log for log in logs.values())

    step, best = FIRST_STEP, badness()
    while step >= LAST_STEP:
        before = best
        for place in places:
            for move in (step, -step):
                here = logs[place]
                if abs(here + move) > math.log(RANGE) or (table[place[0]]["unit"] == "share" and _over(first, place, here + move)):
                    continue
                logs[place] = here + move
                if (now := badness()) < best:
                    best = now
                    break
                logs[place] = here
        if best >= 0.999 * before:
            step /= 2
    return numbers()


def _listed(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def _over(first: Mapping[str, float | list[float]], place: tuple[str, int], log: float) -> bool:
    """True if a share would be more than all."""
    return _listed(first[place[0]])[place[1]] * math.exp(log) > 1


def tables() -> dict[str, Table]:
    """The tables of the H100, from which fits begin."""
    return {name: table for name, table in tomllib.loads((COSTS / "h100.toml").read_text()).items() if isinstance(table, dict)}


def written(card: str, arches: Sequence[str], found: Mapping[str, Mapping[str, float | list[float]]], commit: str) -> str:
    """The text of a card's file."""
    lines = [f"# Fitted by benchmarks/fit.py to candidates timed, commit {commit}; what each number is of, h100.toml says as well.\n"]
    lines += [f"card = {json.dumps(card)}", f"serves = {json.dumps(list(arches))}"]
    for strategy, numbers in found.items():
        lines.append(f"\n[{strategy}]")
        for name, value in numbers.items():
            entry = tables()[strategy][name]
            said = json.dumps([_round(x) for x in value] if isinstance(value, list) else _round(value))
            lines.append(f"{name} = {{ value = {said}, unit = {json.dumps(entry['unit'])}, of = {json.dumps(entry['of'])} }}")
    return "\n".join(lines) + "\n"


def _round(x: float) -> float:
    """Three digits; whole numbers stay so."""
    return round(x) if x >= 100 else float(f"{x:.3g}")


def file_of(card: str) -> Path:
    """The file of a card, by the part of its name that tells it apart: h200 for NVIDIA H200."""
    words = [word for word in re.findall(r"[a-z0-9]+", card.lower()) if word not in ("nvidia", "geforce", "tesla", "quadro")]
    return COSTS / f"{words[0] if any(map(str.isdigit, words[0])) else ''.join(words[:2])}.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timings", type=Path, help="times that were kept")
    a = parser.parse_args()
    if a.timings:
        results = json.loads(a.timings.read_text())
    else:
        here, clock = device.current(), DeviceClock()
        arches = [here.arch, *([by_name("sm_90")] if here.arch.name == "sm_90a" else [])]  # whose kernels run there too, by mma.sync
        compile_all(arches)
        results = {**environment(), "suite": "fit", "rows": []}
        for arch, spec, length in product(arches, specs(), LENGTHS):
            results["rows"] += timed(spec, arch, length, clock)
            save_json(results, RESULTS / f"fit_{card_name(results)}.json")  # so that a run that is cut short leaves its times
    found: dict[str, dict[str, float | list[float]]] = {}
    for name in dict.fromkeys(row["arch"] for row in results["rows"]):
        arch, strategy = by_name(name), strategy_of(specs()[0], by_name(name))
        measured = groups(results["rows"], arch)
        before = deviation(measured), lost(measured)
        found[strategy] = fitted(strategy, tables()[strategy], measured)
        with model.trying(strategy, found[strategy]):
            after = deviation(measured), lost(measured)
        count = sum(len(group.ms) for group in measured)
        said = ", ".join(
            f"{what} {x:.1%} before and {y:.1%} after" for what, x, y in zip(("off by", "choice loses"), before, after, strict=True)
        )
        print(f"{strategy} on {name}: {count} times of {len(measured)} calls, {said}")
    card, path = results["gpu"], file_of(results["gpu"])
    others = {arch for file in COSTS.glob("*.toml") if file != path for arch in tomllib.loads(file.read_text())["serves"]}
    free = [arch for arch in dict.fromkeys(row["arch"] for row in results["rows"]) if arch not in others]
    path.write_text(written(card, free, found, results["commit"]))
    print(path, f"serves {', '.join(free)}" if free else "serves no architecture: another card's file does")


if __name__ == "__main__":
    main()
