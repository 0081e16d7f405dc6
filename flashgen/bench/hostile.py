"""Data that breaks kernels, for calls of any spec: a call may hold it, and a normal distribution never draws it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.bench.cases import draw_tensor, rounded
from flashgen.bench.lists import some_blocks
from flashgen.bench.paged import SPARE, in_pages, table
from flashgen.dtypes import READ
from flashgen.expr import lower
from flashgen.expr.language.nodes import Call, Const, Load, Name, Node, names, walk
from flashgen.expr.language.read import read
from flashgen.expr.language.reads import indices, over
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.sequences import Sequence as OneSequence
from flashgen.expr.meaning.sequences import sequences
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec
from flashgen.spec.tensors import Tensor

Array = NDArray[Any]
Drawn = tuple[Array, Array, Array, dict[str, Any]]  # q, k, v, and by name what the spec reads

KINDS = {
    "integers": "INT_MIN, INT_MAX and what lies around 2^30 in tensors of integers, and in integer params",
    "biases": "1e9, 1e30, the largest numbers, denormals and infinities in tensors of floats",
    "hidden": "NaN and infinity in k and v at keys that their position hides from every query",
    "axes": "axes of 1, repeated where an index of the call runs over them",
    "views": "arrays turned, reversed, of every other element, or repeated with stride 0",
}
_TOP = 2**31 - 1
INTEGERS = (-_TOP - 1, -_TOP, -(2**30) - 1, -(2**30), -1, 0, 1, 2**30 - 1, 2**30, 2**30 + 1, _TOP - 1, _TOP)
LONGS = (-(2**63), -(2**32), -(2**31) - 1, *INTEGERS, 2**31, 2**32, 2**32 + 1, 2**63 - 1)
_LARGEST = float(np.finfo(np.float32).max)
FLOATS = (1e9, -1e9, 1e30, -1e30, _LARGEST, -_LARGEST, 1e-40, -1e-45, np.inf, -np.inf)
SMALLER = (1e9, -1e9, 1e30, -1e30, 1e-40, 0.0)  # of what multiplies: the largest number times an index is no number
SHARES = (0.02, 0.3, 1.0)  # of the elements that are hostile


def kinds_of(spec: Spec, sizes: Sizes) -> list[str]:
    """The kinds in which a call of these sizes can be hostile, by what its spec reads and which keys its mask hides."""
    values = draw(spec, sizes, (), np.random.RandomState(0))[3]
    met = {
        "integers": any(t.dtype in ("int32", "int64") for t in spec.arrays) or any(p.type == "int" for p in spec.params),
        "biases": any(READ[t.dtype][0] == "float" for t in spec.tensors),
        "hidden": hidden(spec, sizes, values).any(),
        "axes": any(over(axis) for axes in indices(spec).values() for axis in axes),
        "views": True,
    }
    return [kind for kind in KINDS if met[kind]]


def draw(spec: Spec, sizes: Sizes, kinds: Collection[str], random: np.random.RandomState, aligned: bool = True) -> Drawn:
    """Arrays and params of a call, hostile in the ways of `kinds`, among KINDS, as far as the spec reads such data.

    `aligned`: q, k and v stay as tensor maps and 16-byte copies want them: their last axis contiguous, rows at multiples of 16 bytes.
    """
    values: dict[str, Any] = {tensor.name: _tensor(spec, tensor, sizes, kinds, random) for tensor in spec.tensors}
    values |= _lengths(spec, sizes, kinds, random)
    values |= {spec.blocks.lists: some_blocks(spec, sizes, random)} if spec.blocks else {}
    if "integers" in kinds:
        values |= _params(spec, random)
    if "views" in kinds:  # before what is hidden is known, as a view may repeat elements
        values |= {tensor.name: view(values[tensor.name], random) for tensor in spec.tensors}
    columns = spec.head_dim
    shapes = {"q": (sizes.heads, sizes.q_len, columns.qk), "k": (sizes.kv_heads, sizes.kv_len, columns.qk)}
    shapes["v"] = (sizes.kv_heads, sizes.kv_len, columns.v)
    arrays = _arrays(spec, sizes)
    q, k, v = (rounded(random.standard_normal((arrays[role], *shape)), spec.dtype) for role, shape in shapes.items())
    if "hidden" in kinds:
        gone = hidden(spec, sizes, values)
        for x in (k, v):
            x[gone] = random.choice([np.nan, np.inf, -np.inf])
        if spec.page:
            _lose_pages(np.asarray(gone.all(1)), values["block_table"], random)
    q = spec.order.given(q.transpose(spec.order.from_heads_first))
    if spec.page:
        k, v = (in_pages(spec, x, values["block_table"]) for x in (k, v))
    else:
        k, v = (spec.order.given(x.transpose(spec.order.from_heads_first)) for x in (k, v))
    if "views" in kinds:
        finite = not spec.page and "hidden" not in kinds  # else what nobody sees would be repeated where it is seen
        q, k, v = (view(x, random, aligned, finite) for x in (q, k, v))
    return q, k, v, values


def _tensor(spec: Spec, tensor: Tensor, sizes: Sizes, kinds: Collection[str], random: np.random.RandomState) -> Array:
    x: Array = np.asarray(draw_tensor(spec.given(tensor), sizes, np, random))
    if tensor.dtype in ("int32", "int64") and tensor.shape[-1] in ("q_len", "kv_len") and random.randint(2):
        x = np.sort(random.randint(0, 4, x.shape), -1).astype(x.dtype)  # documents of some length
    kind = {"int": "integers", "long long": "integers", "float": "biases"}.get(READ[tensor.dtype][0])
    if kind in kinds and not _weighs(spec, tensor.name):
        some = (LONGS if tensor.dtype == "int64" else INTEGERS) if kind == "integers" else FLOATS if _added(spec, tensor.name) else SMALLER
        with np.errstate(over="ignore"):
            numbers = np.asarray(some).astype(x.dtype)
        chosen = random.choice(numbers[random.permutation(len(numbers))[: random.randint(1, 4)]], x.shape)
        x = np.where(random.random_sample(x.shape) < random.choice(SHARES), chosen, x).astype(x.dtype)
    if "axes" in kinds:
        read = list(indices(spec)[tensor.name])
        if (at := spec.geometry.joined(tensor.shape)) is not None:
            del read[at]
        for axis, read_at in enumerate(read):
            x = x.take([0], axis) if over(read_at) and x.shape[axis] and random.randint(2) else x
    return x


def _lengths(spec: Spec, sizes: Sizes, kinds: Collection[str], random: np.random.RandomState) -> dict[str, Array]:
    """Lengths of sequences: of a cache any, of packed sequences those that share all rows."""
    found: dict[str, Array] = {}
    for name, _ in spec.geometry.lengths:
        if name == "kv_lens":
            some = random.randint(0, sizes.kv_len + 1, sizes.batch)
            found[name] = _wild(some, INTEGERS, 0.5 * ("integers" in kinds), random)
        elif name == "block_table":
            pages = table(sizes.batch, sizes.kv_len // spec.page, random)
            none = [n for n in INTEGERS if not 0 <= n < pages.size + SPARE]
            found[name] = _wild(pages, none, 0.2 * ("integers" in kinds), random)
        else:
            total = sizes.q_len if name == "cu_seqlens_q" else sizes.kv_len
            inner = np.sort(random.randint(0, total + 1, max(0, sizes.batch - 1)))
            found[name] = np.array([0, *inner, total], np.int32)
    return found


def _wild(x: Array, some: Sequence[int], share: float, random: np.random.RandomState) -> Array:
    """The integers, of which so many are some of others."""
    found: Array = np.where(random.random_sample(x.shape) < share, random.choice(some, x.shape), x).astype(np.int32)
    return found


def _lose_pages(gone: Array, block_table: Array, random: np.random.RandomState) -> None:
    """Takes pages out of a table [B, columns] whose keys, of [B, kv_len], are all gone, some of them."""
    batch, columns = block_table.shape
    whole = gone.reshape(batch, columns, -1).all(-1) if gone.size else np.zeros(block_table.shape, np.bool_)
    block_table[whole & (random.random_sample(block_table.shape) < 0.5)] = -1


def _arrays(spec: Spec, sizes: Sizes) -> dict[str, int]:
    """The sequences that arrays have an axis for: all of a call, or one where they lie one behind the other."""
    behind = spec.geometry.behind
    keys = 1 if "kv_len" in behind else sizes.batch
    return {"q": 1 if "q_len" in behind else sizes.batch, "k": keys, "v": keys}


def _weighs(spec: Spec, tensor: str) -> bool:
    """True if the tensor changes q, k, p or o, which are rounded to the dtype then: it may not hold them."""
    parsed = read(spec)
    read_by = [*parsed.tables, *(node for key, node in parsed.parts.items() if key in ("weight", "output"))]
    return any(isinstance(n, Load) and n.tensor == tensor for node in read_by for n in walk(node))


def _added(spec: Spec, tensor: str) -> bool:
    """True if every read of the tensor follows the key, as that of a bias does, or is a term of the score: no index multiplies it."""
    parsed = read(spec)
    reads = [n for part in (parsed.score, parsed.mask) for n in walk(part) if isinstance(n, Load) and n.tensor == tensor]
    terms = list(_terms(parsed.score))
    return bool(reads) and all("kv_idx" in names(n) or n in terms for n in reads)


def _terms(node: Node) -> Iterator[Node]:
    match node:
        case Call("+" | "-" | "neg", args):
            for each in args:
                yield from _terms(each)
        case _:
            yield node


def _params(spec: Spec, random: np.random.RandomState) -> dict[str, int]:
    """Integer params of any size that the spec allows; one in two keeps its default."""
    found = {p.name: p.default for p in spec.params}
    for p in spec.params:
        if p.type == "int" and random.randint(2):
            changed = found | {p.name: int(np.clip(random.choice(INTEGERS), *p.interval))}
            if all(meaning(rule.node, changed) for rule in lower(spec).requires):
                found = changed
    return {p.name: int(found[p.name]) for p in spec.params if p.type == "int"}


def hidden(spec: Spec, sizes: Sizes, values: Mapping[str, Any]) -> Array:
    """The keys [B, Hk, Sk] that their position alone hides from every query of a call: outside of a range, as of a window or of a length,
    and where a condition of the key alone says so."""
    arrays = _arrays(spec, sizes)
    seen = np.zeros((arrays["k"], sizes.kv_heads, sizes.kv_len), np.bool_)
    for each, h in product(sequences(spec, (arrays["q"], sizes.q_len, sizes.kv_len), values), range(sizes.heads)):
        if each.kv_len:
            seen[each.keys_at, h // sizes.group, each.keys] |= _seen(spec, each, {**values, "h": h, "hk": h // sizes.group})
    return ~seen


def _seen(spec: Spec, sequence: OneSequence, values: Mapping[str, Any]) -> Array:
    """The keys [kv_len] of a sequence that some of its queries may see by their position."""
    known = {p.name: p.default for p in spec.params} | dict(values) | sequence.read(spec, values)
    known |= {"b": sequence.b, "q_len": sequence.q_len, "kv_len": sequence.kv_len}
    known |= {"q_idx": np.arange(sequence.q_len)[:, None], "kv_idx": np.arange(sequence.kv_len)[None, :]}
    keys = np.ones(sequence.kv_len, np.bool_)
    for part in _conjuncts(lower(spec).mask):
        if "kv_idx" in names(part) and ("q_idx" not in names(part) or _ranges(part)):
            rows = np.broadcast_to(meaning(part, known), (sequence.q_len, sequence.kv_len))
            some: Array = np.logical_or.reduce(rows, axis=0)
            keys &= _between(some) if "q_idx" in names(part) else some
    return keys


def _between(keys: Array) -> Array:
    """All keys from the first to the last of the given ones."""
    return np.logical_or.accumulate(keys) & np.logical_or.accumulate(keys[::-1])[::-1]


def _conjuncts(node: Node) -> Iterator[Node]:
    if isinstance(node, Call) and node.op == "&":
        yield from _conjuncts(node.args[0])
        yield from _conjuncts(node.args[1])
    else:
        yield node


def _ranges(node: Node) -> bool:
    """True if a condition is a range of keys whose ends follow the query: kv_idx <= q_idx + n, a side of a window, a chunk."""
    match node:
        case Call("|", (a, b)):
            return all(_ranges(x) or not names(x) & {"q_idx", "kv_idx"} for x in (a, b))
        case Call("<" | "<=" | ">" | ">=", (Name("kv_idx"), x) | (x, Name("kv_idx"))):
            return _linear(x)
        case Call("==", (Call("//", (Name("kv_idx"), Const(n))), Call("//", (x, Const(m))))):
            return n == m and _linear(x)
    return False


def _linear(node: Node) -> bool:
    match node:
        case Call("+" | "-", args):
            return all(map(_linear, args))
        case Load() | Call():  # what a float is rounded to is solved for nothing
            return not (names(node) & {"q_idx", "kv_idx"} or any(below.type == "float" for below in walk(node)))
    return node != Name("kv_idx", "int")


def view(x: Array, random: np.random.RandomState, aligned: bool = False, repeated: bool = True) -> Array:
    """The array as a view of other memory, the last axis contiguous if it is `aligned`; with equal elements along an axis now and then."""
    last = x.ndim - 1
    order = [*random.permutation(last).tolist(), last] if aligned else random.permutation(x.ndim).tolist()
    x = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    axis = random.randint(max(1, last if aligned else x.ndim))
    change = random.randint(4)
    if x.ndim == 1 and aligned:
        return x
    if change == 1 and not aligned:
        return np.flip(np.ascontiguousarray(np.flip(x, axis)), axis)
    if change == 2 and x.shape[axis] and not aligned and repeated:
        return np.broadcast_to(x.take([0], axis), x.shape)
    if change == 3:
        at = tuple(slice(1, None, 2) if i == axis else slice(None) for i in range(x.ndim))
        memory = np.zeros([2 * n + 1 if i == axis else n for i, n in enumerate(x.shape)], x.dtype)
        memory[at] = x
        return memory[at]
    return x
