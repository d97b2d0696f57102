"""The state shared by the parts of the emitter while they write one LLVM function: the frames,
loops and buffers around the current statement, the lanes it is emitted for, and its mask.

The parts keep everything else to themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.base.target import Target
from tilesmith.codegen.llvm.builder import Builder, V
from tilesmith.codegen.llvm.copies import Recording
from tilesmith.codegen.llvm.frames import Frame, Memory
from tilesmith.expr.ints import Int


@dataclass(frozen=True, slots=True)
class Lane:
    """The value of a vectorized loop: consecutive numbers from `start` on."""

    start: int
    lanes: int


class Position:
    # `builder`, `frames`, `env`, `depth`, `ranges` and `entry_lines` are never replaced, so other
    # objects may keep references to them.
    def __init__(self, target: Target, builder: Builder) -> None:
        self.target, self.builder = target, builder
        self.frames = [Frame("function")]  # outermost first
        builder.lines = self.frames[0].lines
        self.entry_lines: list[str] = []  # instructions at the start of the function
        self.workspace = "%workspace"
        self.thread: str | None = None  # number of this thread, inside of a parallel loop
        self.label = "entry"  # label of the current basic block
        self.memories: dict[str, Memory] = {}
        self.env: dict[str, int | V | Lane] = {}  # current values of loop variables
        self.depth: dict[str, int] = {}  # position of the frame that defines a run-time loop
        self.ranges: dict[str, Int] = {}  # extents of the loops
        self.lanes = 1
        self.mask: V | None = None  # the active lanes, or one scalar for all of them
        self.recording: Recording | None = None  # the store that is emitted for the first time
