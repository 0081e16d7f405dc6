"""Reads along the keys: elements of a tensor beside each other, read ahead of the scores that they are for."""

from dataclasses import dataclass

from flashgen.dtypes import READ
from flashgen.expr.holes.bind import KV_BEGIN, Along, level
from flashgen.expr.holes.hoist import Body, Hoist
from flashgen.expr.holes.passes import Kernel
from flashgen.expr.language.fold import call
from flashgen.expr.language.nodes import UNIFORM, Load
from flashgen.expr.prove.affine import param
from flashgen.spec.words import argument


@dataclass(frozen=True)
class Read:
    """Elements of a tensor beside each other along the keys, read before the score that they are for is there."""

    type: str
    element: str  # as it lies in memory
    name: str  # a member of At
    tensor: str  # as the text calls it
    address: str  # of the first, a member of Row
    by_row: bool  # whether it differs from query to query

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
    """The reads of tensors at the keys of a tile: a thread reads ahead of its scores, or a warp brings numbers to shared memory for all."""

    ahead: tuple[Read, ...]
    shared: tuple[Read, ...]
    keys: str  # from kv_begin to kv_len

    def registers(self, block_n: int) -> int:
        """Registers a thread for what is read ahead of `block_n` keys."""
        return sum(block_n // (2 if read.by_row else 4) // (2 if read.shares_words else 1) for read in self.ahead)


def key_reads(kernel: Kernel, keep: Body, shares_numbers: bool) -> KeyReads:
    """The reads of score and mask along the keys, once both have asked for them.

    `keep`: the mask. `shares_numbers`: a warp can bring numbers that all rows share, and that the score alone needs.
    """
    binder, hoist = kernel.binder, kernel.hoist
    reads = tuple(read(hoist, address, along) for address, along in binder.reads.items())
    keys = hoist.text(call("-", binder.renamed["kv_len"], KV_BEGIN), "keys", "from kv_begin to kv_len") if reads else ""
    shared = (
        shares_numbers and all(one.numeric for one in reads) and {along.node for along in binder.reads.values()}.isdisjoint(keep.below())
    )
    return KeyReads(ahead=() if shared else reads, shared=reads if shared else (), keys=keys)


def read(hoist: Hoist, address: Load, along: Along) -> Read:
    """The read of elements along the keys that begin at an address."""
    by_row = any(level(index) > UNIFORM for index in address.indices[:-1])
    return Read(
        type="u32" if along.node.type == "bool" else along.node.type,
        element=READ[along.tensor.dtype][1],
        name=argument(along.name),
        tensor=param(along.tensor.name),
        address=hoist.member(address, f"{along.name}_row"),
        by_row=by_row,
    )
