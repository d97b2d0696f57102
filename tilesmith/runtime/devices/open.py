"""`cuda` and `opencl`: the GPUs of this machine as targets; `open_device`: the device of a target,
opened once in a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from tilesmith.base.errors import BuildError, DeviceError, TargetError
from tilesmith.base.given import checks_given
from tilesmith.base.machines.cuda import runs_on
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, Entry
from tilesmith.runtime.devices.cuda import CudaDevice, cuda_target
from tilesmith.runtime.devices.cuda_driver import cuda_driver

# Device: a GPU with memory on it, on which the launches of artifacts run.
#
# Everything is enqueued on one stream of the device, in order, unless a call names another
# stream. `read` and `synchronize` wait.
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

    def sized(self, entry: Entry) -> Module:
        """The same code with another entry: one whose sizes were open, and are known."""


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


@checks_given
def cuda(device: int = 0) -> Target:
    """An NVIDIA GPU of this machine as a target, by its number. Raises a TargetError if it is not
    there. It needs `tilesmith[cuda]` and NVIDIA's driver.

    Example:

        target = ts.cuda()                     # the first GPU
        result = ts.tune(func, target, budget=ts.Budget(seconds=30))
    """
    return target_of("cuda", device)


@checks_given
def opencl(device: int = 0) -> Target:
    """An OpenCL device of this machine as a target, by its number; GPUs come first. Raises a
    TargetError if it is not there. It needs `tilesmith[opencl]` and a driver; PoCL is one for
    processors.

    Example:

        kernel = ts.build(func, ts.opencl())
        print(kernel.source)                   # OpenCL C
    """
    return target_of("opencl", device)


@cache
def target_of(kind: str, index: int) -> Target:
    """Detects it without opening it: a context takes hundreds of megabytes on the device."""
    match kind:
        case "cuda":
            try:
                return cuda_target(cuda_driver(), index)
            except DeviceError as error:
                raise TargetError(f"GPU {index} cannot be used: {error}") from None
        case "opencl":
            found = _opencl()
            target: Target = found.opencl_target(found.opencl_device(index), index)
            return target
        case _:
            raise TargetError(f"{kind!r} is no kind of GPU; known are cuda and opencl")


def _opencl() -> Any:
    try:
        # Imported here because pyopencl is an optional install.
        import tilesmith.runtime.devices.opencl as module
    except ImportError as error:
        raise TargetError(
            f"OpenCL devices need the package pyopencl ({error}); pip install 'tilesmith[opencl]'"
        ) from None
    return module


@cache
def _device_of(kind: str, index: int) -> Device:
    """Opened once: a second context would hold memory of its own."""
    opened: Any
    if kind == "cuda":
        opened = CudaDevice(cuda_driver(), index)
    else:
        module = _opencl()
        opened = module.OpenclDevice(module.opencl_device(index), index)
    device: Device = opened
    return device


def open_device(target: Target) -> Device:
    """Raises a BuildError that says why this machine cannot run code for the target."""
    try:
        here = target_of(target.kind, target.device)
        if target.kind == "cuda" and not runs_on(target.arch, here.arch):
            raise BuildError(f"it was built for {target.arch}; the GPU here is {_named(here)}")
        return _device_of(target.kind, target.device)
    except (DeviceError, TargetError) as error:
        raise BuildError(f"it was built for {_named(target)}: {error}") from None


def _named(target: Target) -> str:
    return f"{target.model or target.cpu} ({target.arch})"
