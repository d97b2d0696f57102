"""`Trace`: the steps of a schedule, as a value.

It prints like the code one would write, converts to and from JSON, and replays on a Function.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilesmith.base.errors import TraceError
from tilesmith.base.html import html_text
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
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
    NumericSample,
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

VERSION = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a schedule as a value: it prints like the code one would write, converts to and
    from JSON, and replays on a Function.

    Example:

        sch = ts.Schedule(func)
        sch.vectorize(sch.loops("C")[1])
        text = sch.trace.to_json()
        assert ts.Trace.from_json(text).apply(func) == sch.func
    """

    steps: tuple[Step, ...] = ()

    def apply(self, func: Function) -> Function:
        """The Function after all steps."""
        for step in self.resolved:
            func = step.apply(func)
        return func

    def decide(self, sizes: Mapping[str, int]) -> Trace:
        """Decides size variables, by name. Steps after a sample keep using its size variables by
        name, so that the decision can be changed later.
        """
        own = {c for s in self.steps if isinstance(s, NumericSample) for c in s.columns}
        others = {n: v for n, v in sizes.items() if n not in own}
        steps = []
        for s in self.steps:
            decided = sizes if isinstance(s, NumericSample) else others
            steps.append(s.decide(decided) if decided else s)
        return Trace(tuple(steps))

    @property
    def decisions(self) -> dict[str, int]:
        """The chosen numbers by size variable."""
        out: dict[str, int] = {}
        for s in self.steps:
            if isinstance(s, NumericSample):
                out |= zip(s.columns, s.decided, strict=False)
        return out

    @property
    def resolved(self) -> Trace:
        """The same steps with the chosen numbers in place of size variables."""
        decided = self.decisions
        return Trace(tuple(s.decide(decided) for s in self.steps)) if decided else self

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        return json.dumps({"version": VERSION, "steps": [s.to_json() for s in self.steps]})

    @staticmethod
    def from_json(
        text: str,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> Trace:
        """`primitives` and `intrinsics` are the types that names in the text may refer to. To read
        your own, pass them in addition to the built-in ones.
        """
        try:
            data = json.loads(text)
            version, items = data["version"], data["steps"]
            pairs = [(str(name), dict(values)) for name, values in items]
        except (ValueError, KeyError, TypeError) as e:
            raise TraceError(f"this is not a trace: {e}") from None
        if version != VERSION:
            raise TraceError(
                f"this trace is of version {version}; this library reads version {VERSION}"
            )
        by_name = {p.name: p for p in primitives}
        units = {i.name: i for i in intrinsics}
        steps = []
        for name, values in pairs:
            if name not in by_name:
                raise TraceError(
                    f"unknown primitive {name!r}; known are {', '.join(sorted(by_name))}: "
                    "pass your own in primitives="
                )
            if "intrinsic" in values:
                unit = units.get(values["intrinsic"])
                if unit is None:
                    raise TraceError(
                        f"unknown intrinsic {values['intrinsic']!r}; known are "
                        f"{', '.join(sorted(units))}: pass your own in intrinsics="
                    )
                values["intrinsic"] = unit
            steps.append(by_name[name].from_json(values))
        return Trace(tuple(steps))

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.resolved.steps))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html_text(str(self) or "no steps")
