"""OpenclDevice: a device of any OpenCL platform, through pyopencl."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import lcm
from typing import Any

import numpy as np
import pyopencl as cl

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import DeviceError, TargetError
from tilesmith.base.machines.opencl import EXTENSIONS
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, Entry, Launch
from tilesmith.codegen.c.backends import opencl_devices

Array = np.ndarray[Any, Any]

_MAX_THREADS = 1024  # of a block; more never pays, and CPUs allow thousands
_FAULTS = ("OUT_OF_RESOURCES", "DEVICE_NOT_AVAILABLE", "INVALID_COMMAND_QUEUE")


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of OpenCL inside are DeviceErrors."""
    try:
        yield
    except cl.Error as error:
        raise _failed(error) from None


def _failed(error: Any) -> DeviceError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = next((x for x in lines if "error:" in x), lines[0] if lines else type(error).__name__)
    name = cl.status_code.to_string(error.code) if isinstance(error, cl.Error) else ""
    memory = name in ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY")
    return DeviceError(
        f"OpenCL: {first}", "memory" if memory else "fault" if name in _FAULTS else "refused"
    )


class OpenclMemory:
    def __init__(self, device: OpenclDevice, nbytes: int) -> None:
        self.nbytes = nbytes
        with _errors():
            self.buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, max(nbytes, 1))

    def at(self, offset: int, nbytes: int) -> Any:
        if offset == 0:
            return self.buffer
        return self.buffer.get_sub_region(offset, max(1, min(nbytes, self.nbytes - offset)))


class OpenclModule:
    def __init__(self, device: OpenclDevice, artifact: Artifact) -> None:
        self.artifact = artifact
        for e in artifact.entries:
            for launch in e.launches:
                if launch.threads > device.most_threads:
                    raise DeviceError(
                        f"OpenCL: {launch.symbol} has {launch.threads} threads in a block, and "
                        f"{device.target.model} allows {device.most_threads}"
                    )
        with _errors():
            program = cl.Program(device.context, artifact.code.decode())
            self.program = program.build(device.build_options)

    def sized(self, entry: Entry) -> OpenclModule:
        """The same code with an entry whose sizes are known."""
        out = OpenclModule.__new__(OpenclModule)
        out.artifact, out.program = replace(self.artifact, entries=(entry,)), self.program
        return out


_MOST_INT = (1 << 31) - 1


def _scalars(launch: Launch) -> list[Any]:
    """Open sizes, as the kernel takes them."""
    pairs = zip(launch.sizes, launch.values, strict=True)
    return [np.int32(v) if most <= _MOST_INT else np.int64(v) for (_, most), v in pairs]


class OpenclCall:
    """Kernels whose arguments are set."""

    __slots__ = ("_held", "launches")

    def __init__(
        self, module: OpenclModule, entry: int, pointers: Sequence[Any],
        scratch: OpenclMemory | None,
    ) -> None:  # fmt: skip
        e = module.artifact.entries[entry]
        memory = dict(zip((p.name for p in e.parameters), pointers, strict=True))
        if scratch is not None:
            starts = [*(at for _, at in e.scratch), e.workspace_nbytes]
            for (name, at), end in zip(e.scratch, starts[1:], strict=True):
                memory[name] = scratch.at(at, max(end - at, 1))
        self.launches: list[tuple[Any, int, int]] = []
        self._held = (module, scratch, memory)
        with _errors():
            for launch in e.launches:
                if not launch.grid:  # nothing to compute at these sizes
                    continue
                kernel = cl.Kernel(module.program, launch.symbol)
                local = (cl.LocalMemory(launch.shared_nbytes),) if launch.shared_nbytes else ()
                buffers = (memory[name] for name in launch.arguments)
                kernel.set_args(*buffers, *_scalars(launch), *local)
                self.launches.append((kernel, launch.grid, launch.threads))

    def enqueue(self, queue: Any) -> list[Any]:
        with _errors():
            return [
                cl.enqueue_nd_range_kernel(queue, kernel, (grid * threads,), (threads,))
                for kernel, grid, threads in self.launches
            ]


@dataclass(frozen=True, slots=True)
class OpenclCopy:
    to: OpenclMemory
    to_offset: int
    memory: OpenclMemory
    offset: int
    nbytes: int

    def enqueue(self, queue: Any) -> list[Any]:
        with _errors():
            copied = cl.enqueue_copy(
                queue, self.to.buffer, self.memory.buffer, byte_count=self.nbytes,
                src_offset=self.offset, dst_offset=self.to_offset,
            )  # fmt: skip
        return [copied]


Call = OpenclCall | OpenclCopy


class OpenclSequence:
    def __init__(self, device: OpenclDevice, calls: Sequence[Call]) -> None:
        self._device, self._calls = device, tuple(calls)

    def run(self, stream: int | None = None) -> None:
        self._device.run(self._calls)

    def seconds(self) -> float:
        """From the begin of the first launch to the end of the last one."""
        return self._device.span(self._calls)


class OpenclDevice:
    def __init__(self, device: Any, index: int) -> None:
        self.target = opencl_target(device, index)
        self.most_threads: int = device.max_work_group_size
        # The text is OpenCL C 1.2. Without the second option, divisions and roots may be wrong by
        # several units in the last place.
        rounds = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self.build_options = ["-cl-std=CL1.2"]
        self.build_options += ["-cl-fp32-correctly-rounded-divide-sqrt"] if rounds else []
        # In bits there. Offsets of this program are multiples of 256.
        self.alignment = lcm(16, device.mem_base_addr_align // 8)
        with _errors():
            self.context = cl.Context([device])
            how = cl.command_queue_properties.PROFILING_ENABLE
            self.queue = cl.CommandQueue(self.context, device, how)

    def allocate(self, nbytes: int) -> OpenclMemory:
        return OpenclMemory(self, nbytes)

    def write(self, to: OpenclMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            raw = array.reshape(-1).view(np.uint8)
            self._enqueue(cl.enqueue_copy, to.buffer, raw, dst_offset=offset, is_blocking=True)

    def read(self, memory: OpenclMemory, array: Array, offset: int = 0) -> None:
        if array.nbytes:
            raw = array.reshape(-1).view(np.uint8)
            self._enqueue(cl.enqueue_copy, raw, memory.buffer, src_offset=offset, is_blocking=True)

    def copy(
        self, to: OpenclMemory, memory: OpenclMemory, nbytes: int, to_offset: int = 0,
        offset: int = 0,
    ) -> None:  # fmt: skip
        if nbytes:
            OpenclCopy(to, to_offset, memory, offset, nbytes).enqueue(self.queue)

    def fill(
        self, memory: OpenclMemory, byte: int, offset: int = 0, nbytes: int | None = None
    ) -> None:
        size = memory.nbytes - offset if nbytes is None else nbytes
        if size:
            self._enqueue(cl.enqueue_fill_buffer, memory.buffer, np.uint8(byte), offset, size)

    def _enqueue(self, function: Any, *arguments: Any, **settings: Any) -> None:
        with _errors():
            function(self.queue, *arguments, **settings)

    def load(self, artifact: Artifact) -> OpenclModule:
        return OpenclModule(self, artifact)

    def call(
        self, module: OpenclModule, entry: int, pointers: Sequence[Any],
        scratch: OpenclMemory | None,
    ) -> OpenclCall:  # fmt: skip
        return OpenclCall(module, entry, pointers, scratch)

    def copy_call(
        self, to: OpenclMemory, memory: OpenclMemory, nbytes: int, to_offset: int = 0,
        offset: int = 0,
    ) -> OpenclCopy:  # fmt: skip
        return OpenclCopy(to, to_offset, memory, offset, nbytes)

    def run(self, calls: Sequence[Call], stream: int | None = None) -> None:
        for c in calls:
            c.enqueue(self.queue)

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        return [self.span((c,)) for c in calls]

    def span(self, calls: Sequence[Call]) -> float:
        events = [e for c in calls for e in c.enqueue(self.queue)]
        self.synchronize()
        if not events:
            return 0.0
        with _errors():
            begin = min(e.profile.start for e in events)
            return float(max(e.profile.end for e in events) - begin) * 1e-9

    def record(self, calls: Sequence[Call]) -> OpenclSequence:
        return OpenclSequence(self, calls)

    def synchronize(self, stream: int | None = None) -> None:
        with _errors():
            self.queue.finish()


def opencl_target(device: Any, index: int) -> Target:
    count: int = device.max_compute_units
    features = {EXTENSIONS[x] for x in device.extensions.split() if x in EXTENSIONS}
    words = device.version.split()  # "OpenCL 3.0 ..."
    return Target(
        "opencl",
        "-".join(words[:2]).lower(),
        device.name.strip(),
        num_cores=count,
        features=frozenset(features),
        num_multiprocessors=count,
        shared_nbytes=device.local_mem_size,
        max_threads=min(device.max_work_group_size, _MAX_THREADS),
        warp_size=_warp_size(device),
        registers_per_block=65536,  # OpenCL does not tell
        l2_nbytes=device.global_mem_cache_size or 1 << 20,
        model=f"{device.platform.name.strip()}: {device.name.strip()}",
        device=index,
    )


def _warp_size(device: Any) -> int:
    for name in ("warp_size_nv", "wavefront_width_amd"):
        try:
            return int(getattr(device, name))
        except (cl.Error, AttributeError):
            continue
    return 32


def opencl_device(index: int) -> Any:
    found = opencl_devices(cl)
    if not found:
        raise TargetError(
            "there is no OpenCL device here; install the driver of one, or PoCL, which runs OpenCL "
            "on the processor (Debian: pocl-opencl-icd)"
        )
    if not 0 <= index < len(found):
        names = ", ".join(f"device {k} is {d.name.strip()}" for k, d in enumerate(found))
        there = "there is 1" if len(found) == 1 else f"there are {len(found)}"
        raise TargetError(f"there is no OpenCL device {index} here; {there}: {names}")
    return found[index]
