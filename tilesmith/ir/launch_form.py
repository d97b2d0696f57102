"""A launch of a Function in launch form (ir/nodes.py), taken apart."""

from __future__ import annotations

from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.ints import Int, product
from tilesmith.ir.nests import perfect_nest
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt
from tilesmith.ir.notes import Cluster


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """A launch: loops over blocks, buffers of a block, loops over threads, and what one does."""

    blocks: tuple[For, ...]
    shared: tuple[Buffer, ...]
    threads: tuple[For, ...]
    body: tuple[Stmt, ...]

    @property
    def grid(self) -> int:
        return prod(f.trips for f in self.blocks)

    @property
    def open_grid(self) -> Int:
        """The number of blocks, which may depend on open sizes."""
        return product(f.extent for f in self.blocks)

    @property
    def cluster(self) -> int:
        """Blocks that see one another's shared memory: so many neighbours."""
        return prod(f.trips for f in self.blocks if f.note(Cluster) is not None)

    @property
    def num_threads(self) -> int:
        return prod(f.trips for f in self.threads)


def launch_form_of(s: Stmt) -> LaunchForm:
    """Without a loop over blocks there is one block, without one over threads one thread."""
    blocks, body = perfect_nest((s,), ("blockIdx.x",))
    shared = []
    while body and isinstance(a := body[0], Alloc) and a.buffer.scope in ("shared", "cluster"):
        shared.append(a.buffer)
        body = body[1:]
    threads, body = perfect_nest(body, ("threadIdx.x",))
    return LaunchForm(tuple(blocks), tuple(shared), tuple(threads), body)
