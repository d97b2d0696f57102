"""The list of the built-in primitives."""

from __future__ import annotations

from tilesmith.schedule.automatic import (
    AutoParallel,
    AutoPrefetch,
    AutoUnroll,
    AutoVectorize,
    PrefetchStreams,
)
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.inline import Inline, ReverseInline
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Annotate, Bind, Parallel, Pipeline, Unroll, Vectorize
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Fuse, Reorder, Split
from tilesmith.schedule.merge import MergeIterators
from tilesmith.schedule.reduction import DecomposeReduction, Rfactor
from tilesmith.schedule.require import Require
from tilesmith.schedule.sample import (
    SampleChoice,
    SampleLocation,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.shift import ShiftOperand
from tilesmith.schedule.step import Step
from tilesmith.schedule.unfold import MergeTiles, Unfold
from tilesmith.schedule.unit import Blockize, Tensorize
from tilesmith.schedule.winograd import Winograd
from tilesmith.schedule.write_out import WriteOut
from tilesmith.schedule.zeros import SkipZeros

PRIMITIVES: tuple[type[Step], ...] = (
    Split, Fuse, Reorder, SplitIterator, MergeIterators, Parallel, Vectorize, Unroll, Bind,
    Annotate, Pipeline, ComputeAt, ReverseComputeAt, Inline, ReverseInline, CacheRead, CacheWrite,
    SetScope, StorageAlign, Rfactor, DecomposeReduction, Winograd, SkipZeros, WriteOut,
    TransformLayout, Pad, ShiftOperand, Unfold, MergeTiles, Blockize, Tensorize, SampleTile,
    SampleChoice, SampleLocation, SamplePermutation, AutoParallel, AutoPrefetch, AutoVectorize,
    AutoUnroll, PrefetchStreams, Require,
)  # fmt: skip
