"""The default rules, in the order in which they are applied."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import FLOAT32
from tilesmith.base.target import Target
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.tensor_cores import group_intrinsics, warp_intrinsics
from tilesmith.schedule.rounding import ACCURACY
from tilesmith.space.annotation import CpuAnnotation
from tilesmith.space.chains import FuseChain
from tilesmith.space.derive import Rule
from tilesmith.space.filtering import FilterWindows, FilterWindowsForGpu, LeaveOutZeros
from tilesmith.space.instructions import TileByInstruction, usable
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
from tilesmith.space.rules_gpu import (
    Fetching,
    KeepPadding,
    TileForGpu,
    add_cache_write,
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
        AddRfactor(max_innermost=16 * lanes, shortest=2 * lanes),
        TileAcross(TileAndFuse(tiling)),
        TileAndFuse(tiling),
        Tile(tiling),
        TileColumnSums(lanes, max_innermost=8 * lanes),
        skip,
        CpuAnnotation(stream=target.machine.stream_ahead_nbytes),
    )
