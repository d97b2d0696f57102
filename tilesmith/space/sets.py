"""Sets of rules, in the order in which they are applied: Ansor's, and the default ones."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import FLOAT32
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.ir.intrinsics import INTRINSICS, group_intrinsics, warp_intrinsics
from tilesmith.space.annotation import CpuAnnotation
from tilesmith.space.chains import FuseChain
from tilesmith.space.derive import Rule
from tilesmith.space.filtering import FilterWindows, FilterWindowsForGpu, LeaveOutZeros
from tilesmith.space.instructions import TileByInstruction, usable
from tilesmith.space.rules import (
    AddCacheWrite,
    AddRfactor,
    InlineCheap,
    Tile,
    TileAcross,
    TileAndFuse,
    merge_axes,
    skip,
    split_divided,
)
from tilesmith.space.rules_gpu import (
    CrossThreadReduction,
    Fetching,
    GpuAnnotation,
    KeepPadding,
    TileForGpu,
)
from tilesmith.space.rules_rows import (
    AnnotateForGpu,
    FuseRows,
    SplitSums,
    split_interleaved,
)
from tilesmith.space.tensor_cores import TileByTensorCores, TileByWarps
from tilesmith.space.tiling import Tiling
from tilesmith.space.unfolding import TileUnfolded
from tilesmith.space.windows import TileColumnSums, WriteOutWindows, WriteOutWindowsForGpu
from tilesmith.task.task import ACCURACY


@checks_given(error=ScheduleError)
def ansor_rules(target: Target) -> tuple[Rule, ...]:
    """Exactly Ansor's rules: tiles that divide, by SSRSRS on CPUs and by SSSRRSRS on GPUs."""
    if target.kind != "cpu":
        return (
            InlineCheap(always=True),
            CrossThreadReduction(),
            AddCacheWrite(final=True),
            TileForGpu(Tiling("SSSRRSRS")),
            skip,
            GpuAnnotation(),
        )
    tiling = Tiling("SSRSRS")
    return (
        InlineCheap(),
        AddRfactor(),
        AddCacheWrite(),
        TileAndFuse(tiling),
        Tile(tiling),
        skip,
        CpuAnnotation(),
    )


@checks_given(error=ScheduleError)
def default_rules(target: Target, accuracy: float = ACCURACY) -> tuple[Rule, ...]:
    """Goes beyond Ansor: tiles need not divide, the innermost tile stays in registers, and the
    vectorised axis, the loop order of the outer levels and packed operands are decisions. Minimal
    filtering is used where its relative error is at most `accuracy`.
    """
    if target.kind != "cpu":
        fetching = Fetching(widths=(1, 2, 4), pipeline=True)
        return (
            KeepPadding(),
            InlineCheap(always=True),
            split_interleaved,
            FuseRows(),
            WriteOutWindowsForGpu(),
            FilterWindowsForGpu(FilterWindows(accuracy=accuracy)),
            TileUnfolded(TileByTensorCores(group_intrinsics(target))),
            SplitSums(),
            TileByTensorCores(group_intrinsics(target)),
            TileByWarps(warp_intrinsics(target)),
            AddCacheWrite(final=True, permuted=True),
            TileForGpu(
                Tiling("SSSRRSRS", max_innermost=16, unroll_reduce=16, whole=16, groups=True),
                fetching=(
                    fetching,
                    replace(fetching, turned=True),
                    replace(fetching, shared=(False, False)),
                ),
                permuted=True,
                clusters=(2, 4),
                teams=(2, 4, 8),
            ),
            skip,
            AnnotateForGpu(),
        )
    lanes = target.lanes(FLOAT32.bits)
    tiling = Tiling("SSRSRRS", "any", max_innermost=8 * lanes, lanes=lanes, registers=True, whole=8)
    return (
        FuseChain(lanes, max_innermost=8 * lanes),
        InlineCheap(),
        merge_axes,
        split_divided,
        TileByInstruction(usable(INTRINSICS, target)),
        FilterWindows(accuracy=accuracy),
        WriteOutWindows(lanes),
        LeaveOutZeros(),
        AddRfactor(policy="any", max_innermost=16 * lanes, shortest=2 * lanes, rows=4),
        TileAcross(TileAndFuse(tiling, pack=True, epilogues=False)),
        TileAndFuse(tiling, choose_axis=True, pack=True, order=True, epilogues=False),
        Tile(tiling, choose_axis=True, pack=True, order=True, epilogues=False),
        TileColumnSums(lanes, max_innermost=8 * lanes),
        skip,
        CpuAnnotation(
            unroll_tiled=False,
            repeat=False,
            prefetch=True,
            rows=8,
            stream=target.machine.stream_ahead_nbytes,
        ),
    )
