"""Plans the backward of a spec: a Program of its own, whose kernels take what the forward left behind."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from flashgen.arch import Arch, by_name
from flashgen.errors import PlanError
from flashgen.expr import analyse, holes, lower, row_ranges
from flashgen.plan.backward_kernel import Backward
from flashgen.plan.backward_strategies import BACKWARD_STRATEGIES
from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.kernels.exact_sums import check as check_sums
from flashgen.plan.kernels.exact_sums import reasons as sums_reasons
from flashgen.plan.kernels.exact_sums import with_exact_sums
from flashgen.plan.kernels.key_lists import query_lists, seen_tiles
from flashgen.plan.kernels.key_ranges import row_ranges as ranges_of_rows
from flashgen.plan.kernels.round_do import reasons as rounding_reasons
from flashgen.plan.kernels.round_do import rounded_do
from flashgen.plan.kernels.through_output import reasons as output_reasons
from flashgen.plan.kernels.through_output import through_output
from flashgen.plan.kernels.unembed import embedded
from flashgen.plan.kernels.unembed import reasons as embedding_reasons
from flashgen.plan.lists import listed
from flashgen.plan.lists import reasons as lists_reasons
from flashgen.plan.program import Decision, Parts, Program, Rejected
from flashgen.plan.search import DOCUMENT, LENGTHS, seen, tried
from flashgen.plan.strategy import GRAIN, STRIPE, BackwardStrategy, Draft, Problem, Request, Tried, serving
from flashgen.spec import Spec
from flashgen.theory.schedule import SoftmaxPlan


@lru_cache(256)
def plan_backward(
    spec: Spec,
    arch: str | Arch = "sm_90a",
    copy_bytes: int = 0,
    length: int = LENGTHS[-1],
    candidate: str | None = None,
    head_shares: int = 1,
) -> Program:
    """The kernels that give the gradients of a spec, for an architecture: delta, backward, and finish_queries where backward does not
    round dq itself; before them those that find the rows of a key tile where tensors tell them.

    `copy_bytes`: as of `flashgen.plan.plan`, of q, k, v, o and their gradients; `length`: likewise, here of query rows. `candidate`: one of
    `backward_candidates`, in place of the first of them. `head_shares`: blocks that share the query heads of a key tile
    (`flashgen.plan.head_shares`), where the kernel can.
    What the spec pins of tiles and schedules is the forward's. Raises PlanError, SpecError.

    >>> program = plan_backward(Spec(head_dim=128, dtype="bfloat16", backward=True), "sm_80")
    >>> [kernel.entry for kernel in program.kernels]
    ['delta', 'backward', 'finish_queries']
    """
    strategy, problem = _problem(spec, arch, copy_bytes, length, head_shares)
    found = tried(problem, strategy)
    best = next((draft for draft, _ in found.legal if draft.text == candidate), None) if candidate else found.legal[0][0]
    assert best, candidate
    parts = through_output(spec, best.tile, _preceded(problem, best, strategy.parts(problem, best)))
    parts = with_exact_sums(spec, embedded(spec, rounded_do(spec, parts)))
    return Program(
        spec=spec,
        arch=problem.arch,
        skeleton=strategy.skeleton,
        expressions=problem.expressions,
        holes=problem.holes,
        softmax=problem.softmax,
        kernels=parts.kernels,
        arguments=parts.arguments,
        scratch=parts.scratch,
        decision=_decision(
            strategy,
            problem,
            found,
            best,
            (*_passed(strategy, problem.request), *_of_tiles(problem, parts, length), *_of_arrays(spec)),
        ),
    )


def _decision(strategy: BackwardStrategy, problem: Problem, found: Tried, best: Draft, further: tuple[tuple[str, str], ...]) -> Decision:
    """Why the best candidate is it, and the others are not; `further`: reasons besides."""
    cost = next(clocks for draft, clocks in found.legal if draft is best)
    slower = [
        (draft, f"{clocks['total'] / (cost['total'] or 1):.2f} times the clocks of {best.text}")
        for draft, clocks in found.legal
        if draft is not best
    ]
    count = f"{len(found.legal)} legal candidates ({len(found.refused)} rejected)"
    chosen = f"the fewest clocks at length {problem.seen.length}" if best is found.legal[0][0] else "flashgen tune measured it,"
    return Decision(
        cost=tuple(cost.items()),
        reasons=(
            ("tile", f"{chosen} of {count}"),
            *costs.reasons(problem.arch, strategy.costs),
            *further,
            *strategy.reasons(problem, best, found),
        ),
        rejected=tuple(Rejected(draft.text, reason, draft.tile.block_m) for draft, reason in (*slower, *found.refused)),
    )


def backward_candidates(spec: Spec, arch: str | Arch = "sm_90a", length: int = LENGTHS[-1], each_tile: bool = False) -> tuple[str, ...]:
    """The legal candidates of a backward, the fastest by the cost model first. Raises PlanError, SpecError.

    `each_tile`: the fastest of each tile alone.

    >>> backward_candidates(Spec(head_dim=128, dtype="bfloat16", backward=True))[0]
    '80x128, 2 stages, 8 warps'
    """
    strategy, problem = _problem(spec, arch, 0, length, 1)
    return tried(problem, strategy).names(each_tile)


@lru_cache(1024)
def check_differentiable(spec: Spec, arch: Arch) -> None:
    """Raises PlanError where no kernel of an architecture has the gradients of a spec. Plans nothing: some microseconds, so that `compile`
    can ask, and more where gradients of tensors shall be the same bits in every run."""
    request = Request(spec, arch, 0, backward=True)
    _check(request)
    if all(strategy.serves(request) for strategy in reversed(BACKWARD_STRATEGIES)):  # that which serves most, and looks least, first
        serving(BACKWARD_STRATEGIES, request)
    if not arch.on_cpu:
        limits.check_head_dims(request)


def _problem(spec: Spec, arch: str | Arch, copy_bytes: int, length: int, head_shares: int) -> tuple[BackwardStrategy, Problem]:
    """The strategy that serves a spec's backward, and what it plans for."""
    request = Request(replaced(spec), by_name(arch) if isinstance(arch, str) else arch, copy_bytes, backward=True, head_shares=head_shares)
    _check(request)
    strategy = serving(BACKWARD_STRATEGIES, request)
    expressions = lower(spec)
    ranges = analyse(expressions.mask, STRIPE, GRAIN, geometry=spec.geometry, params=spec.params)
    of_rows = row_ranges(expressions.mask, STRIPE, GRAIN, spec.tensors, spec.geometry, spec.params)
    found = seen(spec, expressions, ranges, DOCUMENT if ranges.pairings else length)
    problem = Problem(
        request=request,
        expressions=expressions,
        holes=holes(expressions, spec, request.arch.tanh, backward=True, beyond=strategy.beyond),
        softmax=SoftmaxPlan(normalized=spec.softmax.normalized, sink=spec.softmax.sink is not None),
        seen=replace(found, listed=listed(request, strategy, of_rows, length)),
    )
    return strategy, problem


def _preceded(problem: Problem, best: Draft, parts: Parts) -> Parts:
    """The kernels of a backward behind those that find which query tiles a key tile meets, where tensors or lists tell them."""
    if not parts.arguments:  # nothing is launched
        return parts
    (main,) = (kernel for kernel in parts.kernels if isinstance(kernel, Backward))
    if problem.seen.listed:
        parts = parts.preceded(query_lists(problem.spec, best.tile))
    if problem.seen.listed == "mask":
        parts = parts.preceded(seen_tiles(best.tile, problem.expressions.mask, problem.holes, bits=False, early=False))
    return parts.preceded(ranges_of_rows(main.ranges))


def _of_tiles(problem: Problem, parts: Parts, length: int) -> Iterator[tuple[str, str]]:
    """Why tiles are listed, and why blocks share the query heads of a key tile, where they do."""
    yield from lists_reasons(problem.spec, problem.seen.listed, length)
    for kernel in parts.kernels:
        if isinstance(kernel, Backward) and kernel.head_shares > 1:
            yield "heads", f"key tiles are few, so {kernel.head_shares} blocks share the query heads of each; finish_keys sums up dk and dv"


def _of_arrays(spec: Spec) -> Iterator[tuple[str, str]]:
    """The reasons of what is done to arrays before products, and after."""
    yield from embedding_reasons(spec)
    yield from output_reasons(spec)
    yield from rounding_reasons(spec)
    yield from sums_reasons(spec)


def _passed(strategy: BackwardStrategy, request: Request) -> Iterator[tuple[str, str]]:
    """The reasons why no strategy of a faster engine serves a request."""
    for other in BACKWARD_STRATEGIES[: BACKWARD_STRATEGIES.index(strategy)]:
        if other.engine in request.arch.engines and other.engine != strategy.engine:
            yield "skeleton", f"not {other.skeleton}: {other.serves(request)}"


def replaced(spec: Spec) -> Spec:
    """The spec without what it pins of the forward's kernel."""
    return Spec(**{key: value for key, value in spec.to_json().items() if key not in ("block", "stages", "warps", "schedule")})


def _check(request: Request) -> None:
    """Raises PlanError for what no backward does yet."""
    spec, arch = request.spec, request.arch
    if not spec.backward:
        raise PlanError("this spec has no backward: write backward: true")
    if spec.dtype == "float32" and not arch.on_cpu:
        what = f"dtype is float32: gradients of it have no kernel on {arch.name} yet"
        raise PlanError(f"{what}; those of float16 and bfloat16 have, and in the interpreter (arch host) all have")
    check_sums(spec)
