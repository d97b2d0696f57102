"""The register cache: keeps the values of memory cells in registers. Loads and stores go through
the frames, and reach memory only when they must (write-back).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tilesmith.base.dtype import FLOAT16
from tilesmith.base.target import Target
from tilesmith.codegen.llvm import partial_registers
from tilesmith.codegen.llvm.addressing import Addressing, Prefetches
from tilesmith.codegen.llvm.builder import Builder, Type, V, storage_type
from tilesmith.codegen.llvm.frames import Cell, Frame, Held, Memory, ScalarLoad, Terms
from tilesmith.codegen.llvm.operations import narrow, widen
from tilesmith.codegen.llvm.position import Position


# Joins scalar loads of consecutive elements within one iteration of a loop into vector loads.
#
# The scalars are factors that a vector is multiplied by. Where the processor multiplies by a lane
# of a register (Neon), one load then serves several multiplications: a product that reads a
# packed panel of 8 rows issues 2 loads for them instead of 8, which matters when the panel comes
# from L2.
def can_join(m: Memory, cell: Cell, frame: Frame, target: Target) -> bool:
    """Whether a load may be moved within an iteration and become a lane of a vector."""
    return (
        target.machine.rates.lane_factors
        and cell.lanes == 1
        and m.dtype.name in ("float16", "float32", "float64")
        and frame.kind == "loop"
        and cell.memory not in frame.written | frame.owned  # else stores may lie between its loads
    )


def join_lane_loads(frame: Frame, builder: Builder, target: Target) -> None:
    """Rewrites the lines of a loop's body, at its end. If there are too few registers for all such
    vectors, only those are formed that are alive one at a time.
    """
    carried = sum(_registers(v.type, target) for _, v in frame.phis.values())
    free = target.num_vector_registers - carried - target.machine.rates.lane_operands
    if free < 1:
        return
    # Halves are multiplied by a lane only where sums are of halves; else each is converted.
    halves = any(v.type.elem == "half" for _, v in frame.phis.values())
    scalars = [s for s in frame.scalars if halves or s.memory.dtype is not FLOAT16]
    groups = list(_groups(scalars, target))
    spans = [_span(group) for group in groups]
    most = max((sum(at in span for span in spans) for at in (s.start for s in spans)), default=0)
    removed: set[int] = set()
    for group, span in zip(groups, spans, strict=True):
        if most > free and sum(_overlap(span, other) for other in spans) > 1:
            continue
        frame.lines[span.start] = _joined(group, builder)
        removed.update(s.line for s in group if s.line != span.start)
    if removed:
        frame.lines[:] = [text for k, text in enumerate(frame.lines) if k not in removed]


def _joined(group: list[ScalarLoad], builder: Builder) -> str:
    first = group[0]
    size, elem = first.memory.dtype.nbytes, storage_type(first.memory.dtype)
    whole = storage_type(first.memory.dtype, len(group))
    p, v = builder.fresh("p"), builder.fresh("v")
    lines = [
        f"  {p} = getelementptr inbounds {elem}, ptr {first.base}, i64 {first.cell.offset}",
        f"  {v} = load {whole}, ptr {p}, align {size}",
    ]
    for k, s in enumerate(group):
        lines.append(f"  {s.name} = extractelement {whole} {v}, i64 {k}")
    return "\n".join(lines)


def _groups(loads: list[ScalarLoad], target: Target) -> Iterator[list[ScalarLoad]]:
    """Loads of as many consecutive elements as a vector has."""
    pieces: dict[tuple[int, Terms], dict[int, ScalarLoad]] = {}
    for s in loads:
        pieces.setdefault((s.cell.memory, s.cell.terms), {})[s.cell.offset] = s
    for by_offset in pieces.values():
        lanes = target.lanes(next(iter(by_offset.values())).memory.dtype.bits)
        at = -1
        for offset in sorted(by_offset):
            if offset >= at and all(offset + k in by_offset for k in range(lanes)):
                yield [by_offset[offset + k] for k in range(lanes)]
                at = offset + lanes


def _span(group: list[ScalarLoad]) -> range:
    """The lines between the first and the last load of a group."""
    lines = [s.line for s in group]
    return range(min(lines), max(lines) + 1)


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _registers(t: Type, target: Target) -> int:
    return max(1, t.lanes * t.bits // target.vector_bits)


class RegisterCache:
    def __init__(self, position: Position, addressing: Addressing, prefetches: Prefetches) -> None:
        self.position, self.builder = position, position.builder
        self.addressing, self.prefetches = addressing, prefetches
        self.frames, self.depth = position.frames, position.depth
        self.max_hoisted = position.target.num_vector_registers // 2
        self.tangled: set[int] = set()  # memories of which overlapping cells are held

    def read(self, m: Memory, cell: Cell) -> V:
        """The value of a cell, from the nearest frame that holds it; otherwise it is loaded, as far
        out as is legal.
        """
        if (held := self.frames[-1].cells.get(cell)) is not None:
            return held.value
        if (m.dtype is FLOAT16 or self._joins_parts(cell)) and (longer := self._longer(cell)):
            other, start = longer
            return self.builder.part(self.frames[-1].cells[other].value, start, cell.lanes)
        top = len(self.frames) - 1
        at = top
        while True:
            held = self.frames[at].cells.get(cell)
            if held is not None:
                value = held.value
                break
            if at == 0 or not self.frames[at].lets_through(cell):
                held = None
                break
            at -= 1
        if held is None:
            at = self._load_depth(at, top, cell)
            value = self._load_at(m, cell, at)
        for k in range(at + 1, top + 1):  # loops that write the cell carry it
            frame = self.frames[k]
            if (
                frame.kind == "loop"
                and cell.memory in frame.carried
                and cell.memory in frame.written
            ):
                phi = self.builder.fresh("c")
                frame.phis[cell] = (phi, value)
                value = V(phi, value.type)
                frame.cells[cell] = Held(value, False)
        return value

    def _longer(self, cell: Cell) -> tuple[Cell, int] | None:
        """A longer cell that this frame holds, and where the cell begins in it: a vector of halves
        is converted to floats in two parts, and the end of a sum is added to a part of a register.
        """
        here = self.frames[-1].cells
        if cell.lanes == 1 or cell.memory not in here.near:
            return None
        others = here.touching(cell)
        if len(others) != 1 or others[0].terms != cell.terms:
            return None
        (other,), start = others, cell.offset - others[0].offset
        if start < 0 or start + cell.lanes > other.lanes:
            return None
        return other, start

    def _joins_parts(self, cell: Cell) -> bool:
        """Whether parts of a register are read and written as such. In memory, a whole vector that
        is loaded after a part of it was stored waits for that store, ten times as long as a sum.
        """
        return self.position.target.masks_vectors and cell.memory not in self.tangled

    def _load_depth(self, at: int, top: int, cell: Cell) -> int:
        """The frame in which to load a cell. Loads are hoisted out of loops that they do not depend
        on, but never out of a branch, whose condition may be what makes the address valid.
        """
        for k in range(top, at, -1):
            if self.frames[k].kind == "branch":
                return k
        # variables of flattened or outer loops are defined in their own frame only
        low = max((self.depth[n] for n, _ in cell.terms), default=0)
        at = max(at, low)
        carried = any(cell.memory in f.carried & f.written for f in self.frames[at + 1 :])
        if at < top and not carried:
            frame = self.frames[at]
            if frame.hoisted >= self.max_hoisted:
                return top
            frame.hoisted += 1
        return at

    def _load_at(self, m: Memory, cell: Cell, at: int) -> V:
        frame = self.frames[at]
        lines = self.builder.lines
        self.builder.lines = frame.lines
        for f in self.frames:  # overlapping dirty cells are written back first
            for other in f.cells.touching(cell) if cell.memory in f.cells.near else ():
                self.tangled.add(cell.memory)
                if (held := f.cells[other]).dirty:
                    self._write_out(other, held)
        base = self.addressing.base(m, cell.terms)
        value = self._load_from(m, self.addressing.beyond(base, m, cell.offset), cell)
        if can_join(m, cell, frame, self.position.target):
            frame.scalars.append(ScalarLoad(m, cell, base, len(frame.lines) - 1, value.name))
        self.builder.lines = lines
        frame.cells[cell] = Held(value, False)
        self.prefetches.beside(m, cell)
        return value

    def write(self, cell: Cell, value: V) -> None:
        """Holds the value in this frame. Other cells that overlap it are written back first."""
        here = self.frames[-1].cells
        held = here.get(cell)
        if held is not None and cell.memory not in self.tangled:  # nothing held overlaps it
            held.value, held.dirty = value, True
            return
        if self._joins_parts(cell) and (longer := self._longer(cell)):
            held, start = here[longer[0]], longer[1]
            if held.value.type.elem == value.type.elem:
                held.value, held.dirty = self.builder.joined(held.value, value, start), True
                return
        for frame in reversed(self.frames):
            for other in frame.cells.touching(cell):
                held = frame.cells[other]
                if held.dirty:
                    self._write_out(other, held)
                del frame.cells[other]
            if frame.kind == "function" or cell.memory not in frame.carried:
                break
        here[cell] = Held(value, True)

    def flush(self, serial: int, *, drop: bool) -> None:
        """Writes back all dirty cells of a memory. With `drop`, its cells are no longer held."""
        for frame in self.frames:
            for cell in [c for c in frame.cells if c.memory == serial]:
                held = frame.cells[cell]
                if held.dirty:
                    self._write_out(cell, self._newest(cell))
                    held.dirty = False
                if drop:
                    del frame.cells[cell]

    def _newest(self, cell: Cell) -> Held:
        for frame in reversed(self.frames):
            if cell in frame.cells:
                return frame.cells[cell]
        raise AssertionError(cell)

    def settle(self, serial: int, cells: set[Cell]) -> None:
        """Before a loop that carries `cells`: writes back and drops other cells that overlap
        them.
        """
        for frame in self.frames:
            for held_cell in [c for c in frame.cells if c.memory == serial and c not in cells]:
                if any(held_cell.touches(c) for c in cells):
                    held = frame.cells[held_cell]
                    if held.dirty:
                        self._write_out(held_cell, held)
                    del frame.cells[held_cell]

    def _write_out(self, cell: Cell, held: Held) -> None:
        m = self._memory_of(cell.memory)
        self.prefetches.beside(m, cell, write=True)
        self._store_to(m, self.addressing.pointer(m, cell.terms, cell.offset), cell, held.value)
        held.dirty = False

    def _memory_of(self, serial: int) -> Memory:
        for m in self.position.memories.values():
            if m.serial == serial:
                return m
        raise AssertionError(serial)

    def close(self, frame: Frame) -> None:
        """At the end of a loop's or a branch's body: writes back what the frame does not carry."""
        for cell, held in frame.cells.items():
            if (
                held.dirty
                and cell.memory not in frame.owned
                and not (frame.kind == "loop" and cell.memory in frame.carried)
            ):
                self._write_out(cell, held)

    def adopt(self, frame: Frame) -> None:
        """After a loop: the values it carried become the parent's."""
        parent = self.frames[-1]
        for cell, held in frame.cells.items():
            if cell.memory not in frame.carried or cell.memory not in frame.written:
                continue
            old = parent.cells.get(cell)
            dirty = held.dirty or (old is not None and old.dirty)
            parent.cells[cell] = Held(held.value, dirty)

    def flush_frame(self, frame: Frame) -> None:
        """At the end of a function: writes back everything that a caller may read."""
        for cell, held in frame.cells.items():
            if held.dirty and cell.memory not in frame.owned:
                self._write_out(cell, held)

    def _load_from(self, m: Memory, pointer: str, cell: Cell) -> V:
        t = storage_type(m.dtype, cell.lanes)
        raw = partial_registers.load(self.builder, t, pointer, self._align(m, cell))
        return widen(self.builder, raw, m.dtype)

    def _store_to(self, m: Memory, pointer: str, cell: Cell, value: V) -> None:
        raw = narrow(self.builder, value, m.dtype)
        partial_registers.store(self.builder, raw, pointer, self._align(m, cell))

    def _align(self, m: Memory, cell: Cell) -> int:
        """The known alignment of a cell's address in bytes."""
        size = m.dtype.nbytes
        alignment = gcd(m.align, cell.offset * size, *[step * size for _, step in cell.terms])
        return max(min(alignment, 64), size)
