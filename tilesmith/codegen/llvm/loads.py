"""Emits loads: from the register cache if the address is affine, else from memory, under a mask if
not all lanes may read.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.base.dtype import UINT8
from tilesmith.codegen.llvm import partial_registers
from tilesmith.codegen.llvm.addressing import Address, Addressing
from tilesmith.codegen.llvm.builder import I64, Type, V, storage_type
from tilesmith.codegen.llvm.copies import Operand
from tilesmith.codegen.llvm.frames import Cell, Memory
from tilesmith.codegen.llvm.operations import widen
from tilesmith.codegen.llvm.position import Position
from tilesmith.codegen.llvm.register_cache import RegisterCache
from tilesmith.codegen.llvm.tables import SIZE, looked_up, reads_tables
from tilesmith.codegen.llvm.vectors import Vectors
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import Expr, Load


class Loads:
    """`integer` emits the part of an address that is computed at run time, `value` a value."""

    def __init__(
        self,
        position: Position,
        addressing: Addressing,
        cache: RegisterCache,
        vectors: Vectors,
        integer: Callable[[Int], V],
        value: Callable[[Expr], V],
    ) -> None:
        self.position, self.builder = position, position.builder
        self.addressing, self.cache, self.vectors = addressing, cache, vectors
        self.integer, self.value = integer, value
        self._safe: str | None = None
        self.zeroed: dict[str, str] = {}  # names of values, which are 0 where this mask is not set

    def load(self, e: Load) -> V:
        a = self.addressing.address(e.buffer, e.index)
        m = a.memory
        lanes = self.position.lanes if a.stride else 1
        guarded = self.position.mask is not None and not self._in_bounds(e, m)
        rec = self.position.recording
        if not a.opaque and a.stride in (0, 1) and not guarded:
            cell = Cell(m.serial, a.terms, a.offset, lanes)
            if rec is None or a.unlike:
                if rec is not None:
                    rec.unlike = True
                return self.cache.read(m, cell)
            self.builder.lines = rec.around
            v = self.cache.read(m, cell)
            self.builder.lines = rec.lines
            rec.add(v, Operand(self.addressing.place(e.buffer, e.index, lanes)))
            return v
        if rec is not None:
            rec.unlike = True
        self.cache.flush(m.serial, drop=False)
        if a.opaque:
            return self._gather(a, e)
        mask = self.position.mask if guarded else None
        if a.stride == 0:
            return self._guarded_scalar(m, self.addressing.pointer(m, a.terms, a.offset), mask)
        if a.stride == 1 and mask is not None:
            return self._masked_cell(m, Cell(m.serial, a.terms, a.offset, lanes), mask)
        if a.stride == 2 and mask is None:
            return self._every_second(a, lanes)
        if a.stride == -1 and mask is None:
            return self._backwards(a, lanes)
        pointers = [
            self.addressing.pointer(m, a.terms, a.offset + k * a.stride) for k in range(lanes)
        ]
        return self._collect(m, pointers, mask)

    def _in_bounds(self, e: Load, m: Memory) -> bool:
        for p, n in zip(e.index, m.shape, strict=True):
            try:
                low, high = bounds(p, self.position.ranges)
            except Unknown:
                return False
            lo, last = low.const, (n - 1 - high).const
            if lo is None or last is None or lo < 0 or last < 0:
                return False
        return True

    def _safe_place(self) -> str:
        """An address that may always be read."""
        if self._safe is None:
            self._safe = self.builder.fresh("safe")
            self.position.entry_lines.append(f"  {self._safe} = alloca [64 x i8], align 64")
            self.position.entry_lines.append(
                f"  store <64 x i8> zeroinitializer, ptr {self._safe}, align 64"
            )
        return self._safe

    def _guarded_scalar(self, m: Memory, pointer: str, mask: V | None) -> V:
        b = self.builder
        if mask is not None:
            if mask.type.lanes > 1:
                mask = b.call("llvm.vector.reduce.or", Type("i1"), mask)
            pointer = b.value(
                Type("ptr"), f"select {mask}, ptr {pointer}, ptr {self._safe_place()}"
            ).name
        t = storage_type(m.dtype)
        raw = b.value(t, f"load {t}, ptr {pointer}, align {m.dtype.nbytes}")
        return widen(self.builder, raw, m.dtype)

    def _masked_cell(self, m: Memory, cell: Cell, mask: V) -> V:
        """A masked load, once in each iteration of a loop that does not write the memory."""
        frame, key = self.position.frames[-1], (cell, mask.name)
        is_end = mask.name in self.position.end_masks
        kept = (
            is_end and frame.kind != "function" and cell.memory not in frame.written | frame.owned
        )
        if kept and (v := frame.masked.get(key)) is not None:
            return v
        pointer = self.addressing.pointer(m, cell.terms, cell.offset)
        v = self._masked_load(m, pointer, cell.lanes, mask)
        if is_end:
            self.zeroed[v.name] = mask.name
        if kept:
            frame.masked[key] = v
        return v

    def _masked_load(self, m: Memory, pointer: str, lanes: int, mask: V) -> V:
        b = self.builder
        if mask.type.lanes == 1:  # all lanes or none
            mask = self.vectors.splat(mask, lanes)
        t = storage_type(m.dtype, lanes)
        name = f"@llvm.masked.load.{t.suffix}.p0"
        b.declarations.setdefault(name, f"declare {t} {name}(ptr, i32, {mask.type}, {t})")
        raw = b.value(
            t, f"call {t} {name}(ptr {pointer}, i32 {m.dtype.nbytes}, {mask}, {t} zeroinitializer)"
        )
        return widen(self.builder, raw, m.dtype)

    def _every_second(self, a: Address, lanes: int) -> V:
        """A stride of two: two overlapping loads within the accessed range, and a shuffle."""
        b, m = self.builder, a.memory
        t = storage_type(m.dtype, lanes)
        if lanes < 4:
            pointers = [self.addressing.pointer(m, a.terms, a.offset + 2 * k) for k in range(lanes)]
            return self._collect(m, pointers, None)
        size = m.dtype.nbytes
        low, high = (
            partial_registers.load(b, t, self.addressing.pointer(m, a.terms, a.offset + k), size)
            for k in (0, lanes - 1)
        )
        picks = [2 * k if 2 * k < lanes else lanes + 2 * k - (lanes - 1) for k in range(lanes)]
        order = ", ".join(f"i32 {k}" for k in picks)
        raw = b.value(t, f"shufflevector {low}, {high}, <{lanes} x i32> <{order}>")
        return widen(self.builder, raw, m.dtype)

    def _backwards(self, a: Address, lanes: int) -> V:
        b, m = self.builder, a.memory
        t = storage_type(m.dtype, lanes)
        p = self.addressing.pointer(m, a.terms, a.offset - (lanes - 1))
        raw = partial_registers.load(b, t, p, m.dtype.nbytes)
        order = ", ".join(f"i32 {lanes - 1 - k}" for k in range(lanes))
        raw = b.value(t, f"shufflevector {raw}, {t} poison, <{lanes} x i32> <{order}>")
        return widen(self.builder, raw, m.dtype)

    def _collect(self, m: Memory, pointers: list[str], mask: V | None) -> V:
        """Loads element by element."""
        b = self.builder
        lanes = len(pointers)
        if mask is not None and mask.type.lanes == 1:
            mask = self.vectors.splat(mask, lanes)
        t = storage_type(m.dtype, lanes)
        scalar = storage_type(m.dtype)
        whole = V("poison", t)
        for k, p in enumerate(pointers):
            if mask is not None:
                ok = b.value(Type("i1"), f"extractelement {mask}, i64 {k}")
                p = b.value(Type("ptr"), f"select {ok}, ptr {p}, ptr {self._safe_place()}").name
            x = b.value(scalar, f"load {scalar}, ptr {p}, align {m.dtype.nbytes}")
            whole = b.value(t, f"insertelement {whole}, {x}, i64 {k}")
        return widen(self.builder, whole, m.dtype)

    def _looked_up(self, a: Address) -> V | None:
        """An entry of a table of bytes for each lane, if the place is a byte."""
        m, ((atoms, factor), *others) = a.memory, a.opaque
        if others or len(atoms) != 1 or factor != 1 or a.stride or m.shape != (SIZE,):
            return None
        place = atoms[0]
        if m.dtype.bits != 8 or not isinstance(place, Dynamic) or place.expr.dtype is not UINT8:
            return None
        at = self.value(place.expr)
        if at.type.elem != "i8" or not reads_tables(self.position.target, at.type.lanes):
            return None
        table = self.addressing.pointer(m, a.terms, a.offset)
        found = looked_up(self.builder, self.position.target, table, at)
        return widen(self.builder, found, m.dtype)

    def _gather(self, a: Address, e: Load) -> V:
        b, m = self.builder, a.memory
        mask = (
            self.position.mask
            if self.position.mask is not None and not self._in_bounds(e, m)
            else None
        )
        if (found := self._looked_up(a)) is not None:  # any byte is a place of the table
            return found
        at = self.integer(Int(dict(a.opaque)))
        base = self.addressing.pointer(m, a.terms, a.offset)
        elem = storage_type(m.dtype)
        if at.type.lanes == 1:
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {at}").name
            if a.stride == 0:
                return self._guarded_scalar(m, p, mask)
            if a.stride == 1:
                if mask is not None:
                    return self._masked_load(m, p, self.position.lanes, mask)
                t = storage_type(m.dtype, self.position.lanes)
                raw = partial_registers.load(b, t, p, m.dtype.nbytes)
                return widen(self.builder, raw, m.dtype)
        lanes = self.position.lanes
        pointers = []
        for k in range(lanes):
            i = at if at.type.lanes == 1 else b.value(I64, f"extractelement {at}, i64 {k}")
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {i}").name
            if a.stride:
                p = b.value(
                    Type("ptr"), f"getelementptr inbounds {elem}, ptr {p}, i64 {k * a.stride}"
                ).name
            pointers.append(p)
        return self._collect(m, pointers, mask)
