"""Device: a GPU with memory on it, on which the launches of artifacts run.

Everything is enqueued on one stream of the device, in order, unless a call names another stream.
`read` and `synchronize` wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact

Array = np.ndarray[Any, Any]
Pointer = Any  # an argument of a launch: an address (CUDA), or a memory object (OpenCL)

MAX_RECORDED = 40  # calls in one recorded sequence, as many as timing needs


class Memory(Protocol):
    """Memory on the device. It starts on a boundary of 256 bytes, and is freed with the object."""

    @property
    def nbytes(self) -> int: ...

    def at(self, offset: int, nbytes: int) -> Pointer:
        """A part of it, as an argument of a launch. OpenCL takes multiples of 256 only."""


class Module(Protocol):
    """The loaded code of an artifact."""


class Call(Protocol):
    """The launches of one call, with their arguments."""


class Recorded(Protocol):
    """A sequence of calls that is enqueued at once: a CUDA graph."""

    def run(self, stream: int | None = None) -> None:
        """Enqueues it."""

    def seconds(self) -> float:
        """Runs it and waits; the time on the device."""


class Device(Protocol):
    @property
    def target(self) -> Target: ...

    @property
    def alignment(self) -> int:
        """Offsets of arguments in Memory are multiples of so many bytes."""

    def allocate(self, nbytes: int) -> Memory:
        """Raises a DeviceError if there is not enough."""

    def write(self, to: Memory, array: Array, offset: int = 0) -> None:
        """Copies a contiguous array there. The array may change afterwards."""

    def read(self, memory: Memory, array: Array, offset: int = 0) -> None:
        """Copies to a contiguous array, after all that was enqueued; waits for it."""

    def copy(
        self, to: Memory, memory: Memory, nbytes: int, to_offset: int = 0, offset: int = 0
    ) -> None: ...

    def fill(self, memory: Memory, byte: int, offset: int = 0, nbytes: int | None = None) -> None:
        """Sets all of it, or `nbytes` from an offset on."""

    def load(self, artifact: Artifact) -> Module:
        """Raises a DeviceError if the device cannot run it."""

    def call(
        self, module: Module, entry: int, pointers: Sequence[Pointer], scratch: Memory | None
    ) -> Call:
        """A call of the artifact's entry of this number. `pointers` are the parameters, in calling
        order; `scratch` is the workspace.
        """

    def copy_call(
        self, to: Memory, memory: Memory, nbytes: int, to_offset: int = 0, offset: int = 0
    ) -> Call:
        """A copy on the device, as part of a sequence of calls."""

    def run(self, calls: Sequence[Call], stream: int | None = None) -> None:
        """Enqueues calls."""

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        """Runs calls one after the other and waits for each; the time of each on the device."""

    def record(self, calls: Sequence[Call]) -> Recorded: ...

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for all that was enqueued. Raises a DeviceError if a kernel has failed."""
