"""Addresses of accesses: splits an index into constant and run-time parts, and computes pointers.

The part that depends on run-time loops is computed once per loop, where the innermost is known.
Prefetches, one instruction per cache line, have such addresses, too.
"""

from __future__ import annotations

from typing import NamedTuple

from tilesmith.codegen.llvm.builder import I64, V, storage_type
from tilesmith.codegen.llvm.copies import Place
from tilesmith.codegen.llvm.frames import ROW, Cell, Memory, Terms
from tilesmith.codegen.llvm.position import Position
from tilesmith.codegen.llvm.run_time_sizes import RunTimeSizes
from tilesmith.codegen.passes.spread_prefetches import LINE
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import Int, Monomial, is_size
from tilesmith.ir.notes import FetchLines


class Address(NamedTuple):
    """The parts of an access: constants (of unrolled loops) in the offset, run-time loops as terms,
    lanes as a stride, everything else opaque.
    """

    memory: Memory
    terms: Terms
    offset: int
    stride: int
    opaque: tuple[tuple[Monomial, int], ...]
    unlike: bool = False  # in copies of unrolled loops, not only the offset differs


class _Plan(NamedTuple):
    """The part of an address that is the same in all copies of unrolled loops around it."""

    indices: tuple[Int, ...]  # kept alive, because its id is a key
    offset: int
    fixed: tuple[tuple[str, int], ...]  # unrolled loops and lanes, with their strides
    terms: Terms
    opaque: tuple[tuple[Monomial, int], ...]
    mixed: tuple[tuple[Monomial, int], ...] = ()  # unrolled loops with an open size as stride


class Addressing:
    def __init__(self, position: Position) -> None:
        self.sizes = RunTimeSizes(position)
        self.position, self.builder = position, position.builder
        self.frames, self.env, self.depth = position.frames, position.env, position.depth
        # by memory and index; valid while the run-time loops around stay the same
        self.plans: dict[tuple[int, int], _Plan] = {}

    def place(self, name: str, index: tuple[Int, ...], lanes: int) -> Place:
        """The part of `address` that does not depend on the values of unrolled loops."""
        m = self.position.memories[name]
        plan = self.plans[m.serial, id(index)]
        return Place(m, plan.terms, plan.offset, plan.fixed, lanes)

    def cell_at(self, place: Place) -> Cell:
        m, terms, offset, fixed, lanes = place
        env = self.env
        for loop, c in fixed:
            v = env[loop]
            offset += c * (v if type(v) is int else v.start)  # type: ignore[union-attr]
        return Cell(m.serial, terms, offset, lanes)

    def address(self, name: str, index: tuple[Int, ...]) -> Address:
        m = self.position.memories[name]
        key = (m.serial, id(index))
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._plan(m, index)
        offset, stride, env = plan.offset, 0, self.env
        for loop, c in plan.fixed:
            v = env[loop]
            if type(v) is int:
                offset += c * v
            else:
                offset += c * v.start  # type: ignore[union-attr]
                stride += c
        if not plan.mixed:
            return Address(m, plan.terms, offset, stride, plan.opaque)
        terms = dict(plan.terms)
        for mono, c in plan.mixed:
            rest = []
            for a in mono:
                known = env.get(a) if isinstance(a, str) else None
                if isinstance(known, int):
                    c *= known
                else:
                    rest.append(a)
            size = self.sizes.row_of(tuple(rest))
            assert size is not None
            terms[size] = terms.get(size, 0) + c
        ordered = self._ordered([(n, c) for n, c in terms.items() if c])
        return Address(m, ordered, offset, stride, plan.opaque, unlike=True)

    def _plan(self, m: Memory, index: tuple[Int, ...]) -> _Plan:
        terms: list[tuple[str, int]] = []
        fixed, opaque, mixed, offset = [], [], [], 0
        in_rows = not any(is_size(n) for p in index for n in p.names)  # only strides are open
        for mono, c in linear(index, m.strides).terms.items():
            if not mono:
                offset = c
            elif len(mono) > 1 or not isinstance(loop := mono[0], str):
                if (name := self.sizes.name_of(mono)) is not None:
                    terms.append((name, c))
                elif in_rows and self._is_mixed(mono):
                    mixed.append((mono, c))
                else:
                    opaque.append((mono, c))
            elif isinstance(self.env[loop], V):
                terms.append((loop, c))
            else:
                fixed.append((loop, c))
        ordered = self._ordered(terms)
        return _Plan(index, offset, tuple(fixed), ordered, tuple(opaque), tuple(mixed))

    def _ordered(self, terms: list[tuple[str, int]]) -> Terms:
        return tuple(sorted(terms, key=lambda t: (self.depth[t[0]], t[0])))

    def _is_mixed(self, mono: Monomial) -> bool:
        """Whether it is a product of unrolled loops and an open size."""
        values = [self.env.get(a) if isinstance(a, str) else None for a in mono]
        rest = tuple(a for a, v in zip(mono, values, strict=True) if not isinstance(v, int))
        if not rest or len(rest) == len(mono) or not all(map(is_size, rest)):
            return False
        return self.sizes.row_of(rest) is not None

    def pointer(self, m: Memory, terms: Terms, offset: int) -> str:
        return self.beyond(self.base(m, terms), m, offset)

    def beyond(self, base: str, m: Memory, offset: int) -> str:
        """The pointer so many elements behind another."""
        if not offset:
            return base
        elem = storage_type(m.dtype)
        name = self.builder.fresh("p")
        self.builder.emit(f"  {name} = getelementptr inbounds {elem}, ptr {base}, i64 {offset}")
        return name

    def base(self, m: Memory, terms: Terms) -> str:
        """The pointer of the run-time part. It is computed where the innermost of its loops starts
        an iteration, or incremented along with that loop; and rows beside it where they are used,
        so that they take no registers.
        """
        if not terms:
            return m.pointer
        rows = [t for t in terms if t[0][0] == ROW]
        if rows:
            row = min(rows, key=lambda t: (len(t[0]), t[0]))  # the most frequent one
            return self._in_row(self.base(m, tuple(t for t in terms if t != row)), m, *row)
        name, stride = terms[-1]
        frame = self.frames[self.depth[name]]
        key = (m.serial, terms)
        pointer = frame.pointers.get(key)
        if pointer is not None:
            return pointer
        outer = self.base(m, terms[:-1])
        elem = storage_type(m.dtype)
        b = self.builder
        p = b.fresh("q")
        value = self.env[name]
        assert isinstance(value, V)
        inner = [n for n, _ in terms if self.depth[n] == self.depth[name]]
        if frame.stepped == name and len(inner) == 1:
            first = outer
            if frame.starts_at is not None:  # a thread's range does not start at 0
                first = b.fresh("q")
                parent = self.frames[self.depth[name] - 1]
                parent.lines.append(f"  {first}.m = mul i64 {frame.starts_at}, {stride}")
                parent.lines.append(
                    f"  {first} = getelementptr inbounds {elem}, ptr {outer}, i64 {first}.m"
                )
            frame.pointer_phis.append((p, first, stride, str(elem)))
        else:
            frame.head.append(f"  {p}.m = mul i64 {value.name}, {stride}")
            frame.head.append(f"  {p} = getelementptr inbounds {elem}, ptr {outer}, i64 {p}.m")
        frame.pointers[key] = p
        return p

    def _in_row(self, base: str, m: Memory, stride: str, rows: int) -> str:
        """The pointer so many rows behind another. Processors add 1, 2, 4 and 8 times a register,
        so that there is one for each odd number of rows.
        """
        b, frame = self.builder, self.frames[self.depth[stride]]
        twice = min((rows & -rows).bit_length() - 1, 3)
        key = (stride, (rows >> twice) * m.dtype.nbytes)
        if key not in frame.strides:
            value = self.env[stride]
            assert isinstance(value, V)
            name = b.fresh("r")
            lines = frame.head if self.depth[stride] else self.position.entry_lines
            lines.append(f"  {name} = mul i64 {value.name}, {key[1]}")
            frame.strides[key] = name
        step = frame.strides[key]
        if twice:
            step = b.value(I64, f"shl i64 {step}, {twice}").name
        p = b.fresh("p")
        b.emit(f"  {p} = getelementptr inbounds i8, ptr {base}, i64 {step}")
        return p


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
                if early:
                    self.builder.lines = frame.head
                base = self.addressing.base(m, cell.terms)
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
