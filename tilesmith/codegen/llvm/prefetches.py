"""Emits prefetches, one instruction per cache line."""

from __future__ import annotations

from tilesmith.codegen.llvm.addressing import Addressing
from tilesmith.codegen.llvm.builder import storage_type
from tilesmith.codegen.llvm.frames import Cell, Memory
from tilesmith.codegen.llvm.position import Position
from tilesmith.codegen.passes.spread_prefetches import LINE
from tilesmith.ir.notes import FetchLines


class Prefetches:
    def __init__(self, position: Position, addressing: Addressing) -> None:
        self.position, self.addressing, self.builder = position, addressing, position.builder
        self.frames, self.depth = position.frames, position.depth

    def beside(self, m: Memory, cell: Cell, *, write: bool = False) -> None:
        """Next to an access: prefetches its cache lines of later iterations, as the loops' notes
        request. For a store with distance 0 the prefetch is at the top of its own iteration.
        """
        for depth, frame in enumerate(self.frames):
            distance = frame.prefetch.get(m.name)
            if distance is None:
                continue
            step = sum(s for n, s in cell.terms if n in frame.loops)
            early = write and all(self.depth[n] <= depth for n, _ in cell.terms)
            if step == 0 or (write and distance == 0 and not early):
                continue
            size = m.dtype.nbytes
            first, last = cell.offset * size // 64, ((cell.offset + cell.lanes) * size - 1) // 64
            for line in range(first, last + 1):
                key = (cell.memory, cell.terms, line)
                if key in frame.prefetched:
                    continue
                frame.prefetched.add(key)
                at = max(line * 64 // size, cell.offset) + step * distance
                lines = self.builder.lines
                base = self.addressing.base(m, cell.terms)
                if early:
                    self.builder.lines = frame.head
                self.builder.prefetch(base, at, str(storage_type(m.dtype)), write=write)
                self.builder.lines = lines

    def on_behalf(self, note: FetchLines) -> None:
        """Prefetches that `spread_prefetches` moved into this loop from one around it."""
        m = self.position.memories[note.buffer]
        terms, at = [], note.start
        for n, stride in note.strides:
            if isinstance(v := self.position.env[n], int):
                at += stride * v
            else:
                terms.append((n, stride))
        terms.sort(key=lambda t: (self.depth[t[0]], t[0]))
        base, elem = self.addressing.base(m, tuple(terms)), str(storage_type(m.dtype))
        for k in range(note.lines):
            line = at + k * LINE // m.dtype.nbytes
            self.builder.prefetch(base, line, elem, write=note.write, level=note.level)
