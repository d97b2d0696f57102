"""The run worker: kernels in, and what they do on guarded memory out: right or wrong, and seconds.

It links machine code that may do anything. What it is about to run stands in the report that its
parent reads when it dies.
"""

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
from tilesmith.measure.child.check import Expected, tolerance
from tilesmith.measure.child.fault_handler import Report
from tilesmith.measure.child.guarded_memory import ALIGNMENT, Array, Region
from tilesmith.measure.child.reference_kernel import WORKSPACE_NBYTES
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.measure.messages import REFERENCE, Built, Check, Drop, Load, Sample, Time
from tilesmith.measure.wire import Channel
from tilesmith.runtime.loader import Library, pool
from tilesmith.task.task import Failure

_FLOAT_POISON, _INTEGER_POISON = 0xFF, 0x55  # NaN, and a number no test expects everywhere
_MAX_RELAID = 4  # layouts of one parameter that are kept


@dataclass(frozen=True, slots=True)
class _Place:
    """A parameter's memory: for checking it ends at the guard, for timing it begins on a cache
    line. One region does both where the size allows.
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
    checked: Any  # pointers to the parameters
    timed: Any
    workspace_nbytes: int
    places: list[tuple[Parameter, _Place]]

    @property
    def entry(self) -> int:
        return self.library.addresses[self.symbol]

    @property
    def outputs(self) -> list[tuple[Parameter, _Place]]:
        return [(p, place) for p, place in self.places if p.output]


class RunWorker:
    def __init__(
        self,
        store: TaskArrays,
        reference: Artifact,
        report: Report,
        allocators: dict[str, int],
        cold_nbytes: int,
    ) -> None:
        self._store, self._report, self._allocators = store, report, allocators
        floats = [x for x in store.inputs if x.dtype.kind not in "biu" and x.size]
        allowed = tolerance(store.func, signed=all((x < 0).any() for x in floats))
        self._expected = {
            b.name: Expected(b.name, want, allowed)
            for b, want in zip(store.func.outputs, store.outputs, strict=True)
        }
        self._places: dict[tuple[str, str], _Place] = {}
        self._loaded: dict[int, _Loaded] = {}
        # ones, because the zeros of an untouched array are all the same page
        self._cold: Array | None = np.ones(cold_nbytes // 8) if cold_nbytes else None
        self._repeat: Callable[[int, int, int, int], None] = pool().repeat
        self._stack = fault_handler.stack_span()
        # One for all that are timed: they run one at a time, and scratch can be large.
        self._workspace = Region("the workspace", WORKSPACE_NBYTES, tight=False)
        self._loaded[REFERENCE] = self._link(Built(reference, (), 0.0))

    def serve(self, channel: Channel) -> None:
        while True:
            message = channel.receive()
            self._report.running(getattr(message, "slot", 0))
            match message:
                case Load(slot=slot, built=built):
                    channel.send(self._load(slot, built))
                case Check(slot=slot):
                    channel.send(self._check(self._loaded[slot]))
                case Time(order=order):
                    channel.send([self._time(slot, calls) for slot, calls in order])
                case Drop(slots=slots):
                    for slot in slots:
                        self._loaded.pop(slot, None)
                    channel.send(None)
            self._report.running(0)  # whoever ends an idle worker says nothing about a kernel

    def _load(self, slot: int, built: Built) -> Failure | None:
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
        """Memory of a parameter in the layout a kernel wants, kept for the next one that does."""
        key = (p.name, repr((buffer.layout, buffer.basis, p.shape)))
        if key not in self._places:
            self._make_room(p.name)
            tight = Region(p.name, p.nbytes)
            odd = tight.address % ALIGNMENT
            place = _Place(tight, Region(p.name, p.nbytes, tight=False) if odd else tight)
            if not p.output:
                func = replace(self._store.func, params=(buffer,), num_outputs=0)
                at = [b.name for b in self._store.func.inputs].index(p.name)
                data = pack(func, p.name, self._store.inputs[at])
                for region in place.regions:
                    region.array(p)[...] = data
                    region.make_read_only()
            self._places[key] = place
        return self._places[key]

    def _make_room(self, name: str) -> None:
        """Frees the oldest layouts of a parameter that no kernel here uses."""
        used = {id(place) for k in self._loaded.values() for _, place in k.places}
        same = [k for k in self._places if k[0] == name]
        for key in same[: max(0, len(same) - _MAX_RELAID + 1)]:
            if id(self._places[key]) not in used:
                for region in self._places.pop(key).regions:
                    region.free()

    def _check(self, loaded: _Loaded) -> float | Failure:
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
        self._repeat(loaded.entry, ctypes.addressof(loaded.checked), workspace.address, 1)
        # what another process took overlap says nothing of the kernel
        seconds = min(time.perf_counter() - start, time.thread_time() - busy)
        for p, place in loaded.outputs:
            if not place.tight.is_intact:
                return Failure("bounds", f"wrote before the begin of {p.name}")
        if not workspace.is_intact:
            return Failure("bounds", "wrote beside the workspace")
        for p, place in loaded.outputs:
            text = self._expected[p.name].differs(place.tight.array(p))
            if text is not None:
                return Failure("wrong", text)
        return seconds

    def _time(self, slot: int, calls: int) -> Sample:
        self._report.running(slot)
        loaded = self._loaded[slot]
        args, workspace = ctypes.addressof(loaded.timed), self._workspace.address
        if self._cold is None or slot == REFERENCE:
            busy, start = time.thread_time(), time.perf_counter()
            self._repeat(loaded.entry, args, workspace, calls)
            seconds, busy = time.perf_counter() - start, time.thread_time() - busy
        else:
            seconds = busy = 0.0
            for _ in range(calls):
                self._cold[::8].max()  # a read of every line, of more than the caches hold
                cpu, start = time.thread_time(), time.perf_counter()
                self._repeat(loaded.entry, args, workspace, 1)
                seconds += time.perf_counter() - start
                busy += time.thread_time() - cpu
        return Sample(seconds / calls, min(1.0, busy / max(seconds, 1e-9)))


def allocators(addresses: dict[str, int]) -> dict[str, int]:
    """What a kernel's calls for memory are bound to."""
    return {
        "malloc": addresses[fault_handler.ALLOCATE],
        "calloc": addresses[fault_handler.ALLOCATE_ZEROED],
        "aligned_alloc": addresses[fault_handler.ALLOCATE_ALIGNED],
    }
