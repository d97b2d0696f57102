"""Chains of reductions over the same rows: products whose rows go through further reductions, such
as scores of attention through a softmax into a product with values, or a product into a norm.
Rules take a tile of rows through all of them before the next one begins (chain_tiles.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.ir.function import Function, readers, written
from tilesmith.ir.nodes import Block, walk
from tilesmith.space import analysis


@dataclass(frozen=True)
class Chain:
    """`blocks` are computed for some rows at a time, in order; `last` reads the last of them.
    `rows` is the iterator of each block over the rows, `outer` are those over what the rows belong
    to, such as a batch: for each block in the order of `last`'s.
    """

    last: Block
    blocks: tuple[Block, ...]
    rows: dict[str, str]
    outer: dict[str, tuple[str, ...]]

    @property
    def products(self) -> tuple[Block, ...]:
        """Of `blocks`."""
        return tuple(b for b in self.blocks if is_product(b))

    def shared(self, b: Block) -> frozenset[str]:
        """The iterators of a block that all have in common, or that have one value only."""
        ones = (i.name for i in b.spatial if i.extent.const == 1)
        return frozenset({self.rows[b.name], *self.outer[b.name], *ones})


def is_product(b: Block) -> bool:
    """Whether it sums terms of operands that are reused along different axes."""
    if b.combiner is None or not b.init or b.domain or len(b.writes) != 1:
        return False
    axes = {i.name for i in b.spatial if i.extent.const != 1}
    missing = [axes - {n for p in load.index for n in p.names} for load in b.loads]
    return len([m for m in missing if m]) >= 2


def chain_of(func: Function, last: Block) -> Chain | None:
    """The chain that ends in a block; None if there is none."""
    blocks = _links(func, last)
    products = [b for b in blocks if is_product(b)]
    if not products or not all(_is_private(func, b, (*blocks, last)) for b in blocks):
        return None
    every = (last, *reversed(blocks))
    found = {
        i.name: at
        for i in last.spatial
        if i.extent.const != 1 and (at := _followed(func, i.name, every)) is not None
    }
    # What indexes all operands of the products are batches; rows are what is left.
    rows = [a for a, at in found.items() if all(_is_row(b, at[b.name]) for b in products)]
    if not rows:
        return None
    row = rows[-1]
    if is_product(last) and not _is_row(last, row):
        return None
    outer = [a for a in found if a != row]
    chain = Chain(
        last, blocks, found[row], {b.name: tuple(found[a][b.name] for a in outer) for b in every}
    )
    if not all(len(chain.shared(b)) < len(b.spatial) for b in products):
        return None  # element for element: an epilogue, not a chain
    return chain


def _links(func: Function, last: Block) -> tuple[Block, ...]:
    """The products that a block depends on, and all that lies between them and it, in order."""
    depends: dict[str, bool] = {}
    for _, b in walk(func.body):
        before = analysis.producers(func, b)
        depends[b.name] = is_product(b) or any(depends.get(p.name, False) for p in before)
    needed, stack = set[str](), [last]
    while stack:
        for p in analysis.producers(func, stack.pop()):
            if depends[p.name] and p.name not in needed:
                needed.add(p.name)
                stack.append(p)
    return tuple(b for _, b in walk(func.body) if b.name in needed)


def _is_private(func: Function, b: Block, chain: Sequence[Block]) -> bool:
    """Whether only the chain reads it, and it is written at its own iterators."""
    own = {c.name for c in chain}
    if analysis.is_output(func, b) or not {c.name for c in analysis.consumers(func, b)} <= own:
        return False
    places = [i.name for i in b.spatial]
    return all([p.name for p in w.index] == places for w in b.writes)


def _followed(func: Function, axis: str, every: Sequence[Block]) -> dict[str, str] | None:
    """The iterator of each block that is an axis of the first one, consumers before producers.
    None if some block reads other elements along it than its own.
    """
    at = {every[0].name: axis}
    extents = {i.name: i.extent for i in every[0].iters}
    for b in every[1:]:
        found: set[str | None] = set()
        for buffer in written(b):
            for c in readers(func, buffer):
                for load in (x for x in c.loads if x.buffer == buffer):
                    here = [k for k, p in enumerate(load.index) if at[c.name] in p.names]
                    plain = len(here) == 1 and load.index[here[0]].name is not None
                    found.add(b.spatial[here[0]].name if plain else None)
        if len(found) != 1 or None in found:
            return None
        (name,) = found
        assert name is not None
        if next(i.extent for i in b.spatial if i.name == name) != extents[axis]:
            return None
        at[b.name] = name
    return at


def _is_row(b: Block, axis: str) -> bool:
    return axis not in analysis.shared_axes(b)


def beside_rows(func: Function, chain: Chain) -> int:
    """Bytes that every row of a batch needs besides itself: operands of products that have no rows,
    such as the keys and the values of a head.
    """
    total = 0
    for b in (*chain.products, chain.last):
        extents = {i.name: i.extent.number for i in b.iters}
        for load in b.loads:
            names = {n for p in load.index for n in p.names}
            if chain.rows[b.name] not in names:
                inner = names - {*chain.outer[b.name]}
                nbytes = func.all_buffers[load.buffer].dtype.nbytes
                total += nbytes * prod(extents.get(n, 1) for n in inner)
    return total


def row_nbytes(func: Function, chain: Chain) -> int:
    """Bytes of the longest row between two blocks."""
    sizes = []
    for b in chain.blocks:
        own = (i.extent.number for i in b.spatial if i.name not in chain.shared(b))
        sizes.append(prod(own) * func.all_buffers[b.writes[0].buffer].dtype.nbytes)
    return max(sizes)


def nbytes_between(func: Function, chain: Chain) -> int:
    """Bytes of all results of products that are read within the chain."""
    made = (func.all_buffers[b.writes[0].buffer] for b in chain.products)
    return sum(x.size.number * x.dtype.nbytes for x in made)
