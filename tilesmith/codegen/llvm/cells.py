"""Addresses, loads and stores: reads and writes of cells go through the frames' registers, and to
memory only when they must.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from tilesmith.base.dtype import DType
from tilesmith.base.target import Target
from tilesmith.codegen.llvm import halves
from tilesmith.codegen.llvm.builder import Builder, Type, V, storage_type
from tilesmith.codegen.llvm.copies import Copy, Place, Recording
from tilesmith.codegen.llvm.frames import Cell, Frame, Held, Memory, Terms
from tilesmith.codegen.passes.fetch import LINE
from tilesmith.expr.ints import Int, Monomial, of
from tilesmith.ir.nodes import Store


@dataclass(frozen=True, slots=True)
class Lane:
    """The value of a vectorized loop: consecutive numbers from `start`."""

    start: int
    lanes: int


class Address(NamedTuple):
    """An access taken apart: known loops folded into the offset, run-time loops as terms, lanes as
    a stride, the rest opaque.
    """

    memory: Memory
    terms: Terms
    offset: int
    stride: int
    opaque: tuple[tuple[Monomial, int], ...]


class _Plan(NamedTuple):
    """What of an address stays the same while loops around it are written out."""

    indices: tuple[Int, ...]  # kept, so that its identity is not another's
    offset: int
    known: tuple[tuple[str, int], ...]  # loops that are written out, or are lanes
    terms: Terms
    opaque: tuple[tuple[Monomial, int], ...]


class Cells:
    def __init__(self, target: Target, builder: Builder) -> None:
        self.target, self.builder = target, builder
        self.frames: list[Frame] = []
        self.memories: dict[str, Memory] = {}
        self.env: dict[str, int | V | Lane] = {}
        self.depth: dict[str, int] = {}  # of the frame in which a run-time loop is known
        self.ranges: dict[str, Int] = {}
        self.places: dict[tuple[str, int], str] = {}
        self.tangled: set[int] = set()  # memories of which overlapping cells were read
        self.label = "entry"
        # by memory and index, as long as the run-time loops around stay the same
        self.plans: dict[tuple[int, int], _Plan] = {}
        self.copies: dict[tuple[int, int], tuple[Store, Copy]] = {}
        self.recording: Recording | None = None

    # addresses
    def place(self, name: str, index: tuple[Int, ...], lanes: int) -> Place:
        """What `address` knows before the loops that are written out have numbers."""
        m = self.memories[name]
        plan = self.plans[m.serial, id(index)]
        return Place(m, plan.terms, plan.offset, plan.known, lanes)

    def cell_at(self, place: Place) -> Cell:
        m, terms, offset, known, lanes = place
        env = self.env
        for loop, c in known:
            v = env[loop]
            offset += c * (v if type(v) is int else v.start)  # type: ignore[union-attr]
        return Cell(m.serial, terms, offset, lanes)

    def address(self, name: str, index: tuple[Int, ...]) -> Address:
        m = self.memories[name]
        key = (m.serial, id(index))
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._plan(m, index)
        offset, stride, env = plan.offset, 0, self.env
        for loop, c in plan.known:
            v = env[loop]
            if type(v) is int:
                offset += c * v
            else:
                offset += c * v.start  # type: ignore[union-attr]
                stride += c
        return Address(m, plan.terms, offset, stride, plan.opaque)

    def _plan(self, m: Memory, index: tuple[Int, ...]) -> _Plan:
        total = of(0)
        for p, stride in zip(index, m.strides, strict=True):
            total = total + p * stride
        terms, known, opaque, offset = [], [], [], 0
        for mono, c in total.terms.items():
            if not mono:
                offset = c
            elif len(mono) > 1 or not isinstance(loop := mono[0], str):
                opaque.append((mono, c))
            elif isinstance(self.env[loop], V):
                terms.append((loop, c))
            else:
                known.append((loop, c))
        terms.sort(key=lambda t: (self.depth[t[0]], t[0]))
        return _Plan(index, offset, tuple(known), tuple(terms), tuple(opaque))

    def pointer(self, m: Memory, terms: Terms, offset: int) -> str:
        base = self._base(m, terms)
        if not offset:
            return base
        elem = storage_type(m.dtype)
        name = self.builder.fresh("p")
        self.builder.emit(f"  {name} = getelementptr inbounds {elem}, ptr {base}, i64 {offset}")
        return name

    def _base(self, m: Memory, terms: Terms) -> str:
        """The pointer that the run-time loops give. It is computed where the innermost of them is
        known, or stepped along with it.
        """
        if not terms:
            return m.pointer
        name, stride = terms[-1]
        frame = self.frames[self.depth[name]]
        key = (m.serial, terms)
        found = frame.pointers.get(key)
        if found is not None:
            return found
        outer = self._base(m, terms[:-1])
        elem = storage_type(m.dtype)
        b = self.builder
        p = b.fresh("q")
        value = self.env[name]
        assert isinstance(value, V)
        if frame.stepped == name:
            first = outer
            if frame.starts_at is not None:  # a thread's part does not begin at 0
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

    # the registers
    def read(self, m: Memory, cell: Cell) -> V:
        """The value of a cell, from the nearest frame that holds it, else from memory as far out as
        it may be loaded.
        """
        if (held := self.frames[-1].cells.get(cell)) is not None:
            return held.value
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

    def _load_depth(self, at: int, top: int, cell: Cell) -> int:
        """Loads leave loops they do not depend on, but never a branch: it may be what makes the
        address good.
        """
        for k in range(top, at, -1):
            if self.frames[k].kind == "branch":
                return k
        # terms of flattened or outer loops are known in their own frame only
        low = max((self.depth[n] for n, _ in cell.terms), default=0)
        at = max(at, low)
        carried = any(cell.memory in f.carried & f.written for f in self.frames[at + 1 :])
        if at < top and not carried:
            frame = self.frames[at]
            if frame.hoisted >= self.target.num_vector_registers // 2:
                return top
            frame.hoisted += 1
        return at

    def _load_at(self, m: Memory, cell: Cell, at: int) -> V:
        frame = self.frames[at]
        lines = self.builder.lines
        self.builder.lines = frame.lines
        for f in self.frames:  # a stale overlap must reach memory first
            for other in f.cells.touching(cell) if cell.memory in f.cells.near else ():
                self.tangled.add(cell.memory)
                if (held := f.cells[other]).dirty:
                    self._write_out(other, held)
        value = self.load_from(m, self.pointer(m, cell.terms, cell.offset), cell)
        self.builder.lines = lines
        frame.cells[cell] = Held(value, False)
        self._prefetch(m, cell)
        return value

    def _prefetch(self, m: Memory, cell: Cell, *, write: bool = False) -> None:
        """What a loop is asked to fetch ahead, one request per cache line, beside the access; a
        store of this very iteration is announced at its top.
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
                base = self._base(m, cell.terms)
                if early:
                    self.builder.lines = frame.head
                self.builder.prefetch(base, at, str(storage_type(m.dtype)), write=write)
                self.builder.lines = lines

    def fetch(self, note: tuple[str | int, ...]) -> None:
        """Lines that a loop asks for on behalf of one around it (`spread_fetches`)."""
        name, write, level, offset, each, *flat = note
        m = self.memories[str(name)]
        terms, at = [], int(offset)
        for n, stride in zip(map(str, flat[::2]), map(int, flat[1::2]), strict=True):
            if isinstance(v := self.env[n], int):
                at += stride * v
            else:
                terms.append((n, stride))
        terms.sort(key=lambda t: (self.depth[t[0]], t[0]))
        base, elem = self._base(m, tuple(terms)), str(storage_type(m.dtype))
        for k in range(int(each)):
            line = at + k * LINE // m.dtype.nbytes
            self.builder.prefetch(base, line, elem, write=bool(write), level=int(level))

    def write(self, cell: Cell, value: V) -> None:
        """Into the registers of this frame. Cells that overlap it without being it go to memory
        first.
        """
        here = self.frames[-1].cells
        held = here.get(cell)
        if held is not None and cell.memory not in self.tangled:  # nothing held overlaps it
            held.value, held.dirty = value, True
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

    def flush_memory(self, serial: int, *, drop: bool) -> None:
        """All that is held of a memory reaches it; with `drop`, nothing of it is held any more."""
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
        """Before a loop that carries `cells`: whatever overlaps them without being one of them goes
        to memory.
        """
        for frame in self.frames:
            for held_cell in [c for c in frame.cells if c.memory == serial and c not in cells]:
                if any(held_cell.touches(c) for c in cells):
                    held = frame.cells[held_cell]
                    if held.dirty:
                        self._write_out(held_cell, held)
                    del frame.cells[held_cell]

    def _write_out(self, cell: Cell, held: Held) -> None:
        m = self.memory_of(cell.memory)
        self._prefetch(m, cell, write=True)
        self.store_to(m, self.pointer(m, cell.terms, cell.offset), cell, held.value)
        held.dirty = False

    def memory_of(self, serial: int) -> Memory:
        for m in self.memories.values():
            if m.serial == serial:
                return m
        raise AssertionError(serial)

    def close_cells(self, frame: Frame) -> None:
        """At the end of a loop's or a branch's body: what the frame does not carry out goes to
        memory now.
        """
        for cell, held in frame.cells.items():
            if (
                held.dirty
                and cell.memory not in frame.owned
                and not (frame.kind == "loop" and cell.memory in frame.carried)
            ):
                self._write_out(cell, held)

    def adopt_cells(self, frame: Frame) -> None:
        """After a loop: the values it carried are now the parent's."""
        parent = self.frames[-1]
        for cell, held in frame.cells.items():
            if cell.memory not in frame.carried or cell.memory not in frame.written:
                continue
            old = parent.cells.get(cell)
            dirty = held.dirty or (old is not None and old.dirty)
            parent.cells[cell] = Held(held.value, dirty)

    def flush_all(self, frame: Frame) -> None:
        for cell, held in frame.cells.items():
            if held.dirty and cell.memory not in frame.owned:
                self._write_out(cell, held)

    # memory
    def compute_type(self, d: DType, lanes: int = 1) -> Type:
        """How a value is computed with: half precision in float unless the target has it, bool as
        i1.
        """
        if d.kind == "b":
            return Type("i1", lanes)
        if d.name == "bfloat16" or (d.name == "float16" and "fp16" not in self.target.features):
            return Type("float", lanes)
        return storage_type(d, lanes)

    def load_from(self, m: Memory, pointer: str, cell: Cell) -> V:
        t = storage_type(m.dtype, cell.lanes)
        raw = self.builder.value(t, f"load {t}, ptr {pointer}, align {self._align(m, cell)}")
        return self.widen(raw, m.dtype)

    def store_to(self, m: Memory, pointer: str, cell: Cell, value: V) -> None:
        raw = self.narrow(value, m.dtype)
        self.builder.emit(f"  store {raw}, ptr {pointer}, align {self._align(m, cell)}")

    def _align(self, m: Memory, cell: Cell) -> int:
        """What is known of the address; our own buffers begin at a cache line."""
        size = m.dtype.nbytes
        known = gcd(m.align, cell.offset * size, *[step * size for _, step in cell.terms])
        return max(min(known, 64), size)

    def widen(self, raw: V, d: DType) -> V:
        """From memory's form to the one that is computed with."""
        b, t = self.builder, raw.type
        if d.kind == "b":
            return b.compare("ne", raw, b.const(t, 0))
        if d.name == "bfloat16":
            wide = b.op("shl", b.cast("zext", raw, "i32"), b.const(t.of("i32"), 16))
            return b.cast("bitcast", wide, "float")
        if d.name == "float16" and self.compute_type(d).elem == "float":
            return b.cast("fpext", raw, "float") if b.halves else halves.float_of(b, raw)
        return raw

    def narrow(self, v: V, d: DType) -> V:
        b, t = self.builder, v.type
        if d.kind == "b":
            return b.cast("zext", v, "i8")
        if d.name == "bfloat16":  # to nearest, ties to even; a NaN stays one
            i = t.of("i32")
            bits = b.cast("bitcast", v, "i32")
            odd = b.op("and", b.op("lshr", bits, b.const(i, 16)), b.const(i, 1))
            up = b.op("add", b.op("add", bits, b.const(i, 0x7FFF)), odd)
            nan = b.op("or", bits, b.const(i, 0x400000))
            kept = b.select(b.compare("uno", v, v), nan, up)
            return b.cast("trunc", b.op("lshr", kept, b.const(i, 16)), "i16")
        if d.name == "float16" and t.elem == "float":
            return b.cast("fptrunc", v, "half") if b.halves else halves.half_of(b, v)
        return v
