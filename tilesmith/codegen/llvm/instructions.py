"""Emits hardware instructions: the operands of a Store with an Intrinsic as vectors, and the
instruction's own code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilesmith.base.errors import BuildError
from tilesmith.codegen.llvm.addressing import Address, Addressing
from tilesmith.codegen.llvm.builder import Type, V
from tilesmith.codegen.llvm.frames import Cell
from tilesmith.codegen.llvm.intrinsics import Rows, emitter_of, held_results
from tilesmith.codegen.llvm.position import Position
from tilesmith.codegen.llvm.register_cache import RegisterCache
from tilesmith.expr.intervals import linear, simple_quotients, step_along
from tilesmith.expr.ints import ZERO, Int, IntLike, of
from tilesmith.expr.nodes import Load
from tilesmith.ir.nodes import Block, Intrinsic, Store, walk


class Instructions:
    def __init__(self, position: Position, addressing: Addressing, cache: RegisterCache) -> None:
        self.position, self.addressing, self.cache = position, addressing, cache
        self._set_up: set[str] = set()  # what instructions have put at the function's start
        self._held = False  # whether the result of the next instruction is in its registers
        self._streamed = ""

    def emit(self, s: Store) -> None:
        unit = s.intrinsic
        assert unit is not None
        missing = unit.features - self.position.target.features
        if missing:
            raise BuildError(
                f"{unit.name} needs {', '.join(sorted(missing))}, which this target lacks"
            )
        if self.position.mask is not None:
            raise BuildError(f"{unit.name} cannot be done in some lanes only")
        for name, load in s.operands:
            self._require_dense(s, name, load)
        if unit.by_address:
            self._emit_by_address(s, unit)
            return
        operands: dict[str, V] = {}
        cells: dict[str, Cell] = {}
        for n, _ in s.tile:
            self.position.env[n] = 0
        for name, load in s.operands:
            a = self.addressing.address(load.buffer, load.index)
            cells[name] = Cell(a.memory.serial, a.terms, a.offset, operand_size(s, name))
            operands[name] = self._read(s, a, cells[name], load)
        for n, _ in s.tile:
            del self.position.env[n]
        out = unit.description.outputs[0].name
        self.cache.write(cells[out], emitter_of(unit)(self.position.builder, operands))

    @contextmanager
    def holding(self, s: Store, cleared: bool, streamed: str = "") -> Iterator[None]:
        """Around the steps of a sum: the result of `s` is in registers of its own meanwhile, as
        zeros at first if it is `cleared`. `streamed` is an operand that L1 need not keep.
        """
        unit = s.intrinsic
        assert unit is not None
        load = dict(s.operands)[unit.output]
        loops = {n for p in load.index for n in p.names if n not in self.position.env}
        rows = self._rows(s, unit.output, dict.fromkeys(loops, ZERO))
        steps = held_results().get(unit.name)
        if steps is None:
            raise BuildError(
                f"{unit.name} cannot hold its result: this back end knows no registers for it; "
                "leave out held=True"
            )
        steps.begin(self.position.builder, rows, cleared)
        self._set_up_function()
        self._held, self._streamed = True, streamed
        yield
        self._held, self._streamed = False, ""
        steps.end(self.position.builder, rows)

    def _emit_by_address(self, s: Store, unit: Intrinsic) -> None:
        """An instruction that accesses memory: what registers hold of it goes there first."""
        if unit.held and not self._held:
            with self.holding(s, False):
                self._emit_by_address(s, unit)
            return
        origin = dict.fromkeys((n for n, _ in s.tile), ZERO)
        names = [n for n, _ in s.operands if not (unit.held and n == unit.output)]
        operands = {name: self._rows(s, name, origin) for name in names}
        emitter_of(unit)(self.position.builder, operands)
        self._set_up_function()

    def _rows(self, s: Store, name: str, origin: dict[str, Int]) -> Rows:
        """The place of an operand in memory, where the loops in `origin` are 0."""
        position, unit, load = self.position, s.intrinsic, dict(s.operands)[name]
        assert unit is not None
        index = tuple(p.substitute(origin) for p in load.index)
        a = self.addressing.address(load.buffer, index)
        written = any(w.buffer == load.buffer for w in s.writes)
        self.cache.flush(a.memory.serial, drop=written)
        pointer = self.addressing.pointer(a.memory, a.terms, a.offset)
        strides = position.memories[load.buffer].strides
        steps = _steps(s, name, load, strides, position.ranges)
        buf = unit.description.all_buffers[name]
        apart = steps[0] if name in unit.by_address else buf.strides[0].const
        nbytes_apart = (apart or 0) * a.memory.dtype.nbytes
        return Rows(V(pointer, Type("ptr")), nbytes_apart, name == self._streamed)

    def _set_up_function(self) -> None:
        for key, lines in self.position.builder.setup.items():
            if key not in self._set_up:
                self._set_up.add(key)
                self.position.entry_lines.extend(lines)

    def _read(self, s: Store, a: Address, cell: Cell, load: Load) -> V:
        """The value of an operand. Where instructions take a part of a register at no cost (Neon),
        short operands of consecutive unrolled steps are loaded as one vector.
        """
        position, m = self.position, a.memory
        bits = m.dtype.bits * cell.lanes
        room = position.target.vector_bits // bits
        if position.target.machine.rates.lane_factors and room > 1 and s.intrinsic is not None:
            for name, number in position.env.items():
                extent = position.ranges.get(name)
                if (
                    not isinstance(number, int)
                    or extent is None
                    or any(name == n for n, _ in s.tile)
                ):
                    continue
                if step_along(name, load.index, m.strides).const != cell.lanes:
                    continue
                first = number // room * room
                count = min(room, extent.number - first)
                count = 1 << max(0, count.bit_length() - 1)
                if not 1 < count > number - first:
                    continue
                start = (number - first) * cell.lanes
                whole = cell._replace(offset=cell.offset - start, lanes=cell.lanes * count)
                return position.builder.part_of(self.cache.read(m, whole), start, cell.lanes)
        return self.cache.read(m, cell)

    def _require_dense(self, s: Store, name: str, load: Load) -> None:
        """Raises unless the operand lies in memory as the instruction needs it."""
        unit = s.intrinsic
        assert unit is not None
        m = self.position.memories[load.buffer]
        buf = unit.description.all_buffers[name]
        ((_, block),) = walk(unit.description.body)
        index = next(x for n, x in _accesses(block) if n == name)
        by_it = {i.name: n for i, (n, _) in zip(block.iters, s.tile, strict=True)}
        free = index[0].name if name in unit.by_address else None
        env = {f"d{k}": p for k, p in enumerate(index)}
        wanted = index if buf.layout is None else tuple(p.substitute(env) for p in buf.layout)
        for i in block.iters:
            extent = i.extent.number
            if i.name == free:
                continue
            for at in {1, extent // 2, extent - 1} - {0}:
                have = _moved(load.index, m.strides, [n for n, _ in s.tile], by_it[i.name], at)
                have = simple_quotients(have, self.position.ranges)
                need = _moved(wanted, buf.strides, [j.name for j in block.iters], i.name, at)
                if have != need:
                    raise BuildError(
                        f"{unit.name}: {load.buffer} moves by {have} elements along "
                        f"{by_it[i.name]}, the instruction wants {need}; give it another layout"
                    )


def _accesses(block: Block) -> Iterator[tuple[str, tuple[Int, ...]]]:
    for w in block.writes:
        yield w.buffer, w.index
    for load in block.loads:
        yield load.buffer, load.index


def _moved(
    index: Sequence[Int], strides: Sequence[IntLike], tile: Sequence[str], loop: str, at: int
) -> Int:
    """The elements between the tile's origin and the place `at` along one of its loops."""
    origin = dict.fromkeys(tile, ZERO)
    there = {**origin, loop: of(at)}
    return linear((p.substitute(there) - p.substitute(origin) for p in index), strides)


def _steps(
    s: Store, name: str, load: Load, strides: Sequence[IntLike], ranges: dict[str, Int]
) -> list[int | None]:
    """The elements between neighbours along each dimension of an operand."""
    assert s.intrinsic is not None
    ((_, block),) = walk(s.intrinsic.description.body)
    index = next(x for n, x in _accesses(block) if n == name)
    by_it = {i.name: n for i, (n, _) in zip(block.iters, s.tile, strict=True)}
    tile = [n for n, _ in s.tile]
    return [
        simple_quotients(_moved(load.index, strides, tile, by_it[p.name or ""], 1), ranges).const
        for p in index
    ]


def operand_size(s: Store, name: str) -> int:
    """The number of elements of that operand which the instruction takes."""
    assert s.intrinsic is not None
    size: int = 1
    for n in s.intrinsic.description.all_buffers[name].shape:
        size *= n.number
    return size
