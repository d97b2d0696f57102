"""The rule that tiles a block around a hardware instruction, such as a dot product of bytes.

The block's iterators are padded to the instruction's size and split by it. The inner parts become
the instruction, the outer parts are tiled like any other block. Operands that do not lie in memory
as the instruction wants them get another layout: constants ahead of time, intermediate results
where they are written, other inputs in a copy. If no instruction takes the operands' types, one of
them is shifted from uint8 to int8 or back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.ir.function import find_block, readers, writers
from tilesmith.ir.nodes import Block, Intrinsic
from tilesmith.ir.prepare import AppendSums
from tilesmith.schedule.cache import CacheRead, CacheWrite
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Unroll
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.shift import ShiftOperand
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.instruction_match import Match, matches, shifted_matches
from tilesmith.space.rules import in_tile, with_locations
from tilesmith.space.tiling import Tiling, Unit, packing

# How much longer products take if their sums do not lie as the result does: to pad 24 channels to
# 32 costs less than to turn them.
_TURNED = 1.5
_SUMMED = 64  # neighbouring sums of a factor, held in registers
_AT_ONCE = 4  # sums that are put together from their digits

_TILING = Tiling("SSRSRRS", "any", max_innermost=16, registers=True, whole=8, ones=True)
# Of an instruction that holds its result: one at a time, and over the whole sum. To load and store
# it again between parts of the sum took longer than any reuse in the caches gained.
_HELD = replace(_TILING, structure="SSSRRS", max_innermost=1)


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class TileByInstruction:
    """Sketches in which one of the `intrinsics` computes a block's innermost tile. An element-wise
    consumer is fused below each of the tile `levels`.
    """

    intrinsics: tuple[Intrinsic, ...]
    tiling: Tiling = _TILING
    held: Tiling = _HELD
    levels: tuple[int, ...] = (1, 2)
    # Instructions that take this much longer than another one, counting padding, are left out.
    slowest: float = 4.0

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if b.domain or b.tile or not b.reducing or state.levels_of(b.name):
            return None
        derived: list[State] = []
        found = [matches(state.func, b, unit) for unit in self.intrinsics]
        if not any(found):
            found = shifted_matches(state.func, b, self.intrinsics)
        least = min((m.cost(b) for every in found for m in every), default=0)
        held = False  # whether an instruction that holds its result was found
        kinds = set[tuple[object, ...]]()
        for every in sorted(filter(None, found), key=lambda e: min(_effort(state, m) for m in e)):
            # the cheapest whose operands can be brought into its order
            for match in sorted(every, key=lambda m: _effort(state, m)):
                if match.intrinsic.held and held:
                    break  # a smaller tile of the same registers
                if match.intrinsic.kind in kinds:
                    break  # the same instruction with its operands in the other order
                try:
                    states = list(self._derive(state, match))
                except ScheduleError:
                    continue
                if match.cost(b) <= self.slowest * least:
                    derived += states
                    kinds.add(match.intrinsic.kind)
                    held = held or match.intrinsic.held
                break
        return Derived(tuple(derived)) if derived else None

    def _derive(self, state: State, match: Match) -> Iterator[State]:
        state, match = _undivided(state, match)
        name, consumer, state = _with_room(state, match)
        match = _again(state, name, replace(match, shifted=""))
        apart = tuple(
            operand for operand, _ in match.operands if match.is_apart(state.func, operand)
        )
        for copied in dict.fromkeys(((), apart)):
            yield from self._tiled(state, name, consumer, match, copied)

    def _tiled(
        self, state: State, name: str, consumer: str | None, match: Match, copied: tuple[str, ...]
    ) -> Iterator[State]:
        """The sketches in which the operands `copied` are packed, although they need not be."""
        state, packed, copies = _with_operands(state, name, match, copied)
        tiling = self.held if match.intrinsic.held else self.tiling
        state = state.then(*(SplitIterator(name, n, size) for n, size in match.axes))
        unit = tuple(f"{n}_inner" for n, _ in match.axes)
        axis = f"{match.order_of(match.output)[-1]}_outer"
        others = [i for i in find_block(state.func, name)[1].spatial if i.name not in (*unit, axis)]
        for turned in (False, True) if any(i.extent.const != 1 for i in others) else (False,):
            whole = analysis.block(state.func, name)
            tiled = tiling.tiles(whole, axis, turned).unit(unit).apply(state)
            b = find_block(tiled.func, name)[1]
            inner = tiling.innermost(b, axis)
            for operand, buffer, tiles in packed:
                axes = tuple(f"{n}_inner" for n in match.order_of(operand))
                buf = tiled.func.all_buffers[buffer]
                taken = Unit(
                    axes, match.digits_of(operand), buf.shape if buf.prepares(AppendSums) else ()
                )
                tiled = tiled.then(*packing(b, buffer, axis, inner if tiles else {}, taken))
            for fused in self._fused(tiled, name, consumer):
                around = 2 if match.intrinsic.held else 3  # levels that a copy may stand in
                placed = with_locations(fused, name, copies, axis if turned else None, around)
                yield placed.then(Tensorize(f"{name}.{unit[0]}", match.intrinsic))

    def _fused(self, state: State, block: str, consumer: str | None) -> Iterator[State]:
        if consumer is None:
            yield state
            return
        apart = True
        for level in self.levels:
            try:
                yield in_tile(state, block, consumer, level)
                apart = False
            except ScheduleError:
                continue
        if apart:
            yield state


def _effort(state: State, match: Match) -> tuple[float, bool]:
    """The cost of an instruction, and of turning what it writes to how memory lies; of those that
    cost the same, one that need not.
    """
    turned = not match.is_dense(state.func, match.output)
    return match.cost(state.block) * (_TURNED if turned else 1.0), turned


def _undivided(state: State, match: Match) -> tuple[State, Match]:
    """The state with an accumulator that has a dimension for each iterator, if the result has one
    for several, such as channels that were divided into groups.
    """
    b = state.block
    if all(p.name for p in b.writes[0].index):
        return state, match
    write = CacheWrite(b.name, "local")
    state = state.then(write, done=[b.name])
    return state, _again(state, write.copy, match)


def _with_room(state: State, match: Match) -> tuple[str, str | None, State]:
    """The state with extents that the instruction divides, and an accumulator that lies as it
    wants. Returns also the name of the block, and of the element-wise consumer to fuse with it.
    """
    func, b = state.func, state.block
    after = analysis.fusible_consumer(func, b)
    consumer = None if after is None else after.name
    name = b.name
    if padding := match.padding(b):
        before = [p.name for p in analysis.producers(func, b) if p.combiner is None]
        state = state.then(Pad(name, padding))
        for producer in before:  # one copy with both kinds of zeros instead of two
            if [r.name for r in readers(state.func, producer)] == [f"{producer}.pad"]:
                state = state.then(Inline(producer))
        if consumer is None:
            consumer = name
        else:  # what reads the result crops it
            state = state.then(Inline(name))
        name = f"{name}.pad"
    if match.shifted:
        name, consumer, state = _shifted(state, name, consumer, _again(state, name, match))
        match = replace(match, shifted="")
    elif not (padding or match.is_dense(func, match.output)) and analysis.is_output(func, b):
        state = state.then(CacheWrite(name, "local"))
        consumer, name = name, f"{name}.local"
    match = _again(state, name, match)
    if not match.is_dense(state.func, match.output):
        state = state.then(_accumulator_layout(state, name, match))
    return name, consumer, state.then(done=[name, *([consumer] if consumer else [])])


def _shifted(
    state: State, name: str, consumer: str | None, match: Match
) -> tuple[str, str | None, State]:
    """The state in which the block reads a shifted copy, which what makes that operand becomes a
    part of. What reads the result corrects it.
    """
    func = state.func
    step = ShiftOperand(name, dict(match.operands)[match.shifted].buffer)
    before = [p.name for p in writers(func, step.buffer) if p.combiner is None]
    state = state.then(step, done=[step.shift]).with_tile(step.shift, ())
    for producer in before:
        if [r.name for r in readers(state.func, producer)] == [step.copy]:
            state = state.then(Inline(producer))
    state = state.then(*_sum_loops(find_block(state.func, step.shift)[1]))
    if consumer is None:
        return step.sum, name, state
    return step.sum, consumer, state.then(Inline(name))


def _sum_loops(b: Block) -> list[Step]:
    """The loops of a block that sums a factor: vectors of neighbouring sums. Digits of sums that
    were taken ahead lie apart in a packed constant, so that vectors of them would not pay.
    """
    axes = [i.name for i in b.spatial]
    if not b.reducing:
        split = Split(f"{b.name}.{axes[-1]}", (None, _AT_ONCE)) if axes else None
        return [split, Unroll(split.parts[1])] if split else []
    last = next(load.index[-1].name for load in b.loads)
    if last not in axes:
        return []
    split = Split(f"{b.name}.{last}", (None, _SUMMED))
    others = [f"{b.name}.{i.name}" for i in b.iters if i.name != last]
    return [split, Reorder((split.parts[0], *others, split.parts[1]))]


def _shift_of(block: str) -> str:
    """The block that sums the other factor, by the name of the one that sums shifted products."""
    return ShiftOperand(block.removesuffix(".shifted"), "").shift


def _again(state: State, name: str, match: Match) -> Match:
    """The same match, with the buffers that the block accesses now."""
    b = find_block(state.func, name)[1]
    every = matches(state.func, b, match.intrinsic, bool(match.shifted))
    return next(m for m in every if m.axes == match.axes)


def _accumulator_layout(state: State, name: str, match: Match) -> TransformLayout:
    """Moves what the instruction writes to the end."""
    write = find_block(state.func, name)[1].writes[0]
    dims = {p.name: k for k, p in enumerate(write.index)}
    order, sizes = match.order_of(match.output), match.sizes
    outer = (f"d{k} // {sizes[n]}" if n in order else f"d{k}" for n, k in dims.items() if n)
    inner = (f"d{dims[n]} % {sizes[n]}" for n in order)
    return TransformLayout(write.buffer, (*outer, *inner))


Packed = list[tuple[str, str, bool]]  # operand, its buffer, whether it is laid out in tiles


def _with_operands(
    state: State, name: str, match: Match, copied: tuple[str, ...]
) -> tuple[State, Packed, tuple[str, ...]]:
    """The state in which every operand may get its own layout. Returns also those that need one,
    and the copies that have no location yet.
    """
    packed: Packed = []
    copies: list[str] = []
    uses = Counter(load.buffer for operand, load in match.operands if operand != match.output)
    params = {p.name: p for p in state.func.params}
    for operand, load in match.operands:
        buffer = load.buffer
        constant = buffer in params and params[buffer].scope == "constant"
        read_by = {r.name for r in readers(state.func, buffer)}
        # The sums behind a constant are read in any layout.
        alone = read_by - {_shift_of(name) if constant else ""} == {name}
        if operand == match.output:
            continue
        if constant and alone and match.is_plain(operand) and uses[buffer] == 1:
            packed.append((operand, buffer, True))
        elif match.is_dense(state.func, operand) and operand not in copied:
            continue
        elif uses[buffer] > 1:
            raise ScheduleError(f"{buffer} is two operands, which take different layouts")
        elif not match.is_plain(operand):
            raise ScheduleError(f"{buffer} cannot be packed for {match.intrinsic.name}")
        elif buffer not in params and alone:
            packed.append((operand, buffer, False))
        else:
            read = CacheRead(name, buffer)
            state = state.then(read, done=[read.copy])
            packed.append((operand, read.copy, True))
            copies.append(read.copy)
    return state, packed, tuple(copies)
