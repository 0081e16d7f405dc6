"""What a plan does, a line a concern: the banner of the emitted file and the top of `flashgen explain`."""

from flashgen.plan.model import Plan
from flashgen.plan.schedule import describe as describe_schedule


def describe(plan: Plan) -> list[tuple[str, str]]:
    """Label and text of each line."""
    spec, tile, pipe = plan.spec, plan.tile, plan.pipeline
    rows = "[B, Sq, Hq, {}]" if spec.layout == "bshd" else "[B, Hq, Sq, {}]"
    keys = "[B, Sk, Hq / group, {}]" if spec.layout == "bshd" else "[B, Hq / group, Sk, {}]"
    qk, v = spec.head_dim.qk, spec.head_dim.v
    other = spec.out_dtype
    arrays = (
        f"q {rows.format(qk)} {spec.dtype}    k {keys.format(qk)}    v {keys.format(v)}    o {rows.format(v)} {other}"
        if other
        else f"q, o {rows.format(qk)} {spec.dtype}    k, v {keys.format(qk)}"
        if qk == v
        else f"q {rows.format(qk)} {spec.dtype}    o {rows.format(v)}    k {keys.format(qk)}    v {keys.format(v)}"
    )
    shared = " | ".join(f"{r.name} {f'{r.count} x ' if r.count > 1 else ''}{r.bytes}" for r in plan.smem.regions if not r.barrier)
    return [
        ("arrays", f"{arrays}    lse [B, Hq, Sq] float32, natural log" if "lse" in spec.outputs else arrays),
        ("score", plan.holes.description_score),
        ("mask", plan.holes.description_mask),
        *([("planes", plan.split.text)] if plan.split else []),
        ("tile", f"{tile.block_m} queries x {tile.block_n} keys    {_workers(plan)}"),
        ("keys", f"of a query tile: {_runs(plan)}"),
        ("order", _order(plan)),
        ("softmax", describe_schedule(plan.softmax)),
        ("shared", f"{shared} | {pipe.stages_text}    {plan.smem.bytes} of {plan.smem.capacity} bytes"),
    ]


def _workers(plan: Plan) -> str:
    pipe = plan.pipeline
    if pipe.load_warps:
        turns = ", in turns" if pipe.turns else ""
        others = "1 loads and splits values, 1 splits keys" if pipe.in_place else "1 loads"
        return f"{pipe.warps // 4} warpgroups compute 64 query rows each{turns}, {others}"
    return f"{pipe.warps} warps compute {plan.tile.block_m // pipe.warps} query rows each and share the loads"


def _runs(plan: Plan) -> str:
    if plan.softmax.materialize:
        return "all tiles, the mask tested in each"
    masked = [loop.masked for loop in plan.ranges.loops]
    kinds = ", ".join("masked" if m else "unmasked" for m in masked)
    order = "outside the query tiles" if plan.softmax.outer == "kv" else "taken downwards"
    how = f"by extents of {', '.join(p.text for p in plan.ranges.pairings)}" if plan.ranges.pairings else "in closed form"
    return f"{len(masked)} run{'s' if len(masked) > 1 else ''} of tiles {how} ({kinds}), {order}"


def _order(plan: Plan) -> str:
    launch = plan.launch
    first = "longest query tiles first, in sections of heads that share the L2" if launch.longest_first else "head by head"
    taken = "a block a query tile" if plan.tile.query_tiles == 1 else f"{plan.tile.query_tiles} query tiles a block"
    return f"{first}, {'dealt by a counter' if launch.dealt else taken}"
