"""Memory of a simulated GPU: the elements of each buffer, which of them have been written, and who
accessed them since the last barrier.

All blocks of a chunk run at once. A lane is one thread of one block. An offset is an element's
row-major position in its buffer; a cell is its position in the memory that holds the copies of all
blocks (shared) or of all lanes (local).
"""

from __future__ import annotations

from dataclasses import field
from math import prod

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.ir.evaluators import Array, garbage, shape_of
from tilesmith.ir.nodes import Buffer, Stmt
from tilesmith.ir.printer import show_statement

# A tag names an access: the lane, numbered over the whole launch, and above it the number of the
# statement, from 1 on. 0 is no access.
LANE_BITS = 40
_LANE = (1 << LANE_BITS) - 1


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses to one cell by different threads, of which one is a write."""

    cell: int
    first: int  # tags
    second: int
    verbs: tuple[str, str]


class Trail:
    """Who wrote and who read each cell since the last reset. Accesses within one group, which is
    `group` lanes long, never conflict.

    Two readers suffice: whoever writes conflicts with one of them unless both are the writer.
    """

    def __init__(self, cells: int, group: int) -> None:
        self.group = group
        self.writer, self.reader, self.other = np.zeros((3, cells), np.int64)
        self.used = False

    def _differs(self, old: Array, tags: Array) -> Array:
        if self.group == 1:
            other = (old ^ tags) & _LANE != 0
        else:
            other = (old & _LANE) // self.group != (tags & _LANE) // self.group
        return np.asarray(np.logical_and(old, other))

    def _conflict(self, cells: Array, held: Array, tags: Array, verb: str, now: str) -> None:
        old = held[cells]
        bad = self._differs(old, tags)
        if bad.any():
            k = int(bad.argmax())
            raise Race(Conflict(int(cells[k]), int(old[k]), int(tags[k]), (verb, now)))

    def read(self, cells: Array, tags: Array) -> None:
        self.used = True
        self._conflict(cells, self.writer, tags, "written", "read")
        fresh = self.reader[cells] == 0
        if fresh.any():
            self.reader[cells[fresh]] = tags[fresh]
        others = self._differs(self.reader[cells], tags)
        if others.any():
            self.other[cells[others]] = tags[others]

    def write(self, cells: Array, tags: Array) -> None:
        self.used = True
        self._conflict(cells, self.reader, tags, "read", "written")
        self._conflict(cells, self.other, tags, "read", "written")
        self._conflict(cells, self.writer, tags, "written", "written")
        self.writer[cells] = tags
        self._conflict(cells, self.writer, tags, "written", "written")

    def reset(self, keep: Array | None = None, first: int = 0) -> None:
        """Forgets all accesses, or all but those of the lanes, counted from `first`, in `keep`."""
        if not self.used:
            return
        for held in (self.writer, self.reader, self.other):
            if keep is None:
                held[...] = 0
            else:
                held[~keep[np.maximum((held & _LANE) - first, 0)]] = 0
        self.used = keep is not None


class Race(Exception):
    def __init__(self, conflict: Conflict) -> None:
        self.conflict = conflict


@dataclass(frozen=True, slots=True)
class Shape:
    """How many blocks run at once, from which one on, and how many threads each has."""

    first: int
    blocks: int
    threads: int

    @property
    def lanes(self) -> Array:
        """Numbers of the lanes within the chunk."""
        return np.arange(self.blocks * self.threads).reshape(self.blocks, self.threads)


@dataclass(slots=True)
class Memory:
    """`data` and `known` are flat; cell = offset * step + base."""

    buffer: Buffer
    shape: tuple[int, ...]
    data: Array
    known: Array | None  # which cells have been written; None: all of them
    step: int = 1
    base: Array | int = 0
    lanes: tuple[int, int] = (1, 1)  # blocks and threads, of a local buffer
    trails: list[Trail] = field(default_factory=list)

    @property
    def local(self) -> bool:
        return self.buffer.scope == "local"

    def rows(self) -> tuple[Array, Array]:
        """`data` and `known` of a local buffer as [offset, block, thread]."""
        assert self.known is not None
        return self.data.reshape(-1, *self.lanes), self.known.reshape(-1, *self.lanes)

    def name_of(self, cell: int) -> str:
        offset = cell // self.step if self.local else cell % max(1, prod(self.shape))
        at = np.unravel_index(offset, self.shape) if self.shape else ()
        return f"{self.buffer.name}[{', '.join(str(int(i)) for i in at)}]"


def allocate(b: Buffer, at: Shape, cluster: int = 1) -> Memory:
    """A buffer whose elements nobody has written yet. `cluster` blocks have those of the scope
    "cluster" together.
    """
    shape = shape_of(b)
    size = prod(shape)
    if b.scope == "local":
        lanes = at.blocks * at.threads
        data, known = garbage(b, size * lanes), np.zeros(size * lanes, bool)
        return Memory(b, shape, data, known, lanes, at.lanes, (at.blocks, at.threads))
    if b.scope in ("shared", "cluster"):
        together = cluster if b.scope == "cluster" else 1
        base = np.arange(at.blocks)[:, None] // together * size
        cells = size * (at.blocks // together)
        trails = [Trail(cells, 1)]
        return Memory(b, shape, garbage(b, cells), np.zeros(cells, bool), base=base, trails=trails)
    return Memory(b, shape, garbage(b, size), np.zeros(size, bool))


def race_text(m: Memory, c: Conflict, threads: int, stmts: list[Stmt]) -> str:
    """What two threads do to one element, and in which statements."""

    def who(tag: int, verb: str) -> str:
        block, thread = divmod(tag & _LANE, threads)
        text = show_statement(stmts[(tag >> LANE_BITS) - 1])
        return f"{verb} by thread {thread} of block {block} in `{text}`"

    one, two = who(c.first, c.verbs[0]), who(c.second, c.verbs[1])
    same = (c.first & _LANE) // threads == (c.second & _LANE) // threads
    why = "without a Sync between them" if same else "in one launch"
    return f"race: {m.name_of(c.cell)} is {one} and {two}, {why}"
