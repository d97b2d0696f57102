"""The contents of the register cache: nested frames (function, loop, branch), each with the memory
cells whose values it holds in SSA names.

A *cell* is a scalar or a vector at a known address. A loop in which a cell's address does not
change carries its value through a phi; that is how an accumulator stays in a register (scalar
replacement). A written cell goes to memory only when something else might read it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.codegen.llvm.builder import V
from tilesmith.expr.ints import Int, IntLike

# run-time loops with their strides in elements, outermost first
Terms = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """A buffer in one LLVM function. Every allocation of a name is a memory with a serial number of
    its own.
    """

    name: str
    pointer: str
    dtype: DType
    strides: tuple[IntLike, ...]  # Ints where a size is open
    shape: tuple[IntLike, ...]
    serial: int
    align: int  # alignment of the pointer in bytes


class Cell(NamedTuple):
    memory: int
    terms: Terms
    offset: int
    lanes: int

    def touches(self, other: Cell) -> bool:
        """Whether they may share an element."""
        if self.memory != other.memory:
            return False
        if self.terms != other.terms:
            return not in_other_rows(self.terms, other.terms)
        return self.offset < other.offset + other.lanes and other.offset < self.offset + self.lanes


ROW = "*"  # the prefix of terms by which unrolled loops move along dimensions of an open stride


def in_other_rows(a: Terms, b: Terms) -> bool:
    """Whether terms differ by unrolled loops alone, along dimensions of an open stride. Indices are
    inside of each dimension, so that elements of different rows are different.
    """
    rest = [tuple(t for t in terms if t[0][0] != ROW) for terms in (a, b)]
    return a != b and rest[0] == rest[1]


@dataclass(slots=True)
class Held:
    value: V
    dirty: bool  # not yet stored to memory


class ScalarLoad(NamedTuple):
    """A load of one element whose memory does not change during an iteration."""

    memory: Memory
    cell: Cell
    base: str  # pointer of the run-time part of the address
    line: int  # position in the frame's lines
    name: str


_REACH = 64  # elements per bucket of the index; no cell is longer


class CellMap(dict[Cell, Held]):
    """Cells with their values, and an index by address to find cells that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.near: dict[int, dict[Terms, dict[int, dict[Cell, None]]]] = {}

    def _bucket(self, cell: Cell) -> dict[Cell, None]:
        """Cells in order of insertion, so that the generated code is deterministic."""
        groups = self.near.setdefault(cell.memory, {}).setdefault(cell.terms, {})
        return groups.setdefault(cell.offset // _REACH, {})

    def __setitem__(self, cell: Cell, held: Held) -> None:
        if cell not in self:
            self._bucket(cell)[cell] = None
        super().__setitem__(cell, held)

    def __delitem__(self, cell: Cell) -> None:
        self._bucket(cell).pop(cell, None)
        super().__delitem__(cell)

    def touching(self, cell: Cell) -> list[Cell]:
        """Other cells that may share an element with it."""
        near = self.near.get(cell.memory)
        if near is None:
            return []
        out: list[Cell] = []
        for terms, buckets in near.items():
            if terms != cell.terms:
                if in_other_rows(terms, cell.terms):
                    continue
                out += [c for bucket in buckets.values() for c in bucket]
                continue
            begin, end = cell.offset, cell.offset + cell.lanes
            for k in range(begin // _REACH - 1, end // _REACH + 1):
                # as `Cell.touches`, written out: unrolled code asks it of millions
                for c in buckets.get(k, ()):
                    if c.offset < end and begin < c.offset + c.lanes and c != cell:
                        out.append(c)
        return out


@dataclass(slots=True, eq=False)
class Frame:
    kind: str  # "function" | "loop" | "branch"
    loops: frozenset[str] = frozenset()  # loops whose variables change with each iteration
    written: frozenset[int] = frozenset()  # serials of memories that are written inside
    carried: frozenset[int] = frozenset()  # those whose cells the loop carries in registers
    stepped: str | None = None  # the loop, if innermost: pointers are incremented along with it
    prefetch: dict[str, int] = field(default_factory=dict)  # prefetch distance by buffer
    lines: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)  # instructions at the top of each iteration
    cells: CellMap = field(default_factory=CellMap)
    splats: dict[tuple[str, int], V] = field(default_factory=dict)
    phis: dict[Cell, tuple[str, V]] = field(default_factory=dict)  # (name, value on entry)
    pointers: dict[tuple[int, Terms], str] = field(default_factory=dict)
    # name, start, step, element
    pointer_phis: list[tuple[str, str, int, str]] = field(default_factory=list)
    owned: set[int] = field(default_factory=set)  # memories whose lifetime ends with this frame
    hoisted: int = 0
    starts_at: str | None = None  # first number of a thread's range, if it is not 0
    prefetched: set[tuple[int, Terms, int]] = field(default_factory=set)
    scalars: list[ScalarLoad] = field(default_factory=list)
    products: list[str] = field(default_factory=list)  # see run_time_sizes.py
    strides: dict[tuple[str, int], str] = field(default_factory=dict)  # bytes of rows
    values: dict[Int, V] = field(default_factory=dict)  # see run_time_sizes.py
    masks: dict[tuple[Int, int], V] = field(default_factory=dict)  # see lane_tests.py
    # values that were loaded under a mask, by its name; the other lanes are 0
    masked: dict[tuple[Cell, str], V] = field(default_factory=dict)

    def lets_through(self, cell: Cell) -> bool:
        """Whether a cell has the same value inside this frame as around it, or is carried by it."""
        if self.kind == "function" or cell.memory in self.owned:
            return False
        if any(name in self.loops for name, _ in cell.terms):
            return False
        return cell.memory in self.carried or cell.memory not in self.written

    def loop_lines(
        self, counter: str, label: str, begin: str, before: str, latch: str
    ) -> Iterator[str]:
        """A loop's block up to its last statement: phis of its counter, of the cells that it
        carries and of the pointers that it moves, from the blocks `before` it and at its end.
        """
        yield f"  br label %{label}"
        yield f"{label}:"
        yield f"  {counter} = phi i64 [{begin}, %{before}], [{counter}.n, %{latch}]"
        for cell, (phi, entry) in self.phis.items():
            final = self.cells[cell].value
            yield f"  {phi} = phi {entry.type} [{entry.name}, %{before}], [{final.name}, %{latch}]"
        for p, first, _, _ in self.pointer_phis:
            yield f"  {p} = phi ptr [{first}, %{before}], [{p}.n, %{latch}]"
        yield from self.head
        yield from self.lines
        for p, _, step, elem in self.pointer_phis:
            yield f"  {p}.n = getelementptr inbounds {elem}, ptr {p}, i64 {step}"
