"""Chooses the plan that serves a call, by the architecture and the arrays' layouts, wherever the plan then runs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from flashgen.arch import Arch
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes, sizes_of
from flashgen.plan.program import Program
from flashgen.plan.search import LENGTHS
from flashgen.plan.shares import WHOLE, Demand, Demands, pinned
from flashgen.runtime import tma
from flashgen.runtime.arguments import rows_first
from flashgen.runtime.arrays import Layout, liken
from flashgen.runtime.tuned import length_class, of_sequence, planned
from flashgen.spec import Spec


class Choice:
    """The plans of a spec, made as calls need them. `reasons` tells why a call does not run the first plan of its architecture."""

    def __init__(self, spec: Spec, candidate: str | None = None):
        self.spec, self.reasons = spec, dict[str, None]()
        self._packed = "kv_len" in spec.geometry.behind
        self.candidate = candidate  # of the planner; None: as tuned, or the planner's choice
        self._plans: dict[tuple[Any, ...], Program] = {}  # by what `plan` is asked for
        self._demands: dict[str, Demands] = {}  # by arch

    def plan(
        self,
        arch: Arch,
        copy_bytes: int = 0,
        length: int = LENGTHS[-1],
        card: str | None = None,
        asked_for: Demand | None = None,
    ) -> Program:
        """The plan for rows aligned to `copy_bytes` (0: as the architecture likes them best), fast for a class of lengths on a card, by
        default the current one, and for what the lengths of a call ask for. Raises PlanError, SpecError."""
        asked_for = pinned(self.spec) if asked_for is None else asked_for
        asked = arch.name, copy_bytes, length, card, asked_for
        if asked not in self._plans:
            if copy_bytes or self.candidate or asked_for != WHOLE:
                candidate = self.candidate if asked_for == WHOLE and not copy_bytes else None
                self._plans[asked] = plan(self.spec, arch.name, copy_bytes, length, candidate, asked_for)
            else:
                self._plans[asked] = planned(self.spec, arch, length, card)
        return self._plans[asked]

    def serving(self, arch: Arch, layouts: Mapping[str, Layout], card: str | None = None) -> Program:
        """The plan for arrays of these layouts: q, k, v, and o where the caller gives one. Raises PlanError, SpecError."""
        sizes = self.sizes(layouts)
        if 0 in layouts["k"].shape:  # nothing is read through k and v, and a launch has q in their place
            layouts = {**layouts, "k": layouts["q"], "v": layouts["q"]}
        names = ("q", "k", "v", self.spec.kept)  # if that is o_raw, a kernel of its own writes o element by element, whatever its strides
        by_rows = {name: rows_first(layouts[name], self.spec.layout_of(name)) for name in names if name in layouts}
        length, asked_for = self.kind(arch, sizes)
        preferred = self.plan(arch, 0, length, card, asked_for)
        if not (found := faults(preferred, by_rows)):
            return preferred
        aligned = min(layout.row_alignment for layout in by_rows.values())
        self.reasons[f"{'; '.join(found)}. So a kernel that copies {aligned} bytes at a time serves such calls"] = None
        return self.plan(arch, aligned, length, card, asked_for)

    def kind(self, arch: Arch, sizes: Sizes) -> tuple[int, Demand]:
        """The kind of a call's lengths: a class of numbers of keys, and what else they demand of a plan.

        Where query rows are few, or sequences lie one behind the other, one plan serves any number of keys, so that a sequence's result
        does not change as others grow.
        """
        if arch.name not in self._demands:
            self._demands[arch.name] = Demands(self.spec, arch)
        asked_for = self._demands[arch.name].of(sizes)
        if asked_for.rows or (asked_for.shared and self.spec.geometry.packed):
            return LENGTHS[-1], asked_for
        return length_class(of_sequence(sizes, self._packed)), asked_for

    def sizes(self, layouts: Mapping[str, Layout]) -> Sizes:
        """The sizes of a call on arrays of these layouts."""
        q, k = (rows_first(layouts[name], self.spec.layout_of(name)).shape for name in "qk")
        lengths = {name: layouts[name].shape if name in layouts else (2, 2) for name in self.spec.sizing}
        return sizes_of(self.spec, q, k, lengths)

    def serving_arrays(self, arch: Arch, q: Any, k: Any, v: Any, values: Mapping[str, Any] = MappingProxyType({})) -> Program:
        """The plan for these arrays; `values` has the lengths of sequences, if a call gives such. Raises PlanError, SpecError."""
        given = {"q": q, "k": k, "v": v} | {name: values[name] for name in self.spec.sizing if name in values}
        return self.serving(arch, {name: liken(x, name).layout for name, x in given.items()})


def faults(preferred: Program, by_rows: Mapping[str, Layout]) -> list[str]:
    """The reasons why a plan does not serve arrays [B, S, H, D]. The interpreter's serves all."""
    if not preferred.arguments:
        return []
    mapped = {argument.of for argument in preferred.arguments if argument.kind == "tensor_map"}
    found = []
    for name, layout in by_rows.items():
        if name == preferred.spec.kept and preferred.combine and not preferred.work_list:  # which writes it element by element
            continue
        if name in mapped:
            found += [f"{name}: {fault}"] if (fault := tma.addressable(layout)) else []
        elif layout.row_alignment < (least := preferred.main.pipeline.copy_bytes):
            found.append(f"{name}: rows are aligned to {layout.row_alignment} bytes, not {least}")
    return found
