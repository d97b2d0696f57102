"""The state shared by the parts of the emitter while they write one LLVM function: the frames,
loops and buffers around the current statement, the lanes it is emitted for, and its mask.

The parts keep everything else to themselves.
"""

from __future__ import annotations

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import PARALLEL_FOR, Check
from tilesmith.codegen.llvm.builder import Builder, V
from tilesmith.codegen.llvm.copies import Recording
from tilesmith.codegen.llvm.frames import Frame, Memory
from tilesmith.expr.ints import ZERO, Int, IntLike, of


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
        self.end_masks: set[str] = set()  # names of masks that lane_tests.py made
        self.recording: Recording | None = None  # the store that is emitted for the first time


# The LLVM module of one kernel: collects functions and declarations, and gives its text.
class Module:
    """What the functions of one kernel share."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions: list[str] = []
        self.declarations: dict[str, str] = {}
        self.workspace = ZERO  # bytes; an expression of the open sizes, if any
        self.uses_threads = False
        self.serial = 0
        self.metadata = 0
        self.checks: tuple[Check, ...] = ()

    def reserve(self, nbytes: IntLike) -> Int:
        """Reserves bytes in the workspace; returns their offset."""
        at = self.workspace
        self.workspace = at + (of(nbytes) + 63) // 64 * 64
        return at

    def text(self) -> str:
        lines = [*self.declarations.values(), ""]
        if self.uses_threads:
            lines.insert(0, f"declare void @{PARALLEL_FOR}(ptr, ptr, i64, i64)")
        ends = ["", '!0 = !{!"llvm.loop.unroll.disable"}']
        # each loop has a node of its own that keeps LLVM from unrolling it again
        ends += [f"!{k} = distinct !{{!{k}, !0}}" for k in range(1, self.metadata + 1)]
        return "\n".join([*lines, *self.functions, *ends]) + "\n"
