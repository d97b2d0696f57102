"""CudaDevice: an NVIDIA GPU, through the driver.

It uses the device's primary context, so that memory of PyTorch and others can be used in place.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import DeviceError, TargetError
from tilesmith.base.machines.cuda import arch_of
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, Entry, Launch, TensorMap
from tilesmith.codegen.c.nvrtc import parted
from tilesmith.runtime.devices import cuda_driver
from tilesmith.runtime.devices.cuda_driver import STATIC_SHARED_NBYTES, CudaDriver, current

Array = np.ndarray[Any, Any]


class CudaMemory:
    """`address` is on the device."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        self.nbytes = nbytes
        with device.active():
            self.address = device.driver.allocate(max(nbytes, 1))
        _at_end(self, device, device.driver.free, self.address)

    def at(self, offset: int, nbytes: int) -> int:
        return self.address + offset


def _at_end(owner: object, device: CudaDevice, free: Callable[[int], None], handle: int) -> None:
    """Frees what has a handle when the owner is no more. When the process ends, the driver frees
    everything itself.
    """
    end = weakref.finalize(owner, _freed, device.driver, device.context, free, handle)
    end.atexit = False  # type: ignore[misc]


def _freed(driver: CudaDriver, context: int, free: Callable[[int], None], handle: int) -> None:
    # After a fault nothing can be freed, and nothing needs to be.
    with suppress(DeviceError), current(driver, context):
        free(handle)


@dataclass(frozen=True, slots=True)
class _Function:
    handle: int
    grid: int
    threads: int
    shared_nbytes: int
    arguments: tuple[str, ...]
    maps: tuple[TensorMap, ...]
    overlaps: bool
    values: tuple[int, ...] = ()  # open sizes


def _scalars(launch: Launch) -> tuple[int, ...]:
    """Open sizes as they lie in the memory of arguments: the low half of a word is an int."""
    return tuple(v & (1 << 64) - 1 for v in launch.values)


class CudaModule:
    """`entries` are the functions of each entry's launches, in stream order."""

    def __init__(self, device: CudaDevice, artifact: Artifact) -> None:
        driver = device.driver
        self.artifact = artifact
        self._whole: CudaModule | None = None  # the one that keeps the code loaded, if another
        with device.active():
            handles = []
            for cubin in parted(artifact.code):
                handles.append(driver.load(cubin))
                _at_end(self, device, driver.unload, handles[-1])
            modules = cycle(handles)  # each launch has one of its own, or all share one
            self.entries = [
                tuple(self._function(driver, next(modules), x, artifact) for x in e.launches)
                for e in artifact.entries
            ]

    def sized(self, entry: Entry) -> CudaModule:
        """The same code with an entry whose sizes are known. The code stays loaded with it."""
        out = CudaModule.__new__(CudaModule)
        out.artifact, out._whole = replace(self.artifact, entries=(entry,)), self
        functions = zip(self.entries[0], entry.launches, strict=True)
        out.entries = [
            tuple(replace(f, grid=x.grid, values=_scalars(x), maps=x.maps) for f, x in functions)
        ]
        return out

    @staticmethod
    def _function(driver: CudaDriver, module: int, launch: Any, artifact: Artifact) -> _Function:
        function = driver.function(module, launch.symbol)
        if launch.shared_nbytes > STATIC_SHARED_NBYTES:
            driver.allow_shared(function, launch.shared_nbytes)
        return _Function(
            function, launch.grid, launch.threads, launch.shared_nbytes, launch.arguments,
            launch.maps, launch.overlaps and artifact.target.gpu.overlaps,
        )  # fmt: skip


class CudaCall:
    """Launches with the addresses of their arguments in memory that the driver reads."""

    __slots__ = ("_held", "launches")

    def __init__(
        self, driver: CudaDriver, module: CudaModule, entry: int, pointers: Sequence[int],
        scratch: CudaMemory | None,
    ) -> None:  # fmt: skip
        e = module.artifact.entries[entry]
        address = dict(zip((p.name for p in e.parameters), pointers, strict=True))
        if scratch is not None:
            address |= {name: scratch.address + offset for name, offset in e.scratch}
        self.launches: list[tuple[int, int, int, int, int, bool]] = []
        self._held: list[Any] = [module, scratch]
        for f in module.entries[entry]:
            if not f.grid:  # nothing to compute at these sizes
                continue
            count = max(1, len(f.arguments) + len(f.values))
            places_of = (address[name] for name in f.arguments)
            values = (ctypes.c_uint64 * count)(*places_of, *f.values)
            first = ctypes.addressof(values)
            maps = [driver.tensor_map(m, address[m.buffer]) for m in f.maps]
            places = [*map(ctypes.addressof, maps), *(first + 8 * k for k in range(count))]
            array = (ctypes.c_void_p * len(places))(*places)
            self._held += (values, maps, array)
            where = ctypes.addressof(array)
            self.launches.append((f.handle, f.grid, f.threads, f.shared_nbytes, where, f.overlaps))

    def enqueue(self, driver: CudaDriver, stream: int) -> None:
        for function, grid, threads, shared, arguments, overlaps in self.launches:
            launch = driver.launch_early if overlaps else driver.launch
            launch(function, grid, threads, shared, stream, arguments)


@dataclass(frozen=True, slots=True)
class CudaCopy:
    to: CudaMemory
    to_offset: int
    memory: CudaMemory
    offset: int
    nbytes: int

    def enqueue(self, driver: CudaDriver, stream: int) -> None:
        to, address = self.to.address + self.to_offset, self.memory.address + self.offset
        if self.nbytes:
            driver.copy(to, address, self.nbytes, stream)


Call = CudaCall | CudaCopy


class CudaGraph:
    def __init__(self, device: CudaDevice, calls: Sequence[Call]) -> None:
        self._device = device
        driver = device.driver
        with device.active():
            driver.begin_capture(device.stream)
            try:
                for c in calls:
                    c.enqueue(driver, device.stream)
            finally:  # also after an error: the stream must not stay in capture
                self._graph = driver.end_capture(device.stream)
        _at_end(self, device, driver.free_graph, self._graph)
        # A graph holds copies of arguments, but neither code nor memory.
        self._held = tuple(calls)

    def run(self, stream: int | None = None) -> None:
        device = self._device
        with device.active():
            device.driver.launch_graph(self._graph, device.stream if stream is None else stream)

    def seconds(self) -> float:
        device = self._device
        driver, stream = device.driver, device.stream
        with device.active():
            begin, end = device.events
            driver.record(begin, stream)
            driver.launch_graph(self._graph, stream)
            driver.record(end, stream)
            driver.wait(end)
            return driver.elapsed(begin, end)


class CudaDevice:
    alignment = 16  # what vector loads of generated code need

    def __init__(self, driver: CudaDriver, index: int) -> None:
        self.driver = driver
        self.target = cuda_target(driver, index)
        self.context = driver.context(index)
        with self.active():
            self.stream = driver.create_stream()
            self.events = driver.create_event(), driver.create_event()

    def active(self) -> Any:
        return current(self.driver, self.context)

    def allocate(self, nbytes: int) -> CudaMemory:
        return CudaMemory(self, nbytes)

    def write(self, to: CudaMemory, array: Array, offset: int = 0) -> None:
        if not array.nbytes:
            return
        with self.active():
            self.driver.write(to.address + offset, array.ctypes.data, array.nbytes, self.stream)
            # The driver may read pinned memory later; then the array must not change yet.
            self.driver.synchronize(self.stream)

    def read(self, memory: CudaMemory, array: Array, offset: int = 0) -> None:
        with self.active():
            if array.nbytes:
                address = memory.address + offset
                self.driver.read(array.ctypes.data, address, array.nbytes, self.stream)
            self.driver.synchronize(self.stream)

    def copy(
        self, to: CudaMemory, memory: CudaMemory, nbytes: int, to_offset: int = 0, offset: int = 0
    ) -> None:
        self.run((CudaCopy(to, to_offset, memory, offset, nbytes),))

    def fill(
        self, memory: CudaMemory, byte: int, offset: int = 0, nbytes: int | None = None
    ) -> None:
        size = memory.nbytes - offset if nbytes is None else nbytes
        if size:
            with self.active():
                self.driver.fill(memory.address + offset, byte, size, self.stream)

    def load(self, artifact: Artifact) -> CudaModule:
        return CudaModule(self, artifact)

    def call(
        self, module: CudaModule, entry: int, pointers: Sequence[int], scratch: CudaMemory | None
    ) -> CudaCall:
        if not any(f.maps for f in module.entries[entry]):
            return CudaCall(self.driver, module, entry, pointers, scratch)
        with self.active():  # the driver describes tensors of a context
            return CudaCall(self.driver, module, entry, pointers, scratch)

    def copy_call(
        self, to: CudaMemory, memory: CudaMemory, nbytes: int, to_offset: int = 0, offset: int = 0
    ) -> CudaCopy:
        return CudaCopy(to, to_offset, memory, offset, nbytes)

    def run(self, calls: Sequence[Call], stream: int | None = None) -> None:
        with self.active():
            for c in calls:
                c.enqueue(self.driver, self.stream if stream is None else stream)

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        driver, (begin, end) = self.driver, self.events
        out = []
        with self.active():
            for c in calls:
                driver.record(begin, self.stream)
                c.enqueue(driver, self.stream)
                driver.record(end, self.stream)
                driver.wait(end)
                out.append(driver.elapsed(begin, end))
        return out

    def record(self, calls: Sequence[Call]) -> CudaGraph:
        return CudaGraph(self, calls)

    def synchronize(self, stream: int | None = None) -> None:
        with self.active():
            self.driver.synchronize(self.stream if stream is None else stream)


def cuda_target(driver: CudaDriver, index: int) -> Target:
    count = driver.count()
    if not count:
        raise TargetError("the CUDA driver sees no GPU; is CUDA_VISIBLE_DEVICES empty?")
    if not 0 <= index < count:
        have = "GPU 0 only" if count == 1 else f"GPUs 0 to {count - 1}"
        raise TargetError(f"there is no GPU {index} here; the CUDA driver sees {have}")
    major, minor = (driver.attribute(index, n) for n in (cuda_driver.MAJOR, cuda_driver.MINOR))
    arch = arch_of(major, minor)
    count = driver.attribute(index, cuda_driver.MULTIPROCESSORS)
    return Target(
        "cuda",
        arch,
        arch,
        num_cores=count,
        num_multiprocessors=count,
        shared_nbytes=driver.attribute(index, cuda_driver.OPT_IN_SHARED_NBYTES),
        max_threads=driver.attribute(index, cuda_driver.MAX_THREADS),
        warp_size=driver.attribute(index, cuda_driver.WARP_SIZE),
        registers_per_block=driver.attribute(index, cuda_driver.MAX_REGISTERS),
        l2_nbytes=driver.attribute(index, cuda_driver.L2_NBYTES),
        model=driver.name(index),
        device=index,
    )
