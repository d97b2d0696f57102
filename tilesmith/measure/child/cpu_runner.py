"""CpuRunner: checks the results of kernels on the processor, and times them, in a run worker."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
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
class _Arguments:
    """The parameters of a kernel on the inputs of one case."""

    places: list[tuple[Parameter, _Place]]
    check: Any  # pointers to their tight regions
    time: Any  # and to the aligned ones

    @property
    def outputs(self) -> list[tuple[Parameter, _Place]]:
        return [(p, place) for p, place in self.places if p.output]


@dataclass(slots=True)
class _Loaded:
    library: Library
    symbol: str
    workspace_nbytes: int
    cases: list[_Arguments]  # kernels are timed on the last
    way: str

    @property
    def entry(self) -> int:
        return self.library.addresses[self.symbol]


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
        self._expected = {
            way: [expected_outputs(task.func, c.outputs, c.limits[way]) for c in task.cases]
            for way in task.ways
        }
        # By the case of the inputs (outputs are shared), the name and the layout.
        self._places: dict[tuple[int, str, str], _Place] = {}
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
        cases = []
        for k in range(len(self._task.cases)):
            places = [(p, self._place(k, p, buffers[p.name])) for p in artifact.parameters]
            pointers = ctypes.c_void_p * len(places)
            tight = pointers(*(place.tight.address for _, place in places))
            aligned = pointers(*(place.aligned.address for _, place in places))
            cases.append(_Arguments(places, tight, aligned))
        if artifact.workspace_nbytes > self._workspace.nbytes:
            larger = Region("the workspace", artifact.workspace_nbytes, tight=False)
            larger.bytes[...] = 0
            self._workspace.free()
            self._workspace = larger
        return _Loaded(library, artifact.symbol, artifact.workspace_nbytes, cases, built.way)

    def _place(self, case: int, p: Parameter, buffer: Buffer) -> _Place:
        """Memory of a parameter in the layout of the kernel; kept for the next kernel with it."""
        key = (0 if p.output else case, p.name, repr((buffer.preparation, p.shape)))
        if key not in self._places:
            self._make_room(*key[:2])
            tight = Region(p.name, p.nbytes)
            odd = tight.address % ALIGNMENT
            place = _Place(tight, Region(p.name, p.nbytes, tight=False) if odd else tight)
            if not p.output:
                func = replace(self._task.func, params=(buffer,), num_outputs=0)
                at = [b.name for b in self._task.func.inputs].index(p.name)
                data = pack(func, p.name, self._task.cases[case].inputs[at])
                for region in place.regions:
                    region.array(p)[...] = data
                    region.make_read_only()
            self._places[key] = place
        return self._places[key]

    def _make_room(self, case: int, name: str) -> None:
        """Frees the oldest layouts of a parameter that no loaded kernel uses."""
        used = {id(p) for k in self._loaded.values() for a in k.cases for _, p in a.places}
        same = [k for k in self._places if k[:2] == (case, name)]
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
            regions = [r for place in self._places.values() for r in place.regions]
            spans = [r.span for r in (workspace, self._workspace, *regions)]
            self._report.describe([self._stack, *spans])
            seconds = 0.0
            for case, args in enumerate(loaded.cases):
                answer = self._check_in(loaded, case, args, workspace)
                if isinstance(answer, Failure):
                    return answer
                seconds = answer  # of the last, on which it is timed
            return seconds
        finally:
            workspace.free()

    def _check_in(
        self, loaded: _Loaded, case: int, args: _Arguments, workspace: Region
    ) -> float | Failure:
        workspace.bytes[...] = _FLOAT_POISON
        for p, place in args.outputs:
            place.tight.bytes[...] = _poison(p)
        busy, start = time.thread_time(), time.perf_counter()
        self._repeat(loaded.entry, ctypes.addressof(args.check), workspace.address, 1)
        # The smaller of wall-clock and processor time: other processes may take the core.
        seconds = min(time.perf_counter() - start, time.thread_time() - busy)
        damaged = [(p, place.tight) for p, place in args.outputs if not place.tight.is_intact]
        for _, region in damaged:
            region.repair()
        if damaged:
            return Failure("bounds", f"wrote before the begin of {damaged[0][0].name}")
        if not workspace.is_intact:
            return Failure("bounds", "wrote beside the workspace")
        for p, place in args.outputs:
            text = self._expected[loaded.way][case][p.name].differs(place.tight.array(p))
            if text is not None:
                return Failure("wrong", text)
        return seconds

    def verify(self, slot: int, calls: int, timed: bool) -> Failure | None:
        loaded = self._loaded[slot]
        args, expected = loaded.cases[-1], self._expected[loaded.way][-1]
        for k in range(0 if timed else 1, calls + 1):
            if k > 0:
                for p, place in args.outputs:
                    place.aligned.bytes[...] = _poison(p)
                self._call(loaded, 1)
            for p, place in args.outputs:
                text = expected[p.name].differs(place.aligned.array(p))
                if text is not None:
                    return Failure("wrong", f"{text}, in a later call: the results vary")
        return None

    def _call(self, loaded: _Loaded, calls: int) -> None:
        args = ctypes.addressof(loaded.cases[-1].time) if loaded.cases else 0
        self._repeat(loaded.entry, args, self._workspace.address, calls)

    def time(self, slot: int, calls: int) -> Sample:
        loaded = self._loaded[slot]
        if self._cold is None or slot == REFERENCE:
            busy, start = time.thread_time(), time.perf_counter()
            self._call(loaded, calls)
            seconds, busy = time.perf_counter() - start, time.thread_time() - busy
        else:
            seconds = busy = 0.0
            for _ in range(calls):
                self._cold[::8].max()  # reads one element per cache line
                cpu, start = time.thread_time(), time.perf_counter()
                self._call(loaded, 1)
                seconds += time.perf_counter() - start
                busy += time.thread_time() - cpu
        return Sample(seconds / calls, min(1.0, busy / max(seconds, 1e-9)))


def _poison(p: Parameter) -> int:
    return _FLOAT_POISON if p.dtype.is_float else _INTEGER_POISON


def allocators(addresses: dict[str, int]) -> dict[str, int]:
    """Addresses that a kernel's calls of the allocation functions are linked to."""
    return {
        "malloc": addresses[fault_handler.ALLOCATE],
        "calloc": addresses[fault_handler.ALLOCATE_ZEROED],
        "aligned_alloc": addresses[fault_handler.ALLOCATE_ALIGNED],
    }
