"""`Schedule`: builds a trace call by call.

Each method is one primitive, checked and applied at once. Loops and blocks are given by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, var
from tilesmith.ir.dependence import find_block, find_loop
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Intrinsic, walk
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.inline import Inline, ReverseInline
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Annotate, Bind, Parallel, Pipeline, Unroll, Vectorize
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Fuse, Reorder, Split
from tilesmith.schedule.reduction import DecomposeReduction, Rfactor
from tilesmith.schedule.step import Size, Step
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unit import Blockize, Tensorize
from tilesmith.schedule.winograd import Winograd
from tilesmith.schedule.write_out import WriteOut
from tilesmith.schedule.zeros import SkipZeros


class Schedule:
    """`func` is the current Function; `trace` holds the steps that lead to it from `origin`."""

    def __init__(self, func: Function) -> None:
        self.origin = func
        self.func = func
        self._steps: list[Step] = []

    @property
    def trace(self) -> Trace:
        return Trace(tuple(self._steps))

    def apply(self, step: Step) -> None:
        """Applies any primitive, also one of your own.

        An illegal one raises a ScheduleError and leaves the schedule unchanged.
        """
        self.func = step.apply(self.func)
        self._steps.append(step)

    # queries
    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(b.name for _, b in walk(self.func.body))

    def loops(self, block: str) -> tuple[str, ...]:
        """The loops around a block, outermost first."""
        path, _ = find_block(self.func, block)
        return tuple(f.name for f in path)

    def extent(self, loop: str) -> int | Int:
        """The extent of a loop: a number, or an Int if it is open."""
        e = find_loop(self.func, loop)[1].extent
        return e if e.const is None else e.const

    # loops
    def split(
        self, loop: str, factors: Sequence[Size | None], *, exact: bool = False
    ) -> tuple[str, ...]:
        step = Split(loop, tuple(map(_size, factors)), exact)
        self.apply(step)
        return step.parts

    def fuse(self, *loops: str) -> str:
        step = Fuse(loops)
        self.apply(step)
        return step.fused

    def reorder(self, *loops: str) -> None:
        self.apply(Reorder(loops))

    def split_iterator(self, block: str, iterator: str, factor: int) -> tuple[str, str]:
        """Returns the names of the two loops."""
        step = SplitIterator(block, iterator, factor)
        self.apply(step)
        outer, inner = step.parts
        return f"{block}.{outer}", f"{block}.{inner}"

    def parallel(self, *loops: str) -> None:
        """Several perfectly nested loops run as a single parallel one."""
        for loop in loops:
            self.apply(Parallel(loop))

    def vectorize(self, loop: str) -> None:
        self.apply(Vectorize(loop))

    def unroll(self, *loops: str) -> None:
        for loop in loops:
            self.apply(Unroll(loop))

    def bind(self, loop: str, axis: str) -> None:
        self.apply(Bind(loop, axis))

    def annotate(self, loop: str, key: str, value: str | int | Sequence[str | int]) -> None:
        plain = value if isinstance(value, str | int) else tuple(value)
        self.apply(Annotate(loop, key, plain))

    def pipeline(self, loop: str, stages: int = 2) -> None:
        self.apply(Pipeline(loop, stages))

    def prefetch(self, loop: str, buffer: str, distance: int) -> None:
        """Prefetches what the loop reads of the buffer `distance` iterations later."""
        self.annotate(loop, "prefetch", (buffer, distance))

    # blocks
    def compute_at(self, block: str, loop: str) -> None:
        self.apply(ComputeAt(block, loop))

    def reverse_compute_at(self, block: str, loop: str) -> None:
        self.apply(ReverseComputeAt(block, loop))

    def inline(self, block: str) -> None:
        self.apply(Inline(block))

    def reverse_inline(self, block: str) -> None:
        self.apply(ReverseInline(block))

    def cache_read(self, block: str, buffer: str, scope: str = "local") -> str:
        step = CacheRead(block, buffer, scope)
        self.apply(step)
        return step.copy

    def cache_write(self, block: str, scope: str = "local") -> str:
        """Returns the name of the block that computes; `block` now copies."""
        step = CacheWrite(block, scope)
        self.apply(step)
        return step.copy

    def rfactor(self, loop: str) -> str:
        """Returns the name of the block of partial results."""
        before = set(self.blocks)
        self.apply(Rfactor(loop))
        return next(n for n in self.blocks if n not in before)

    def decompose_reduction(self, block: str, loop: str) -> str:
        self.apply(DecomposeReduction(block, loop))
        return f"{block}.init"

    def winograd(self, block: str, *taps: str, results: int = 2) -> tuple[str, str]:
        """Returns the names of the blocks that read the image and that sum products."""
        self.apply(Winograd(block, taps, results))
        return f"{block}.tiles", f"{block}.products"

    def skip_zeros(self, block: str, *taps: str) -> None:
        self.apply(SkipZeros(block, taps))

    def write_out(self, block: str) -> None:
        self.apply(WriteOut(block))

    def pad(self, block: str, multiples: dict[str, int]) -> str:
        """Returns the name of the block that computes; `block` now crops."""
        self.apply(Pad(block, tuple(multiples.items())))
        return f"{block}.pad" if f"{block}.pad" in self.blocks else block

    # buffers
    def set_scope(self, buffer: str, scope: str) -> None:
        self.apply(SetScope(buffer, scope))

    def storage_align(self, buffer: str, dim: int, multiple: int, offset: int = 0) -> None:
        self.apply(StorageAlign(buffer, dim, multiple, offset))

    def transform_layout(self, buffer: str, layout: Callable[..., Any] | Sequence[str]) -> None:
        """`layout` maps indices to a position: `lambda k, j: (j // 16, k, j % 16)`."""
        if callable(layout):
            rank = len(inspect.signature(layout).parameters)
            buf = self.func.all_buffers.get(buffer)
            if buf is not None and rank != len(buf.shape):
                raise ScheduleError(
                    f"the layout of {buffer} takes {rank} indices; the buffer has {len(buf.shape)}"
                )
            dims = layout(*(var(f"d{d}") for d in range(rank)))
            layout = [str(p) for p in (dims if isinstance(dims, tuple | list) else (dims,))]
        self.apply(TransformLayout(buffer, tuple(layout)))

    # units
    def blockize(self, loop: str) -> None:
        self.apply(Blockize(loop))

    def tensorize(self, loop: str, intrinsic: Intrinsic) -> None:
        self.apply(Tensorize(loop, intrinsic))

    def __str__(self) -> str:
        return str(self.func)


def _size(factor: Any) -> Size | None:
    if isinstance(factor, Int):
        return str(factor) if factor.const is None else factor.const
    if hasattr(factor, "__index__") and not isinstance(factor, bool):
        return int(factor.__index__())  # an integer of NumPy, too
    return factor  # type: ignore[no-any-return]
