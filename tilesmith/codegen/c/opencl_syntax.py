"""Compiles OpenCL C with the driver of a device, to find errors before a kernel is loaded."""

from __future__ import annotations

from typing import Any

from tilesmith.base.errors import BuildError

_LOG_LINES = 8  # lines of the compiler's log that an error shows


def require_valid(name: str, source: str, device: int) -> None:
    """Raises a BuildError with the compiler's messages. Does nothing where no driver is there."""
    try:
        import pyopencl as cl
    except ImportError:
        return
    found = _devices(cl)
    if device >= len(found):
        return
    program = cl.Program(cl.Context([found[device]]), source)
    try:
        program.build(options=["-cl-std=CL1.2"], cache_dir=False)
    except cl.Error as e:
        lines = [line for line in str(e).splitlines() if "error" in line] or [str(e)]
        text = "\n  ".join(lines[:_LOG_LINES])
        raise BuildError(f"OpenCL does not compile {name!r}:\n  {text}") from None


def _devices(cl: Any) -> list[Any]:
    """As the run time counts them: GPUs first."""
    try:
        found = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error:
        return []
    return sorted(found, key=lambda d: not d.type & cl.device_type.GPU)
