"""CpuRunner: checks the results of kernels on the processor, and times them, in a run worker."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import PARALLEL_FOR, Artifact, Parameter, obstacle
from tilesmith.ir.nodes import Buffer
from tilesmith.ir.pack import pack
from tilesmith.measure.child import fault_handler
from tilesmith.measure.child.check import expected_outputs
from tilesmith.measure.child.fault_handler import Report
from tilesmith.measure.child.guarded_memory import ALIGNMENT, Array, Region
from tilesmith.measure.child.reference_kernel import WORKSPACE_NBYTES
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.measure.messages import REFERENCE, Built, Sample
from tilesmith.runtime.loader import Library, pool
from tilesmith.task.task import Failure

_FLOAT_POISON, _INTEGER_POISON = 0xFF, 0x55  # NaN, and an unlikely integer
_MAX_RELAID = 4  # layouts that are kept per parameter


@dataclass(frozen=True, slots=True)
class _Place:
    """A parameter's memory. For checking, it ends at the guard; for timing, it starts at a cache
    line. If the size allows, one region does both.
    """

    tight: Region
    aligned: Region

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.tight,) if self.tight is self.aligned else (self.tight, self.aligned)


@dataclass(slots=True)
class _Loaded:
    library: Library
    symbol: str
    check_args: Any  # pointers to the tight regions of the parameters
    time_args: Any  # and to the aligned ones
    workspace_nbytes: int
    places: list[tuple[Parameter, _Place]]

    @property
    def entry(self) -> int:
        return self.library.addresses[self.symbol]

    @property
    def outputs(self) -> list[tuple[Parameter, _Place]]:
        return [(p, place) for p, place in self.places if p.output]


class CpuRunner:
    def __init__(
        self,
        task: TaskArrays,
        reference: Artifact,
        report: Report,
        allocators: dict[str, int],
        cold_nbytes: int,
    ) -> None:
        self._task, self._report, self._allocators = task, report, allocators
        self._expected = expected_outputs(task)
        self._places: dict[tuple[str, str], _Place] = {}
        self._loaded: dict[int, _Loaded] = {}
        # Not zeros: all pages of an untouched array of zeros are one page of memory.
        self._cold: Array | None = np.ones(cold_nbytes // 8) if cold_nbytes else None
        self._repeat: Callable[[int, int, int, int], None] = pool().repeat
        self._stack = fault_handler.stack_span()
        # Kernels share one workspace when they are timed: it can be large, and they run in turn.
        self._workspace = Region("the workspace", WORKSPACE_NBYTES, tight=False)
        self._loaded[REFERENCE] = self._link(Built(reference, (), 0.0))

    def drop(self, slot: int) -> None:
        self._loaded.pop(slot, None)

    def load(self, slot: int, built: Built) -> Failure | None:
        try:
            self._loaded[slot] = self._link(built)
        except MemoryError as error:
            return Failure("memory", str(error))
        except BuildError as error:
            return Failure("build", str(error).splitlines()[0])
        return None

    def _link(self, built: Built) -> _Loaded:
        artifact = built.artifact
        if (why := obstacle(artifact)) is not None:
            raise BuildError(why)
        imports = dict(self._allocators)
        if artifact.uses_threads:
            imports[PARALLEL_FOR] = pool().parallel_for
        library = Library(artifact.name, artifact.code, (artifact.symbol,), imports)
        buffers = {b.name: b for b in built.params}
        places = [(p, self._place(p, buffers[p.name])) for p in artifact.parameters]
        if artifact.workspace_nbytes > self._workspace.nbytes:
            larger = Region("the workspace", artifact.workspace_nbytes, tight=False)
            larger.bytes[...] = 0
            self._workspace.free()
            self._workspace = larger
        pointers = ctypes.c_void_p * len(places)
        return _Loaded(
            library,
            artifact.symbol,
            pointers(*(place.tight.address for _, place in places)),
            pointers(*(place.aligned.address for _, place in places)),
            artifact.workspace_nbytes,
            places,
        )

    def _place(self, p: Parameter, buffer: Buffer) -> _Place:
        """Memory of a parameter in the layout of the kernel; kept for the next kernel with it."""
        key = (p.name, repr((buffer.preparation, p.shape)))
        if key not in self._places:
            self._make_room(p.name)
            tight = Region(p.name, p.nbytes)
            odd = tight.address % ALIGNMENT
            place = _Place(tight, Region(p.name, p.nbytes, tight=False) if odd else tight)
            if not p.output:
                func = replace(self._task.func, params=(buffer,), num_outputs=0)
                at = [b.name for b in self._task.func.inputs].index(p.name)
                data = pack(func, p.name, self._task.inputs[at])
                for region in place.regions:
                    region.array(p)[...] = data
                    region.make_read_only()
            self._places[key] = place
        return self._places[key]

    def _make_room(self, name: str) -> None:
        """Frees the oldest layouts of a parameter that no loaded kernel uses."""
        used = {id(place) for k in self._loaded.values() for _, place in k.places}
        same = [k for k in self._places if k[0] == name]
        for key in same[: max(0, len(same) - _MAX_RELAID + 1)]:
            if id(self._places[key]) not in used:
                for region in self._places.pop(key).regions:
                    region.free()

    def check(self, slot: int) -> float | Failure:
        loaded = self._loaded[slot]
        try:
            workspace = Region("the workspace", loaded.workspace_nbytes, tight=False)
        except MemoryError as error:
            return Failure("memory", str(error))
        try:
            return self._check_in(loaded, workspace)
        finally:
            workspace.free()

    def _check_in(self, loaded: _Loaded, workspace: Region) -> float | Failure:
        regions = [r for place in self._places.values() for r in place.regions]
        spans = [r.span for r in (workspace, self._workspace, *regions)]
        self._report.describe([self._stack, *spans])
        workspace.bytes[...] = _FLOAT_POISON
        for p, place in loaded.outputs:
            place.tight.bytes[...] = _FLOAT_POISON if p.dtype.is_float else _INTEGER_POISON
        busy, start = time.thread_time(), time.perf_counter()
        self._repeat(loaded.entry, ctypes.addressof(loaded.check_args), workspace.address, 1)
        # The smaller of wall-clock and processor time: other processes may take the core.
        seconds = min(time.perf_counter() - start, time.thread_time() - busy)
        damaged = [(p, place.tight) for p, place in loaded.outputs if not place.tight.is_intact]
        for _, region in damaged:
            region.repair()
        if damaged:
            return Failure("bounds", f"wrote before the begin of {damaged[0][0].name}")
        if not workspace.is_intact:
            return Failure("bounds", "wrote beside the workspace")
        for p, place in loaded.outputs:
            text = self._expected[p.name].differs(place.tight.array(p))
            if text is not None:
                return Failure("wrong", text)
        return seconds

    def time(self, slot: int, calls: int) -> Sample:
        loaded = self._loaded[slot]
        args, workspace = ctypes.addressof(loaded.time_args), self._workspace.address
        if self._cold is None or slot == REFERENCE:
            busy, start = time.thread_time(), time.perf_counter()
            self._repeat(loaded.entry, args, workspace, calls)
            seconds, busy = time.perf_counter() - start, time.thread_time() - busy
        else:
            seconds = busy = 0.0
            for _ in range(calls):
                self._cold[::8].max()  # reads one element per cache line
                cpu, start = time.thread_time(), time.perf_counter()
                self._repeat(loaded.entry, args, workspace, 1)
                seconds += time.perf_counter() - start
                busy += time.thread_time() - cpu
        return Sample(seconds / calls, min(1.0, busy / max(seconds, 1e-9)))


def allocators(addresses: dict[str, int]) -> dict[str, int]:
    """Addresses that a kernel's calls of the allocation functions are linked to."""
    return {
        "malloc": addresses[fault_handler.ALLOCATE],
        "calloc": addresses[fault_handler.ALLOCATE_ZEROED],
        "aligned_alloc": addresses[fault_handler.ALLOCATE_ALIGNED],
    }
