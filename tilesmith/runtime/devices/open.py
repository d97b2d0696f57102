"""`cuda` and `opencl`: the GPUs of this machine as targets; `open_device`: the device of a target,
opened once in a process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilesmith.base.errors import BuildError, DeviceError, TargetError
from tilesmith.base.target import Target
from tilesmith.runtime.devices.cuda import CudaDevice
from tilesmith.runtime.devices.cuda_driver import cuda_driver
from tilesmith.runtime.devices.protocol import Device


def cuda(device: int = 0) -> Target:
    """An NVIDIA GPU of this machine, by its number. Raises a TargetError if it is not there."""
    return device_of("cuda", device).target


def opencl(device: int = 0) -> Target:
    """An OpenCL device of this machine, by its number; GPUs come first. Raises a TargetError if it
    is not there.
    """
    return device_of("opencl", device).target


@cache
def device_of(kind: str, index: int) -> Device:
    """Opened once: a second context would hold memory of its own."""
    match kind:
        case "cuda":
            try:
                opened: Any = CudaDevice(cuda_driver(), index)
            except DeviceError as error:
                raise TargetError(f"GPU {index} cannot be used: {error}") from None
        case "opencl":
            try:
                # Imported here because pyopencl is an optional install.
                from tilesmith.runtime.devices.opencl import open_opencl
            except ImportError as error:
                raise TargetError(
                    f"OpenCL devices need the package pyopencl ({error}); "
                    "pip install 'tilesmith[opencl]'"
                ) from None
            opened = open_opencl(index)
        case _:
            raise TargetError(f"{kind!r} is no kind of GPU; known are cuda and opencl")
    device: Device = opened
    return device


def open_device(target: Target) -> Device:
    """Raises a BuildError that says why this machine cannot run code for the target."""
    try:
        device = device_of(target.kind, target.device)
    except TargetError as error:
        raise BuildError(f"it was built for {_named(target)}: {error}") from None
    here = device.target
    if target.kind == "cuda" and not _runs(target.arch, here.arch):
        raise BuildError(f"it was built for {target.arch}; the GPU here is {_named(here)}")
    return device


def _named(target: Target) -> str:
    return f"{target.model or target.cpu} ({target.arch})"


def _runs(code: str, here: str) -> bool:
    """Whether code for an architecture runs on another: on the same major number and a minor one
    that is not smaller. With an "a" it runs on exactly this one.
    """
    if code == here or code[-1:] == "a":
        return code == here
    one, other = code.removeprefix("sm_"), here.removeprefix("sm_").rstrip("a")
    if not (one.isdigit() and other.isdigit()):
        return False
    return int(one) // 10 == int(other) // 10 and int(one) % 10 <= int(other) % 10
