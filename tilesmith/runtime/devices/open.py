"""`cuda` and `opencl`: the GPUs of this machine as targets; `open_device`: the device of a target,
opened once in a process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilesmith.base.errors import BuildError, DeviceError, TargetError
from tilesmith.base.machines.cuda import runs_on
from tilesmith.base.target import Target
from tilesmith.runtime.devices.cuda import CudaDevice, cuda_target
from tilesmith.runtime.devices.cuda_driver import cuda_driver
from tilesmith.runtime.devices.protocol import Device


def cuda(device: int = 0) -> Target:
    """An NVIDIA GPU of this machine as a target, by its number. Raises a TargetError if it is not
    there. It needs `tilesmith[cuda]` and NVIDIA's driver.

    Example:

        target = ts.cuda()                     # the first GPU
        result = ts.tune(func, target, budget=ts.Budget(seconds=30))
    """
    return target_of("cuda", device)


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
