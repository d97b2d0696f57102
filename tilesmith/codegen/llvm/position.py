"""Where the emitter stands while it writes one LLVM function: the frames, loops and buffers around
the statement at hand, the lanes it is written for and the mask it is under.

The parts of the emitter share one Position and keep everything else to themselves.
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
    """The value of a vectorized loop: consecutive numbers from `start`."""

    start: int
    lanes: int


class Position:
    # `builder`, `frames`, `env`, `depth`, `ranges` and `entry_lines` are never replaced, so that
    # other objects may hold on to them.
    def __init__(self, target: Target, builder: Builder) -> None:
        self.target, self.builder = target, builder
        self.frames = [Frame("function")]  # the outermost first
        builder.lines = self.frames[0].lines
        self.entry_lines: list[str] = []  # what the function does before all else
        self.workspace = "%workspace"
        self.thread: str | None = None  # the number of this thread, in a part of a parallel loop
        self.label = "entry"  # of the basic block that is being written
        self.memories: dict[str, Memory] = {}
        self.env: dict[str, int | V | Lane] = {}  # what the names of loops stand for
        self.depth: dict[str, int] = {}  # of the frame in which a run-time loop is known
        self.ranges: dict[str, Int] = {}  # the extents of the loops
        self.lanes = 1
        self.mask: V | None = None  # lanes, or the one scalar, that are wanted
        self.recording: Recording | None = None  # the store that is written for the first time
