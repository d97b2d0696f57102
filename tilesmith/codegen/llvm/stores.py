"""Stores: a value goes to memory, is joined across lanes, or is what an instruction of its own
computes.
"""

from __future__ import annotations

import math
from typing import Any

from tilesmith.base.errors import BuildError
from tilesmith.codegen.llvm.builder import I64, Type, V, storage_type
from tilesmith.codegen.llvm.cells import Address, Lane
from tilesmith.codegen.llvm.copies import Copy, Recording, repeats
from tilesmith.codegen.llvm.frames import Cell, Memory
from tilesmith.codegen.llvm.transpose import transpose
from tilesmith.codegen.llvm.values import Values
from tilesmith.codegen.passes.strips import lanes_of
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import (
    Binary,
    Load,
    plain_combiner,
)
from tilesmith.ir.nodes import For, Store, Write, walk


class Stores(Values):
    # writes
    def store(self, s: Store) -> None:
        if s.intrinsic is not None:
            self._memo = {}
            self._intrinsic(s)
            return
        if self.mask is None and self._repeats(s):
            key = (id(s), self.lanes)
            if (known := self.copies.get(key)) is not None:
                self._again(known[1])
            elif (copy := self._first(s)) is not None:
                self.copies[key] = s, copy
            return
        for w, v in self._values(s):
            self._put(w, v)

    def _values(self, s: Store) -> list[tuple[Write, V]]:
        self._memo = {}
        return [(w, self._horizontal(w) or self.expr(w.value)) for w in s.writes]

    def _repeats(self, s: Store) -> bool:
        if id(s) not in self._repeating:
            self._repeating[id(s)] = s, repeats([w.value for w in s.writes])
        return self._repeating[id(s)][1]

    def _first(self, s: Store) -> Copy | None:
        """The store, and what other copies of it take from this one."""
        b = self.builder
        rec = self.recording = Recording(b.lines)
        b.lines = rec.lines
        values = self._values(s)
        writes = []
        for w, v in values:
            a = self.address(w.buffer, w.index)
            lanes = self.lanes if a.stride else 1
            if a.opaque or a.stride not in (0, 1):
                rec.unlike = True
            elif lanes > 1:
                v = self.splat(v, lanes)
            writes.append((self.place(w.buffer, w.index, lanes), v))
        self.recording, b.lines = None, rec.around
        b.lines += rec.lines
        for (w, _), (_, v) in zip(values, writes, strict=True):
            self._put(w, v)
        return rec.copy(writes)

    def _again(self, copy: Copy) -> None:
        b = self.builder
        values: list[V] = []
        for place, of, lanes in copy.operands:
            if place is None:
                values.append(self.splat(values[of], lanes))
            else:
                values.append(self.read(place.memory, self.cell_at(place)))
        names = [v.name for v in values] + b.names(copy.fresh)
        if copy.fresh:
            b.lines.append(copy.text.format(*names))
        for target, gap, t in copy.writes:
            name = gap if isinstance(gap, str) else names[gap]
            self.write(self.cell_at(target), V(name, t))

    def square(self, s: For) -> None:
        """Two loops around a store (`transpose_squares`): the elements of the outer one are loaded
        at once, those of the inner one stored.
        """
        (inner,) = s.body
        assert isinstance(inner, For)
        (store,) = inner.body
        assert isinstance(store, Store)
        (w,) = store.writes
        self.lanes = side = s.extent.const or 1
        self.ranges |= {s.name: s.extent, inner.name: inner.extent}
        rows = []
        self.env[s.name] = Lane(0, side)
        for k in range(side):
            self.env[inner.name], self._memo = k, {}
            rows.append(self.splat(self.expr(w.value), side))
        self.env[inner.name] = Lane(0, side)
        for k, column in enumerate(transpose(self.builder, rows)):
            self.env[s.name] = k
            self._put(w, column)
        self.lanes = 1
        for f in (s, inner):
            del self.env[f.name], self.ranges[f.name]

    def _put(self, w: Write, v: V) -> None:
        a = self.address(w.buffer, w.index)
        m = a.memory
        if a.opaque:
            self._scatter(a, v)
            return
        lanes = self.lanes if a.stride else 1
        uniform_mask = self.mask is not None and a.stride == 0
        v = self.splat(v, lanes) if lanes > 1 else v
        if v.type.lanes != lanes:
            raise BuildError(f"{w.buffer} is written by all lanes of a vector at once")
        if a.stride in (0, 1) and (self.mask is None or uniform_mask):
            self.write(Cell(m.serial, a.terms, a.offset, lanes), v)
            return
        self.flush_memory(m.serial, drop=True)
        b = self.builder
        raw = self.narrow(v, m.dtype)
        if a.stride == 1 and self.mask is not None:
            p = self.pointer(m, a.terms, a.offset)
            t = raw.type
            name = f"@llvm.masked.store.{t.suffix}.p0"
            b.declarations.setdefault(name, f"declare void {name}({t}, ptr, i32, {self.mask.type})")
            b.emit(f"  call void {name}({raw}, ptr {p}, i32 {m.dtype.nbytes}, {self.mask})")
            return
        pointers = [self.pointer(m, a.terms, a.offset + k * a.stride) for k in range(lanes)]
        self._spread(m, raw, pointers)

    def _scatter(self, a: Address, v: V) -> None:
        b, m = self.builder, a.memory
        self.flush_memory(m.serial, drop=True)
        at = self._opaque_offset(a)
        base = self.pointer(m, a.terms, a.offset)
        elem = storage_type(m.dtype)
        if at.type.lanes == 1 and a.stride == 0:
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {at}").name
            b.emit(f"  store {self.narrow(v, m.dtype)}, ptr {p}, align {m.dtype.nbytes}")
            return
        raw = self.narrow(self.splat(v, self.lanes), m.dtype)
        pointers = []
        for k in range(self.lanes):
            i = at if at.type.lanes == 1 else b.value(I64, f"extractelement {at}, i64 {k}")
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {i}").name
            p = b.value(
                Type("ptr"), f"getelementptr inbounds {elem}, ptr {p}, i64 {k * a.stride}"
            ).name
            pointers.append(p)
        self._spread(m, raw, pointers)

    def _spread(self, m: Memory, raw: V, pointers: list[str]) -> None:
        b = self.builder
        scalar = storage_type(m.dtype)
        scrap = None
        if self.mask is not None:
            scrap = b.fresh("scrap")
            self.entry_lines.append(f"  {scrap} = alloca [8 x i8], align 8")
        for k, p in enumerate(pointers):
            x = b.value(scalar, f"extractelement {raw}, i64 {k}") if raw.type.lanes > 1 else raw
            if self.mask is not None:
                ok = self.mask
                if ok.type.lanes > 1:
                    ok = b.value(Type("i1"), f"extractelement {ok}, i64 {k}")
                p = b.value(Type("ptr"), f"select {ok}, ptr {p}, ptr {scrap}").name
            b.emit(f"  store {x}, ptr {p}, align {m.dtype.nbytes}")

    def _horizontal(self, w: Write) -> V | None:
        """`S[] = S[] + v` in all lanes at once: the lanes of v are joined first."""
        if self.lanes == 1 or not self._joins_lanes(w):
            return None
        e = w.value
        assert isinstance(e, Binary)
        return self.binary(e.op, self.expr(e.a), self._across(self._partial(e), e), e.dtype)

    def _joins_lanes(self, w: Write) -> bool:
        a, e = self.address(w.buffer, w.index), w.value
        if a.stride or a.opaque or not isinstance(e, Binary):
            return False
        return isinstance(e.a, Load) and e.a.buffer == w.buffer and e.a.index == w.index

    def _partial(self, e: Binary) -> V:
        """What each lane adds; lanes that are masked out add nothing."""
        v = self.splat(self.expr(e.b), self.lanes)
        if self.mask is not None:
            neutral = plain_combiner(e.op, e.dtype).identity[0].value
            mask = self.splat(self.mask, self.lanes)
            v = self.builder.select(mask, v, self.builder.const(v.type, neutral))
        return v

    def _across(self, v: V, e: Binary) -> V:
        """The lanes joined in halves. A NaN among them is asked for once, beside that, where each
        maximum would have to do so after the one before.
        """
        join, found = self.binary, None
        if e.op in ("max", "min") and v.type.is_float and self.target.arch != "aarch64":
            join = self.extreme_of_numbers
            nan = self.builder.compare("uno", v, v)
            found = self.builder.call("llvm.vector.reduce.or", Type("i1"), nan)
        while v.type.lanes > 1:
            half = v.type.lanes // 2
            low, high = (self._half(v, half, k) for k in (0, half))
            v = join(e.op, low, high, e.dtype)
        if found is None:
            return v
        return self.builder.select(found, self.builder.const(v.type, math.nan), v)

    def reduce_pieces(self, s: Store, loop: str, pieces: list[tuple[int, int]]) -> None:
        """A horizontal reduction over several vectors: they are joined lane by lane, in pairs so
        that no join waits for all before it, then once across.
        """
        (w,) = s.writes
        e = w.value
        assert isinstance(e, Binary)
        parts: list[V] = []
        for start, lanes in pieces:
            self.env[loop], self.lanes = Lane(start, lanes), lanes
            self._memo = {}
            parts.append(self._partial(e))
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            last = parts[len(parts) & ~1 :]
            parts = [*(self.binary(e.op, x, y, e.dtype) for x, y in pairs), *last]
        total = self.binary(e.op, self.expr(e.a), self._across(parts[0], e), e.dtype)
        self._put(w, total)

    def _half(self, v: V, half: int, start: int) -> V:
        t = Type(v.type.elem, half)
        if half == 1:
            return self.builder.value(t, f"extractelement {v}, i64 {start}")
        order = ", ".join(f"i32 {start + k}" for k in range(half))
        return self.builder.value(
            t, f"shufflevector {v}, {v.type} poison, <{half} x i32> <{order}>"
        )

    # instructions
    def operand_size(self, s: Store, name: str) -> int:
        assert s.intrinsic is not None
        size: int = 1
        for n in s.intrinsic.description.all_buffers[name].shape:
            size *= n.const or 1
        return size

    def _intrinsic(self, s: Store) -> None:
        unit = s.intrinsic
        assert unit is not None
        missing = unit.features - self.target.features
        if missing:
            raise BuildError(
                f"{unit.name} needs {', '.join(sorted(missing))}, which this target lacks"
            )
        if self.mask is not None:
            raise BuildError(f"{unit.name} cannot be done in some lanes only")
        operands: dict[str, Any] = {}
        cells: dict[str, Cell] = {}
        ((_, block),) = walk(unit.description.body)
        its = [i.name for i in block.iters]
        accesses = {w.buffer: w.index for w in block.writes}
        accesses |= {load.buffer: load.index for load in block.loads}
        for n, _ in s.tile:
            self.env[n] = 0
        for name, load in s.operands:
            self._check_dense(s, name, load, its, accesses[name])
            a = self.address(load.buffer, load.index)
            cells[name] = Cell(a.memory.serial, a.terms, a.offset, self.operand_size(s, name))
            operands[name] = self.read(a.memory, cells[name])
        for n, _ in s.tile:
            del self.env[n]
        out = unit.description.outputs[0].name
        self.write(cells[out], unit.emit(self.builder, operands))

    def _check_dense(
        self, s: Store, name: str, load: Load, its: list[str], wanted: tuple[Int, ...]
    ) -> None:
        """The operand lies in memory as the instruction wants it: its strides along the tile are
        those of the description.
        """
        assert s.intrinsic is not None
        m = self.memories[load.buffer]
        buf = s.intrinsic.description.all_buffers[name]
        for (loop, extent), it in zip(s.tile, its, strict=True):
            have = sum(
                (p.coefficient(loop).const or 0) * k
                for p, k in zip(load.index, m.strides, strict=True)
            )
            need = sum(
                (p.coefficient(it).const or 0) * (k.const or 0)
                for p, k in zip(wanted, buf.strides, strict=True)
            )
            if have != need and extent.const != 1:
                raise BuildError(
                    f"{s.intrinsic.name}: {load.buffer} moves by {have} elements along {loop}, "
                    f"the instruction wants {need}; give it another layout"
                )

    # vectors
    def pieces_of(self, s: For) -> list[tuple[int, int]]:
        """A vectorized loop as (start, lanes): whole registers, then smaller powers of two."""
        if (known := self._pieces.get(id(s))) is not None:
            return known[1]
        n, width, at = s.extent.const or 0, lanes_of(s.body, self.target), 0
        out: list[tuple[int, int]] = []
        self._pieces[id(s)] = s, out  # with the loop, so that its identity is not another's
        while at < n:
            while width > n - at:
                width //= 2
            out.append((at, width))
            at += width
        return out
