"""The default rules, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT16, FLOAT32, INT8, UINT8, DType
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import (
    INTRINSICS,
    group_intrinsics,
    of_halves,
    operand_types,
    warp_intrinsics,
)
from tilesmith.ir.nodes import Intrinsic
from tilesmith.schedule.rounding import within
from tilesmith.space import analysis
from tilesmith.space.annotation import CpuAnnotation
from tilesmith.space.annotation_gpu import AnnotateForGpu
from tilesmith.space.chunked import SumWindowsInHalves, TileInChunks
from tilesmith.space.column_sums import TileColumnSums
from tilesmith.space.copies import MergeRows, TileElements, inline_elements
from tilesmith.space.derive import Derived, Rule, State
from tilesmith.space.dots import TileDots, inline_views
from tilesmith.space.elements_gpu import TileElementsForGpu
from tilesmith.space.few_rows import FuseFewRows
from tilesmith.space.filtering import (
    FilterWindows,
    FilterWindowsForGpu,
    LeaveOutZeros,
    leave_out_padding,
)
from tilesmith.space.fuse_chain import FuseChain
from tilesmith.space.instructions import TileByInstruction
from tilesmith.space.rolling import RollByTensorCores, is_rolled
from tilesmith.space.rolling_rows import RollRows
from tilesmith.space.rolling_threads import RollByThreads
from tilesmith.space.rules import (
    AddRfactor,
    InlineCheap,
    Tile,
    TileAcross,
    TileAndFuse,
    merge_axes,
    skip,
    split_divided,
)
from tilesmith.space.rules_columns import FuseColumns, merge_neighbours
from tilesmith.space.rules_gpu import (
    Fetching,
    KeepPadding,
    TileForGpu,
    add_cache_write,
)
from tilesmith.space.rules_rows import FuseRows
from tilesmith.space.running import RunRows, RunTiles
from tilesmith.space.split_sums import SplitSums, split_interleaved
from tilesmith.space.tensor_cores import TileByTensorCores
from tilesmith.space.tiling import Tiling
from tilesmith.space.unfolding import TileUnfolded
from tilesmith.space.warp_products import TileByWarps
from tilesmith.space.windows import (
    WriteOutRows,
    WriteOutWindows,
    WriteOutWindowsForGpu,
)
from tilesmith.task.task import Task, allowed_error

_FEW_USES = 16  # of each element, up to which it is not packed


@dataclass(frozen=True)
class Where:
    """Asks a rule only about states that pass a test: what the rule needs, in one place."""

    test: Callable[[State], bool]
    rule: Rule

    def __call__(self, state: State) -> Derived | None:
        return self.rule(state) if self.test(state) else None


def ends_several(state: State) -> bool:
    """Whether the block is a result that other blocks are computed for."""
    return analysis.is_output(state.func, state.block) and reads_computed(state)


def updates_places(state: State) -> bool:
    """Whether the block writes at places that a tensor holds."""
    return state.block.scatters


def keeps_partial(state: State) -> bool:
    """Whether the block keeps every partial result of a reduction."""
    return state.block.is_running


def reads_running(state: State) -> bool:
    return any(p.is_running for p in analysis.producers(state.func, state.block))


def is_in_order(state: State) -> bool:
    return updates_places(state) or keeps_partial(state)


def leave(state: State) -> Derived:
    """Leaves the block as it is, whatever later rules would make of it."""
    return Derived((state.skip(),), final=True)


def reads_computed(state: State) -> bool:
    return bool(analysis.producers(state.func, state.block))


def has_windows(state: State) -> bool:
    return bool(analysis.window_axes(state.block))


def copies(state: State) -> bool:
    """Whether the block computes a result element by element, of inputs alone."""
    if state.block.combiner is not None or state.block.reducing or reads_computed(state):
        return False
    return analysis.is_output(state.func, state.block) and not state.levels_of(state.block.name)


def has_few_uses(state: State) -> bool:
    """Whether a reduction uses elements of some operand a few times only."""
    b = state.block
    return b.combiner is not None and any(analysis.uses(b, x) <= _FEW_USES for x in b.loads)


def sums_halves(state: State) -> bool:
    """Whether the block reduces float16, and the target computes with it."""
    b, buffers = state.block, state.func.all_buffers
    if b.combiner is None or "fp16" not in state.task.target.features:
        return False
    return any(buffers[x.buffer].dtype is FLOAT16 for x in b.loads)


def sums_windows_of_halves(state: State) -> bool:
    return sums_halves(state) and has_windows(state)


@dataclass(frozen=True)
class TypesOf:
    """Whether the block reads one of these types. Those of 8 bits are alike: an operand can be
    shifted from one to the other.
    """

    taken: frozenset[DType]

    def __call__(self, state: State) -> bool:
        read = {state.func.all_buffers[x.buffer].dtype for x in state.block.loads}
        return bool(read & (self.taken | ({INT8, UINT8} if self.taken & {INT8, UINT8} else set())))


def is_one_launch(func: Function, target: Target) -> bool:
    """Whether a GPU computes products, and reductions of rows between them, in one launch or two,
    whatever else could be tried: attention, where nothing between need be stored.
    """
    state = State(Task(func, target), func)
    if is_rolled(func, target):
        return True
    return FuseFewRows().is_best(state) or by_threads(target, None).is_best(state)


def by_threads(target: Target, accuracy: float | None) -> RollByThreads:
    allowed = allowed_error(accuracy, FLOAT32)
    units = (*group_intrinsics(target), *warp_intrinsics(target))
    return RollByThreads(within(units, allowed))


def usable(intrinsics: tuple[Intrinsic, ...], target: Target) -> tuple[Intrinsic, ...]:
    """The instructions that the target has."""
    return tuple(u for u in intrinsics if u.features <= target.features)


@checks_given(error=ScheduleError)
def default_rules(target: Target, accuracy: float | None = None) -> tuple[Rule, ...]:
    """Goes beyond Ansor: tiles need not divide, the innermost tile stays in registers, and the
    vectorised axis, the loop order of the outer levels and packed operands are decisions. Minimal
    filtering, and instructions that round their factors, are used where their relative error is at
    most `accuracy`.
    """
    allowed = allowed_error(accuracy, FLOAT32)
    windows = FilterWindows(accuracy=allowed)
    if target.kind != "cpu":
        groups = TileByTensorCores(within(group_intrinsics(target), allowed))
        fetching = Fetching(widths=(1, 2, 4), pipeline=True)
        return (
            RollByTensorCores(of_halves(group_intrinsics(target, between=True))),
            Where(ends_several, FuseFewRows()),
            Where(ends_several, by_threads(target, accuracy)),
            Where(reads_running, RunTiles()),
            KeepPadding(),
            merge_neighbours,
            InlineCheap(always=True),
            Where(is_in_order, leave),
            split_interleaved,
            FuseRows(),
            FuseColumns(),
            WriteOutWindowsForGpu(),
            FilterWindowsForGpu(windows),
            TileUnfolded(groups),
            SplitSums(),
            groups,
            TileByWarps(within(warp_intrinsics(target), allowed)),
            TileElementsForGpu(),
            add_cache_write,
            TileForGpu(
                Tiling("SSSRRSRS", max_innermost=16, unroll_reduce=16, whole=16, groups=True),
                (
                    fetching,
                    replace(fetching, turned=True),
                    replace(fetching, shared=(False, False)),
                ),
            ),
            skip,
            AnnotateForGpu(),
        )
    lanes, units = target.lanes(FLOAT32.bits), usable(INTRINSICS, target)
    tiling = Tiling("SSRSRRS", "any", max_innermost=8 * lanes, lanes=lanes, registers=True, whole=8)
    narrow = target.lanes(FLOAT16.bits)
    windows_of_halves = (WriteOutWindows(narrow), WriteOutRows(narrow))
    halves = TileAndFuse(replace(tiling, lanes=narrow, max_innermost=8 * narrow))
    return (
        merge_neighbours,
        Where(keeps_partial, RunRows(lanes)),
        Where(ends_several, RollRows(lanes, max_innermost=8 * lanes)),
        Where(ends_several, FuseChain(lanes, max_innermost=8 * lanes)),
        InlineCheap(),
        Where(reads_computed, inline_views),
        Where(reads_computed, inline_elements),
        Where(updates_places, leave),
        merge_axes,
        Where(copies, MergeRows(lanes)),
        split_divided,
        Where(reads_computed, leave_out_padding),
        Where(TypesOf(operand_types(target)), TileByInstruction(units)),
        Where(has_windows, windows),
        Where(sums_windows_of_halves, SumWindowsInHalves(windows_of_halves, accuracy)),
        Where(has_windows, WriteOutWindows(lanes)),
        Where(has_windows, WriteOutRows(lanes)),
        Where(reads_computed, LeaveOutZeros()),
        AddRfactor(max_innermost=16 * lanes, shortest=2 * lanes),
        Where(has_few_uses, TileDots(lanes)),
        Where(sums_halves, TileInChunks((TileAcross(halves), halves), accuracy)),
        TileAcross(TileAndFuse(tiling)),
        TileAndFuse(tiling),
        Tile(tiling),
        TileColumnSums(lanes, max_innermost=8 * lanes),
        Where(copies, TileElements(lanes)),
        skip,
        CpuAnnotation(stream=target.machine.stream_ahead_nbytes),
    )
