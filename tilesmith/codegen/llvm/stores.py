"""Emits stores: computes the values, and puts them in the register cache, or in memory if the
address is not affine or a mask applies. Stores of unrolled loops use templates (copies.py). And
reductions over the lanes of a vector: `S[] = S[] op v` in all lanes at once.
"""

from __future__ import annotations

import math
from functools import partial

from tilesmith.base.errors import BuildError
from tilesmith.codegen.llvm.addressing import Address, Addressing
from tilesmith.codegen.llvm.builder import I64, Type, V, storage_type
from tilesmith.codegen.llvm.copies import Copy, Recording, repeats
from tilesmith.codegen.llvm.expressions import Expressions
from tilesmith.codegen.llvm.frames import Cell, Memory
from tilesmith.codegen.llvm.instructions import Instructions
from tilesmith.codegen.llvm.operations import binary, extreme_of_numbers, narrow
from tilesmith.codegen.llvm.position import Lane, Position
from tilesmith.codegen.llvm.register_cache import RegisterCache
from tilesmith.codegen.llvm.vectors import Vectors, transpose
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import Binary, plain_combiner
from tilesmith.ir.nodes import For, Store, Write


class LaneReductions:
    def __init__(
        self,
        position: Position,
        addressing: Addressing,
        vectors: Vectors,
        expressions: Expressions,
    ) -> None:
        self.position, self.builder = position, position.builder
        self.addressing, self.vectors, self.expressions = addressing, vectors, expressions

    def value(self, w: Write) -> V | None:
        """The value of `S[] = S[] + v`, with the lanes of v reduced first."""
        if self.position.lanes == 1 or not self.joins_lanes(w):
            return None
        e = w.value
        assert isinstance(e, Binary)
        return binary(
            self.builder, e.op, self._element(e), self._across(self._partial(e), e), e.dtype
        )

    def _element(self, e: Binary) -> V:
        """What the lanes are joined to. It is written whether or not any lane is alive, so it must
        be read in the same way: a masked load would read zeros elsewhere where none is.
        """
        mask, self.position.mask = self.position.mask, None
        v = self.expressions.expr(e.a)
        self.position.mask = mask
        return v

    def joins_lanes(self, w: Write) -> bool:
        a = self.addressing.address(w.buffer, w.index)
        return not a.stride and w.accumulates and not self._varies(a)

    def _varies(self, a: Address) -> bool:
        """Whether the part of an address that is no sum of loops differs between lanes."""
        names = (n for m, _ in a.opaque for n in Int({m: 1}).names)
        return any(isinstance(self.position.env.get(n), Lane) for n in names)

    def _partial(self, e: Binary) -> V:
        """The contribution of each lane: the identity for lanes that are masked out."""
        v = self.vectors.splat(self.expressions.expr(e.b), self.position.lanes)
        if self.position.mask is not None:
            neutral = plain_combiner(e.op, e.dtype).identity[0].value
            mask = self.vectors.splat(self.position.mask, self.position.lanes)
            v = self.builder.select(mask, v, self.builder.const(v.type, neutral))
        return v

    def _across(self, v: V, e: Binary) -> V:
        """Reduces the lanes by halving. A NaN is detected once, in parallel, because a maximum that
        propagates NaN would lengthen every step of the chain.
        """
        join, has_nan = partial(binary, self.builder), None
        if e.op in ("max", "min") and v.type.is_float and not self.builder.machine.propagates_nan:
            join = partial(extreme_of_numbers, self.builder)
            nan = self.builder.compare("uno", v, v)
            has_nan = self.builder.call("llvm.vector.reduce.or", Type("i1"), nan)
        while v.type.lanes > 1:
            half = v.type.lanes // 2
            low, high = (self.builder.part(v, k, half) for k in (0, half))
            v = join(e.op, low, high, e.dtype)
        if has_nan is None:
            return v
        return self.builder.select(has_nan, self.builder.const(v.type, math.nan), v)

    def over_pieces(self, w: Write, loop: str, pieces: list[tuple[int, int]]) -> V:
        """A horizontal reduction over several vectors: they are joined lane by lane in a tree, to
        shorten the chain of dependences, and then reduced once across lanes.
        """
        e = w.value
        assert isinstance(e, Binary)
        parts: list[V] = []
        for start, lanes in pieces:
            self.position.env[loop], self.position.lanes = Lane(start, lanes), lanes
            self.expressions.forget()
            parts.append(self._partial(e))
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            last = parts[len(parts) & ~1 :]
            parts = [*(binary(self.builder, e.op, x, y, e.dtype) for x, y in pairs), *last]
        return binary(self.builder, e.op, self._element(e), self._across(parts[0], e), e.dtype)


class Stores:
    def __init__(
        self,
        position: Position,
        addressing: Addressing,
        cache: RegisterCache,
        vectors: Vectors,
        expressions: Expressions,
    ) -> None:
        self.position, self.builder, self.env = position, position.builder, position.env
        self.addressing, self.cache, self.vectors = addressing, cache, vectors
        self.expressions = expressions
        self.reductions = LaneReductions(position, addressing, vectors, expressions)
        self.instructions = Instructions(position, addressing, cache)
        # by statement and lanes; valid while the run-time loops around stay the same
        self.copies: dict[tuple[int, int], tuple[Store, Copy]] = {}
        self._repeating: dict[int, tuple[Store, bool]] = {}

    def store(self, s: Store) -> None:
        if s.intrinsic is not None:
            self.expressions.forget()
            self.instructions.emit(s)
            return
        if self.position.mask is None and self._repeats(s):
            key = (id(s), self.position.lanes)
            if (template := self.copies.get(key)) is not None:
                self._again(template[1])
            elif (copy := self._first(s)) is not None:
                self.copies[key] = s, copy
            return
        for w, v in self._values(s):
            self._put(w, v)

    def _values(self, s: Store) -> list[tuple[Write, V]]:
        self.expressions.forget()
        return [(w, self.reductions.value(w) or self.expressions.expr(w.value)) for w in s.writes]

    def _repeats(self, s: Store) -> bool:
        if id(s) not in self._repeating:
            self._repeating[id(s)] = s, repeats([w.value for w in s.writes])
        return self._repeating[id(s)][1]

    def _first(self, s: Store) -> Copy | None:
        """Emits the store, and records a template for its further copies."""
        b = self.builder
        rec = self.position.recording = Recording(b.lines)
        b.lines = rec.lines
        values = self._values(s)
        writes = []
        for w, v in values:
            a = self.addressing.address(w.buffer, w.index)
            lanes = self.position.lanes if a.stride else 1
            if a.opaque or a.unlike or a.stride not in (0, 1):
                rec.unlike = True
            elif lanes > 1:
                v = self.vectors.splat(v, lanes)
            writes.append((self.addressing.place(w.buffer, w.index, lanes), v))
        self.position.recording, b.lines = None, rec.around
        b.lines += rec.lines
        for (w, _), (_, v) in zip(values, writes, strict=True):
            self._put(w, v)
        return rec.copy(writes)

    def _again(self, copy: Copy) -> None:
        b = self.builder
        values: list[V] = []
        for place, of, lanes in copy.operands:
            if place is None:
                values.append(self.vectors.splat(values[of], lanes))
            else:
                values.append(self.cache.read(place.memory, self.addressing.cell_at(place)))
        names = [v.name for v in values] + b.names(copy.fresh)
        if copy.fresh:
            b.lines.append(copy.text.format(*names))
        for target, gap, t in copy.writes:
            name = gap if isinstance(gap, str) else names[gap]
            self.cache.write(self.addressing.cell_at(target), V(name, t))

    def square(self, s: For) -> None:
        """Two loops around a store that `transpose_squares` marked: vectors are loaded along the
        outer loop, transposed, and stored along the inner one.
        """
        (inner,) = s.body
        assert isinstance(inner, For)
        (store,) = inner.body
        assert isinstance(store, Store)
        (w,) = store.writes
        self.position.lanes = side = s.trips
        self.position.ranges |= {s.name: s.extent, inner.name: inner.extent}
        rows = []
        self.env[s.name] = Lane(0, side)
        for k in range(side):
            self.env[inner.name] = k
            self.expressions.forget()
            rows.append(self.vectors.splat(self.expressions.expr(w.value), side))
        self.env[inner.name] = Lane(0, side)
        for k, column in enumerate(transpose(self.builder, rows)):
            self.env[s.name] = k
            self._put(w, column)
        self.position.lanes = 1
        for f in (s, inner):
            del self.env[f.name], self.position.ranges[f.name]

    def _put(self, w: Write, v: V) -> None:
        a = self.addressing.address(w.buffer, w.index)
        m = a.memory
        if a.opaque:
            self._scatter(a, v)
            return
        lanes = self.position.lanes if a.stride else 1
        uniform_mask = self.position.mask is not None and a.stride == 0
        v = self.vectors.splat(v, lanes) if lanes > 1 else v
        if v.type.lanes != lanes:
            raise BuildError(f"{w.buffer} is written by all lanes of a vector at once")
        if a.stride in (0, 1) and (self.position.mask is None or uniform_mask):
            self.cache.write(Cell(m.serial, a.terms, a.offset, lanes), v)
            return
        self.cache.flush(m.serial, drop=True)
        b = self.builder
        raw = narrow(self.builder, v, m.dtype)
        if a.stride == 1 and self.position.mask is not None:
            p = self.addressing.pointer(m, a.terms, a.offset)
            t = raw.type
            name = f"@llvm.masked.store.{t.suffix}.p0"
            b.declarations.setdefault(
                name, f"declare void {name}({t}, ptr, i32, {self.position.mask.type})"
            )
            b.emit(
                f"  call void {name}({raw}, ptr {p}, i32 {m.dtype.nbytes}, {self.position.mask})"
            )
            return
        pointers = [
            self.addressing.pointer(m, a.terms, a.offset + k * a.stride) for k in range(lanes)
        ]
        self._spread(m, raw, pointers)

    def _scatter(self, a: Address, v: V) -> None:
        b, m = self.builder, a.memory
        self.cache.flush(m.serial, drop=True)
        at = self.expressions.integer(Int(dict(a.opaque)))
        base = self.addressing.pointer(m, a.terms, a.offset)
        elem = storage_type(m.dtype)
        if at.type.lanes == 1 and a.stride == 0:
            if v.type.lanes > 1:
                raise BuildError(f"{m.name} is written by all lanes of a vector at once")
            p = b.value(Type("ptr"), f"getelementptr inbounds {elem}, ptr {base}, {at}").name
            b.emit(f"  store {narrow(self.builder, v, m.dtype)}, ptr {p}, align {m.dtype.nbytes}")
            return
        raw = narrow(self.builder, self.vectors.splat(v, self.position.lanes), m.dtype)
        pointers = []
        for k in range(self.position.lanes):
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
        if self.position.mask is not None:
            scrap = b.fresh("scrap")
            self.position.entry_lines.append(f"  {scrap} = alloca [8 x i8], align 8")
        for k, p in enumerate(pointers):
            x = b.value(scalar, f"extractelement {raw}, i64 {k}") if raw.type.lanes > 1 else raw
            if self.position.mask is not None:
                ok = self.position.mask
                if ok.type.lanes > 1:
                    ok = b.value(Type("i1"), f"extractelement {ok}, i64 {k}")
                p = b.value(Type("ptr"), f"select {ok}, ptr {p}, ptr {scrap}").name
            b.emit(f"  store {x}, ptr {p}, align {m.dtype.nbytes}")

    def reduce_pieces(self, s: Store, loop: str, pieces: list[tuple[int, int]]) -> None:
        """A reduction over the lanes of several vectors."""
        (w,) = s.writes
        self._put(w, self.reductions.over_pieces(w, loop, pieces))
