"""What the processes of a measurer say to each other: plain records, made on one side and read on
the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.base.digest import digest
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer

REFERENCE = -1  # the slot of the reference kernel


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker may use."""

    cores: tuple[int, ...]
    nbytes: int  # beyond what it has when it starts


# To the nursery.
@dataclass(frozen=True, slots=True)
class Prepare:
    """Make inputs and the expected outputs of a task; the worker that does it answers with None,
    or with the text of what went wrong.
    """

    func: Function
    target: Target
    limits: Limits


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker; the descriptor of its socket comes along. The answer is its process id."""

    kind: str  # "build" | "run"
    limits: Limits
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Reap:
    """End a worker if it has not ended by itself; the answer is an Exit."""

    pid: int
    kill: bool


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended."""

    status: int  # as waitpid gives it
    killed: bool  # by us
    fault: tuple[int, int, int] = (0, 0, 0)  # signal, code, address
    slot: int = 0  # what it was running
    regions: tuple[tuple[str, int, int, int, int], ...] = ()  # name, guard, begin, end, guard's end
    words: str = ""  # the last it wrote to its error stream


# To a build worker.
@dataclass(frozen=True, slots=True)
class Build:
    """`trace` is a pickled Trace, to be applied to the function; None if that has been done."""

    func: Function
    target: Target
    trace: bytes | None
    builder: bytes  # a pickled callable


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel, and where each parameter's elements lie if not row by row."""

    artifact: Artifact
    params: tuple[Buffer, ...]
    seconds: float

    @property
    def key(self) -> str:
        """Equal for kernels that do the same in the same way."""
        a = self.artifact
        layouts = repr([(b.name, b.layout, b.basis) for b in self.params])
        return digest(a.code.hex(), layouts, str(a.workspace_nbytes), str(a.parameters))


# To a run worker.
@dataclass(frozen=True, slots=True)
class Load:
    """Link a kernel under a number; the answer is None or a Failure."""

    slot: int
    built: Built


@dataclass(frozen=True, slots=True)
class Check:
    """Call it once on guarded memory and compare; the answer is seconds or a Failure."""

    slot: int


@dataclass(frozen=True, slots=True)
class Time:
    """Take one sample each, in this order: (slot, calls). The answer is a Sample each."""

    order: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Drop:
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float  # of one call
    share: float  # of that time the processor was ours
    drift: float = 1.0  # of the reference kernel just before, against its usual time
    reference: float = 0.0  # seconds of that kernel; 0 if it did not run

    @property
    def settled(self) -> float:
        """What it would have taken on the machine as it usually is; for decisions, not records."""
        return self.seconds / self.drift
