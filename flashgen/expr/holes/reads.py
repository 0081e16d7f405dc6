"""Reads along the keys: elements of a tensor beside each other, read ahead of the scores that they are for."""

from dataclasses import dataclass

from flashgen.dtypes import READ
from flashgen.expr.holes.bind import KV_BEGIN, Along, level
from flashgen.expr.holes.hoist import Body, Hoist, Member
from flashgen.expr.holes.passes import Kernel
from flashgen.expr.language.fold import call
from flashgen.expr.language.nodes import ROW, UNIFORM, Const, Load, Name, Node, walk
from flashgen.expr.prove.affine import param
from flashgen.expr.prove.names import NODES, Q_LEN
from flashgen.spec.words import argument

OWN_ROW = call("min", Name("q_idx", "int", ROW), call("-", Q_LEN, Const(1, "int")))  # of arrays with a row a query


@dataclass(frozen=True)
class Read:
    """Elements of a tensor beside each other along the keys, read before the score that they are for is there."""

    type: str
    element: str  # as it lies in memory
    name: str  # a member of At
    tensor: str  # as the text calls it
    address: str  # of the first, a member of Row
    row_axis: int | None  # of the tensor, along which queries lie one behind the other, if nothing else differs from query to query
    by_row: bool  # whether it differs from query to query,
    by_sequence: bool  # and from sequence to sequence

    @property
    def flags(self) -> bool:
        """True if the elements are bools, of which two share a word."""
        return self.type == "u32"

    @property
    def shares_words(self) -> bool:
        """True if two elements share a register until they are used."""
        return self.flags or self.element in ("F16", "BF16")

    @property
    def numeric(self) -> bool:
        """True of numbers that all rows of a query tile share."""
        return not (self.flags or self.by_row)

    @property
    def tiled(self) -> bool:
        """True of floats of each query and key: a tile of them fits into shared memory."""
        return self.row_axis is not None and self.element in ("F16", "BF16", "float")

    @property
    def bits(self) -> int:
        """The bits of an element in memory, of floats."""
        return 16 if self.shares_words else 32

    def row_bytes(self, keys: int) -> int:
        """The bytes of so many elements in shared memory, and of what is left free behind them, so that rows are in banks of their own."""
        return 2 * keys + 16 if self.shares_words else 4 * keys + 32

    @property
    def pair(self) -> str:
        """The type of two beside each other."""
        return self.type if self.flags else f"Two<{self.element}>"

    @property
    def rows(self) -> tuple[str, str]:
        """The names of the two elements in each of two rows: the same unless rows differ."""
        return self.name, f"below_{self.name}" if self.by_row else self.name

    def of_row(self, r: int) -> str:
        """Two elements of a row of two."""
        return f"{self.tensor}.template {'flags' if self.flags else 'two'}<PAIRED>(row[{r}].{self.address}, column, end)"

    def both(self, name: str) -> tuple[str, str]:
        """Its left and its right element."""
        return (name, name) if self.flags else (f"{name}.left", f"{name}.right")


@dataclass(frozen=True, kw_only=True)
class KeyReads:
    """The reads of tensors at the keys of a tile: a thread reads ahead of its scores, or a warp brings them to shared memory for all."""

    ahead: tuple[Read, ...]
    numbers: tuple[Read, ...]  # that all rows share
    tile: Read | None  # of elements of queries and keys
    keys: str  # from kv_begin to kv_len

    def registers(self, block_n: int) -> int:
        """Registers a thread for what is read ahead of `block_n` keys."""
        return sum(block_n // (2 if read.by_row else 4) // (2 if read.shares_words else 1) for read in self.ahead)

    @property
    def shared(self) -> tuple[Read, ...]:
        """All that a warp brings."""
        return (self.tile,) if self.tile else self.numbers

    @property
    def alike(self) -> bool:
        """True if all sequences read the same of a tensor of queries and keys: side by side, they read it from memory once."""
        return any(read.by_row and not read.by_sequence for read in (*self.ahead, *self.shared))

    def ways(self, begin: str) -> tuple[Member, ...]:
        """The member of Variant that tells how tensors are read whose keys begin at `begin`."""
        if tile := self.tile:
            chunks = f"{tile.tensor}.aligned(16) && p.kv_len % {128 // tile.bits} == 0"
            even = Member("bool", "even", f"{tile.tensor}.aligned(4)", comment="two elements of any row share a word")
            return (Member("bool", "in_chunks", chunks, comment="rows are copied 16 bytes at a time"), *([even] if tile.bits == 16 else []))
        paired = dict.fromkeys(f"{read.tensor}.paired({begin})" for read in (*self.ahead, *self.numbers))
        return (Member("bool", "paired", " && ".join(paired), comment="tensors can be read two elements at a time"),) if paired else ()


def key_reads(kernel: Kernel, keep: Body, shares_numbers: bool, shares_tiles: bool) -> KeyReads:
    """The reads of score and mask along the keys, once both have asked for them.

    `keep`: the mask. A warp can bring what the score alone needs: `shares_numbers`, those that all rows share; `shares_tiles`, the
    elements of one tensor at queries and keys.
    """
    binder, hoist = kernel.binder, kernel.hoist
    reads = tuple(read(hoist, address, along) for address, along in binder.reads.items())
    keys = hoist.text(call("-", binder.renamed["kv_len"], KV_BEGIN), "keys", "from kv_begin to kv_len") if reads else ""
    of_score = {along.node for along in binder.reads.values()}.isdisjoint(keep.below())
    numbers = reads if shares_numbers and of_score and all(one.numeric for one in reads) else ()
    tile = reads[0] if shares_tiles and of_score and len(reads) == 1 and reads[0].tiled else None
    return KeyReads(ahead=() if numbers or tile else reads, numbers=numbers, tile=tile, keys=keys)


def read(hoist: Hoist, address: Load, along: Along) -> Read:
    """The read of elements along the keys that begin at an address."""
    by_row = any(level(index) > UNIFORM for index in address.indices[:-1])
    return Read(
        type="u32" if along.node.type == "bool" else along.node.type,
        element=READ[along.tensor.dtype][1],
        name=argument(along.name),
        tensor=param(along.tensor.name),
        address=hoist.member(address, f"{along.name}_row"),
        row_axis=_row_axis(address.indices[:-1]),
        by_row=by_row,
        by_sequence=NODES["b"] in (below for index in address.indices for below in walk(index)),
    )


def _row_axis(indices: tuple[Node, ...]) -> int | None:
    """The axis whose index is a query's own, if no other index differs from query to query."""
    match [axis for axis, index in enumerate(indices) if level(index) > UNIFORM]:
        case [axis] if indices[axis] == OWN_ROW:
            return axis
    return None
