"""Emits statements. Loops are unrolled, vectorized or counted; a counted loop carries cells in
registers. Guards become branches, or masks if they differ between lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tilesmith.base.errors import BuildError
from tilesmith.codegen.llvm.addressing import Addressing
from tilesmith.codegen.llvm.builder import I64, V
from tilesmith.codegen.llvm.carried_cells import VectorPieces, carried_cells
from tilesmith.codegen.llvm.expressions import Expressions
from tilesmith.codegen.llvm.frames import Frame, Memory
from tilesmith.codegen.llvm.position import Lane, Module, Position
from tilesmith.codegen.llvm.register_cache import RegisterCache, join_lane_loads
from tilesmith.codegen.llvm.stores import Stores
from tilesmith.codegen.passes.accesses import tile_ranges
from tilesmith.codegen.passes.hold_results import summed
from tilesmith.expr.dynamic import index_loads, loads_of
from tilesmith.expr.intervals import row_major
from tilesmith.expr.ints import Int, is_size, of
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Stmt, Store, Sync, statements
from tilesmith.ir.notes import FetchLines, HoldResult, Prefetch, StreamOperand, TransposeSquare

_STACK_NBYTES = 16 << 10  # larger buffers go to the workspace, to avoid stack overflows
_MOST_UNROLLED = 20_000


class Statements:
    """`parallel` emits a loop whose iterations are shared between threads. A parallel loop inside
    of such a loop runs in its thread.
    """

    def __init__(
        self,
        module: Module,
        position: Position,
        addressing: Addressing,
        cache: RegisterCache,
        expressions: Expressions,
        stores: Stores,
        parallel: Callable[[For], None],
    ) -> None:
        self.module, self.position, self.builder = module, position, position.builder
        self.addressing, self.cache, self.expressions = addressing, cache, expressions
        self.stores, self.parallel = stores, parallel
        self.frames, self.env = position.frames, position.env
        self.depth, self.ranges = position.depth, position.ranges
        self.pieces = VectorPieces(position.target)
        self.places: dict[tuple[str, Int], str] = {}  # pointers of buffers, by name and bytes
        self.unrolled = 0
        self.flattened: list[For] = []  # the loops that the next counted loop flattens

    def body(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case For():
                    self.loop(s)
                case If():
                    self.branch(s)
                case Store():
                    self.stores.store(s)
                case Alloc(buffer=b):
                    self.alloc(b)
                case Sync():
                    pass
                case _:
                    raise AssertionError(s)

    def bind(self, b: Buffer, pointer: str, align: int) -> Memory:
        self.module.serial += 1
        strides, shape = (
            tuple(n if (k := n.const) is None else k for n in sizes)
            for sizes in (b.strides, b.shape)
        )
        m = Memory(b.name, pointer, b.dtype, strides, shape, self.module.serial, align)
        self.position.memories[b.name] = m
        return m

    def alloc(self, b: Buffer) -> None:
        size = b.size.const
        nbytes = of(max(1, size)) * b.dtype.nbytes if size is not None else b.size * b.dtype.nbytes
        key = (b.name, nbytes)
        if key not in self.places:
            if size is not None and nbytes.number <= _STACK_NBYTES:
                name = self.builder.fresh("stack")
                self.position.entry_lines.append(f"  {name} = alloca [{nbytes} x i8], align 64")
            else:
                name = self.builder.fresh("scratch")
                copies = self.position.target.num_cores if self.position.thread else 1
                room = (nbytes + 63) // 64 * 64
                at = self.number_text(self.module.reserve(room * copies))
                if self.position.thread:
                    skip = self.builder.fresh("skip")
                    self.position.entry_lines.append(
                        f"  {skip}.t = mul i64 {self.position.thread}, {self.number_text(room)}"
                    )
                    self.position.entry_lines.append(f"  {skip} = add i64 {skip}.t, {at}")
                    self.position.entry_lines.append(
                        f"  {name} = getelementptr i8, ptr {self.position.workspace}, i64 {skip}"
                    )
                else:
                    self.position.entry_lines.append(
                        f"  {name} = getelementptr i8, ptr {self.position.workspace}, i64 {at}"
                    )
            self.places[key] = name
        m = self.bind(b, self.places[key], 64)
        self.stores.copies.clear()  # the name refers to another memory now
        self.frames[-1].owned.add(m.serial)

    def number_text(self, p: Int) -> str:
        """A number that holds for the whole call: of sizes, if any is open."""
        if (n := p.const) is not None:
            return str(n)
        lines, self.builder.lines = self.builder.lines, self.position.entry_lines
        name = self.addressing.sizes.integer(p).name
        self.builder.lines = lines
        return name

    def loop(self, s: For) -> None:
        if s.extent.const is None:
            # a counted loop has at least one iteration
            self.branch(If((s.extent - 1,), (s,)), partial(self.open_loop, s))
            return
        if (n := s.trips) == 0:
            return
        p = self.position
        if s.kind == "parallel" and p.target.num_cores > 1 and p.thread is None:
            self.parallel(s)
        elif s.note(TransposeSquare):
            self.stores.square(s)
        elif (held := s.note(HoldResult)) is not None:
            unit = summed(s.body[-1])
            assert unit is not None
            streamed = s.note(StreamOperand)
            operand = "" if streamed is None else streamed.operand
            with self.stores.instructions.holding(unit, held.cleared, operand):
                self.body(s.body[-1:])
        elif s.kind == "unroll" or n == 1:
            self.unrolled += n
            if self.unrolled > _MOST_UNROLLED:
                raise BuildError(
                    f"loop {s.name} of {n} unrolls to more than {_MOST_UNROLLED} copies; "
                    "unroll fewer loops, or split them first"
                )
            self.ranges[s.name] = s.extent
            for k in range(n):
                self.env[s.name] = k
                self.body(s.body)
            del self.env[s.name], self.ranges[s.name]
        elif s.kind == "vectorize":
            self.vector_loop(s)
        else:
            self.counted(s, V("0", I64), V(str(n), I64))

    def steady(self, p: Int) -> V:
        """The value of an expression, computed outside of loops that do not change it."""
        if any(map(is_size, p.names)) and (v := self.addressing.sizes.steady(p)) is not None:
            return v
        return self.expressions.integer(p)

    def open_loop(self, s: For) -> None:
        """A loop of at least one iteration whose extent is known when the kernel is called."""
        p = self.position
        if s.kind == "parallel" and p.target.num_cores > 1 and p.thread is None:
            self.parallel(s)
        elif s.kind in ("serial", "parallel"):
            self.counted(s, V("0", I64), self.steady(s.extent))
        else:
            raise BuildError(
                f"loop {s.name} of {s.extent} has an open size; only loops of a constant extent "
                f"are run as {s.kind}: split it first"
            )

    def vector_loop(self, s: For) -> None:
        self.ranges[s.name] = s.extent
        pieces = self.pieces.of(s)
        if len(pieces) > 1 and pieces[1][1] == pieces[0][1] and self.sums_up(s, pieces[0]):
            store = s.body[0]
            assert isinstance(store, Store)
            full = [p for p in pieces if p[1] == pieces[0][1]]
            self.stores.reduce_pieces(store, s.name, full)
            pieces = pieces[len(full) :]
        for start, lanes in pieces:
            self.env[s.name] = Lane(start, lanes) if lanes > 1 else start
            self.position.lanes = lanes
            self.body(s.body)
        self.position.lanes = 1
        del self.env[s.name], self.ranges[s.name]

    def sums_up(self, s: For, piece: tuple[int, int]) -> bool:
        """Whether the loop only reduces its lanes into one element."""
        if len(s.body) != 1 or not isinstance(t := s.body[0], Store) or len(t.writes) != 1:
            return False
        self.env[s.name], self.position.lanes = Lane(*piece), piece[1]
        return (
            piece[1] > 1 and t.intrinsic is None and self.stores.reductions.joins_lanes(t.writes[0])
        )

    def counted(self, s: For, begin: V, end: V) -> None:
        """A loop with a counter, of at least one iteration, and phis for the cells it carries."""
        chain, self.flattened = self.flattened, []
        with self.looping(self._loop_frame(s, chain, begin), s, chain, begin, end):
            for note in s.notes:
                if isinstance(note, FetchLines):
                    self.cache.prefetches.on_behalf(note)
            self.body(s.body)

    def _loop_frame(self, s: For, chain: list[For], begin: V) -> Frame:
        """The frame of a counted loop; what it cannot carry in registers is written to memory."""
        names = frozenset({s.name, *(f.name for f in chain)})
        touched, written = self.touched(s.body)
        cells = carried_cells(self.position, self.pieces, s.body, names)
        for serial in sorted(touched):
            if serial in cells:
                self.cache.settle(serial, cells[serial])
            else:
                self.cache.flush(serial, drop=serial in written)
        innermost = not any(
            isinstance(t, For) and t.kind in ("serial", "parallel") for t in statements(s.body)
        )
        stepped = s.name if innermost and not chain else None
        prefetch = {n.buffer: n.distance for n in s.notes if isinstance(n, Prefetch)}
        frame = Frame("loop", names, written, frozenset(cells), stepped, prefetch)
        frame.starts_at = None if begin.name == "0" else begin.name
        return frame

    @contextmanager
    def looping(self, frame: Frame, s: For, chain: list[For], begin: V, end: V) -> Iterator[None]:
        """What is emitted inside is the body of a loop. Plans of addresses and stores hold only
        there, and the variables of the loop and of those that it flattens.
        """
        b, position, lines = self.builder, self.position, self.builder.lines
        plans, copies = self.addressing.plans, self.stores.copies
        before, name, done = position.label, b.fresh("L")[1:], b.fresh("X")[1:]
        counter = f"%{name}.i"
        self.addressing.plans, self.stores.copies = {}, {}
        b.lines, position.label = frame.lines, name
        with self.inside(frame):
            self.env[s.name], self.ranges[s.name] = V(counter, I64), s.extent
            self.depth[s.name] = len(self.frames) - 1
            self.unflatten(V(counter, I64), chain)
            yield
        join_lane_loads(frame, b, position.target)
        self.addressing.plans, self.stores.copies = plans, copies
        for f in (s, *chain):
            del self.env[f.name], self.ranges[f.name], self.depth[f.name]
        for product in frame.products:
            del self.env[product], self.depth[product]
        self.module.metadata += 1
        latch = position.label
        lines += frame.loop_lines(counter, name, begin.name, before, latch)
        lines += [
            f"  {counter}.n = add nuw nsw i64 {counter}, 1",
            f"  {counter}.c = icmp ult i64 {counter}.n, {end.name}",
            f"  br i1 {counter}.c, label %{name}, label %{done}, "
            f"!llvm.loop !{self.module.metadata}",
            f"{done}:",
        ]
        b.lines, position.label = lines, done
        self.cache.adopt(frame)

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[None]:
        """What is emitted inside belongs to the frame of a loop or branch, and so do buffers that
        are allocated there.
        """
        shadowed = dict(self.position.memories)
        self.frames.append(frame)
        yield
        self.position.memories = shadowed
        self.cache.close(frame)
        self.frames.pop()

    def touched(self, body: tuple[Stmt, ...]) -> tuple[set[int], frozenset[int]]:
        """The memories from outside that a body accesses, and those that it writes."""
        used: set[str] = set()
        written: set[str] = set()
        for s in statements(body):
            if isinstance(s, Store):
                for w in s.writes:
                    written.add(w.buffer)
                    used.update(load.buffer for load in loads_of(w.value))
                    used.update(load.buffer for p in w.index for load in index_loads(p))
            elif isinstance(s, If):
                used.update(load.buffer for p in s.conds for load in index_loads(p))
        outside = {n: m.serial for n, m in self.position.memories.items()}
        wrote = frozenset(outside[n] for n in written if n in outside)
        return {outside[n] for n in used if n in outside} | wrote, wrote

    def partial_tile(self, s: If) -> None:
        """A guarded hardware instruction, element by element because its tile may be partial."""
        for t in s.body:
            assert isinstance(t, Store)
            stmt: Stmt = If(s.conds, (Store(t.writes),))
            for name, extent in reversed(t.tile):
                stmt = For(name, extent, (stmt,))
            self.body((stmt,))

    def branch(self, s: If, emit: Callable[[], None] | None = None) -> None:
        """`emit` writes the body; by default `self.body` does."""
        if any(p.names & tile_ranges(s.body).keys() for p in s.conds):
            self.partial_tile(s)
            return
        uniform = [p for p in s.conds if not self.expressions.varies(p)]
        varying = [p for p in s.conds if self.expressions.varies(p)]
        numbers = [self.expressions.number(p) for p in uniform]
        if any(n is not None and n < 0 for n in numbers):
            return
        uniform = [p for p, n in zip(uniform, numbers, strict=True) if n is None]
        if not uniform:
            if emit is not None:
                emit()
            else:
                self.masked(varying, s.body)
            return
        b = self.builder
        touched, written = self.touched(s.body)
        for serial in sorted(touched):
            self.cache.flush(serial, drop=serial in written)
        cond: V | None = None
        for p in uniform:
            ok = b.compare("sge", self.steady(p), V("0", I64))
            cond = ok if cond is None else b.op("and", cond, ok)
        assert cond is not None
        yes, done = b.fresh("T")[1:], b.fresh("E")[1:]
        b.emit(f"  br {cond}, label %{yes}, label %{done}")
        b.emit(f"{yes}:")
        self.position.label = yes
        with self.inside(Frame("branch", frozenset(), written, lines=self.frames[-1].lines)):
            if emit is not None:
                emit()
            else:
                self.masked(varying, s.body)
        b.emit(f"  br label %{done}")
        b.emit(f"{done}:")
        self.position.label = done

    def masked(self, varying: list[Int], body: tuple[Stmt, ...]) -> None:
        """The body under a mask: only lanes for which all of `varying` are >= 0 write."""
        if not varying:
            self.body(body)
            return
        if self._in_one_lane(varying, body):
            return
        before = self.position.mask
        for p in varying:
            ok = self.expressions.mask(p)
            self.position.mask = (
                ok if self.position.mask is None else self.builder.op("and", self.position.mask, ok)
            )
        self.body(body)
        self.position.mask = before

    def _in_one_lane(self, varying: list[Int], body: tuple[Stmt, ...]) -> bool:
        """Emits the body without vectors if the same lane alone passes every time, or not at all if
        none does. LLVM 22 stores a masked vector of one lane that it narrows as one wide number,
        over the elements behind it.
        """
        loops = [name for name, value in self.env.items() if isinstance(value, Lane)]
        if len(loops) != 1 or self.position.mask is not None:
            return False
        (loop,), lanes = loops, self.position.lanes
        whole = self.env[loop]
        assert isinstance(whole, Lane)
        alive = []
        for k in range(whole.start, whole.start + whole.lanes):
            self.env[loop] = k
            numbers = [self.expressions.number(p) for p in varying]
            if None in numbers:
                break
            if all(n is not None and n >= 0 for n in numbers):
                alive.append(k)
        else:
            if len(alive) <= 1:
                if alive:
                    self.env[loop], self.position.lanes = alive[0], 1
                    self.body(body)
                self.env[loop], self.position.lanes = whole, lanes
                return True
        self.env[loop] = whole
        return False

    def unflatten(self, counter: V, chain: list[For]) -> None:
        b, rest = self.builder, counter
        for f, step in zip(chain, row_major([f.extent for f in chain]), strict=True):
            below, here = step.const, rest
            if below is None or below > 1:
                by = V(str(below), I64) if below else self.expressions.integer(step)
                here = b.op("udiv", rest, by)
                rest = b.op("sub", rest, b.op("mul", here, by))
            self.env[f.name] = here
            self.ranges[f.name] = f.extent
            self.depth[f.name] = len(self.frames) - 1
        frame = self.frames[-1]
        frame.head += frame.lines
        frame.lines.clear()
