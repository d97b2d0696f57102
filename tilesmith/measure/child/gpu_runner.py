"""GpuRunner: checks the results of kernels on a GPU, and times them, in a run worker.

Outputs and the workspace are poisoned before a check, and lie between bytes of a pattern that must
not change. Large outputs are compared with the expected ones on the GPU. Calls are timed in
recorded sequences (CUDA graphs), because enqueueing a single kernel takes longer than many kernels
do.
"""

from __future__ import annotations

from dataclasses import field, replace
from math import ceil
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import dtype
from tilesmith.base.errors import DeviceError
from tilesmith.codegen.artifact import Artifact, Parameter
from tilesmith.ir.nodes import Buffer
from tilesmith.ir.pack import pack
from tilesmith.measure.child.check import Expected, expected_outputs
from tilesmith.measure.child.run_worker import failure_of
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.measure.gpu_support import comparison
from tilesmith.measure.messages import REFERENCE, Built, Sample
from tilesmith.runtime.devices.open import (
    MAX_RECORDED,
    Call,
    Device,
    Memory,
    Module,
    Pointer,
    Recorded,
)
from tilesmith.task.task import Failure

Array = np.ndarray[Any, Any]

_FLOAT_POISON, _INTEGER_POISON = 0xFF, 0x55  # NaN, and an unlikely integer
_CANARY = 0xA5
_GUARD_NBYTES = 4096  # on either side of each array
_ALIGNMENT = 256
# Calls of the reference kernel in a sample: the host takes some 5 us to enqueue them, and that time
# varies, which is too much beside a single call.
_REFERENCE_CALLS = 3
# Outputs that the device compares: the host is as fast for smaller ones, and larger ones would take
# memory that kernels need.
_COMPARED_NBYTES = range(1 << 18, 1 << 30)
_MAX_RELAID = 4  # layouts that are kept per parameter
_MAX_SETS_NBYTES = 2 << 30  # of all buffers between which calls with cold caches rotate


@dataclass(slots=True)
class _Place:
    """Memory of a parameter or the workspace, between guards. `data` is what an input holds."""

    memory: Memory
    nbytes: int
    data: Array | None = None

    @property
    def pointer(self) -> Any:
        return self.memory.at(_GUARD_NBYTES, self.nbytes)


@dataclass(slots=True)
class _Loaded:
    artifact: Artifact
    module: Module
    # The parameters on the inputs of each case, and a call with them; timed on the last.
    cases: list[tuple[list[tuple[Parameter, _Place]], Call]]
    scratch: Memory | None
    workspace_nbytes: int
    way: str  # in which it rounds
    warm: dict[int, Recorded] = field(default_factory=dict)  # by the number of calls
    cold: Recorded | None = None
    cold_calls: int = 0
    cold_memory: Memory | None = None  # kept: the recorded calls know its address only

    @property
    def places(self) -> list[tuple[Parameter, _Place]]:
        return self.cases[-1][0]

    @property
    def call(self) -> Call:
        return self.cases[-1][1]


class GpuRunner:
    """With `cold`, every call of a sample uses buffers that are not in the GPU's caches."""

    def __init__(self, task: TaskArrays, device: Device, cold: bool) -> None:
        self._task, self._device = task, device
        self._expected = {
            way: [expected_outputs(task.func, c.outputs, c.limits[way]) for c in task.cases]
            for way in task.ways
        }
        # By the case of the inputs (outputs are shared), the name and the layout.
        self._places: dict[tuple[int, str, str], _Place] = {}
        self._loaded: dict[int, _Loaded] = {}
        self._compared: dict[tuple[str, int, str], OnDevice | None] = {}  # large outputs
        self._read: dict[str, Array] = {}  # outputs on the host, by name
        self._is_dirty = False  # whether a kernel may have written where it must not
        flush_nbytes = 2 * device.target.l2_nbytes if cold else 0
        self._flush: Memory | None = device.allocate(flush_nbytes) if cold else None

    def load(self, slot: int, built: Built) -> Failure | None:
        try:
            self._loaded[slot] = self._link(built)
        except DeviceError as error:
            if error.kind == "fault":
                raise
            return failure_of(error)
        return None

    def drop(self, slot: int) -> None:
        self._loaded.pop(slot, None)

    def _link(self, built: Built) -> _Loaded:
        device, artifact = self._device, built.artifact
        module = device.load(artifact)
        buffers = {b.name: b for b in built.params}
        scratch = self._new_scratch(artifact.workspace_nbytes)
        cases = []
        for k in range(len(self._task.cases)):
            places = [(p, self._place(k, p, buffers.get(p.name))) for p in artifact.parameters]
            call = device.call(module, 0, [place.pointer for _, place in places], scratch)
            cases.append((places, call))
        return _Loaded(artifact, module, cases, scratch, artifact.workspace_nbytes, built.way)

    def _new_scratch(self, nbytes: int) -> Memory | None:
        """The workspace with a guard behind it; it begins at its first byte."""
        if not nbytes:
            return None
        memory = self._device.allocate(nbytes + _GUARD_NBYTES)
        self._device.fill(memory, _CANARY)
        return memory

    def _place(self, case: int, p: Parameter, buffer: Buffer | None) -> _Place:
        """Memory of a parameter in the layout of the kernel; kept for the next kernel with it."""
        layout = "" if buffer is None else repr((buffer.preparation, p.shape))
        key = (0 if p.output else case, p.name, layout)
        if key not in self._places:
            self._make_room(*key[:2])
            memory = self._device.allocate(p.nbytes + 2 * _GUARD_NBYTES)
            place = _Place(memory, p.nbytes)
            if not p.output and buffer is not None:
                func = replace(self._task.func, params=(buffer,), num_outputs=0)
                at = [b.name for b in self._task.func.inputs].index(p.name)
                packed = pack(func, p.name, self._task.cases[case].inputs[at])
                place.data = np.ascontiguousarray(packed)
            self._restore(place)
            self._places[key] = place
        return self._places[key]

    def _restore(self, place: _Place) -> None:
        """Guards and inputs as they must be."""
        self._device.fill(place.memory, _CANARY)
        if place.data is not None:
            self._device.write(place.memory, place.data, _GUARD_NBYTES)

    def _make_room(self, case: int, name: str) -> None:
        """Frees the oldest layouts of a parameter that no loaded kernel uses."""
        used = {id(p) for k in self._loaded.values() for places, _ in k.cases for _, p in places}
        same = [k for k in self._places if k[:2] == (case, name)]
        for key in same[: max(0, len(same) - _MAX_RELAID + 1)]:
            if id(self._places[key]) not in used:
                del self._places[key]

    def check(self, slot: int) -> float | Failure:
        loaded = self._loaded[slot]
        self._clean()
        seconds: float | Failure = 0.0
        try:
            for case in range(len(loaded.cases)):
                seconds = self._check(loaded, case)
                if isinstance(seconds, Failure):
                    break
        except DeviceError as error:
            if error.kind == "fault":
                raise
            seconds = failure_of(error)
        self._is_dirty = isinstance(seconds, Failure)
        return seconds

    def verify(self, slot: int, calls: int, timed: bool) -> Failure | None:
        loaded = self._loaded[slot]
        last = len(loaded.cases) - 1
        timed = timed and self._flush is None  # calls with cold caches write elsewhere
        failure: Failure | None = None
        for k in range(0 if timed else 1, calls + 1):
            if k > 0:
                self._poison(loaded, last)
                self._device.run((loaded.call,))
            text = self._differs(loaded, last)
            if text is not None:
                failure = Failure("wrong", f"{text}, in a later call: the results vary")
                break
        self._is_dirty = self._is_dirty or failure is not None
        return failure

    def _clean(self) -> None:
        """Undoes what a bad kernel may have written."""
        if not self._is_dirty:
            return
        for place in self._places.values():
            self._restore(place)
        for compared in self._compared.values():
            if compared is not None:
                compared.restore()
        self._is_dirty = False

    def _poison(self, loaded: _Loaded, case: int) -> None:
        for p, place in loaded.cases[case][0]:
            if p.output:
                poison = _FLOAT_POISON if p.dtype.is_float else _INTEGER_POISON
                self._device.fill(place.memory, poison, _GUARD_NBYTES, p.nbytes)

    def _check(self, loaded: _Loaded, case: int) -> float | Failure:
        device, (places, call) = self._device, loaded.cases[case]
        self._poison(loaded, case)
        if loaded.scratch is not None:
            device.fill(loaded.scratch, _CANARY)
            device.fill(loaded.scratch, _FLOAT_POISON, 0, loaded.workspace_nbytes)
        (seconds,) = device.seconds((call,))
        for p, place in places:
            if not self._is_intact(place.memory, 0):
                return Failure("bounds", f"wrote before the begin of {p.name}")
            if not self._is_intact(place.memory, _GUARD_NBYTES + p.nbytes):
                return Failure("bounds", f"wrote past the end of {p.name}")
        scratch = loaded.scratch
        if scratch is not None and not self._is_intact(scratch, loaded.workspace_nbytes):
            return Failure("bounds", "wrote past the workspace")
        text = self._differs(loaded, case)
        return seconds if text is None else Failure("wrong", text)

    def _differs(self, loaded: _Loaded, case: int) -> str | None:
        """None, or which element of the outputs is wrong."""
        for p, place in loaded.cases[case][0]:
            if not p.output or self._is_near(loaded.way, case, p, place):
                continue
            got = self._read.get(p.name)
            if got is None or got.shape != p.shape:  # kept: new memory is slow to write
                got = self._read[p.name] = np.empty(p.shape, p.dtype.numpy)
            self._device.read(place.memory, got, _GUARD_NBYTES)
            text = self._expected[loaded.way][case][p.name].differs(got)
            if text is not None:
                return text
        return None

    def _is_near(self, way: str, case: int, p: Parameter, place: _Place) -> bool:
        """Whether the device finds the output right. If not, the host decides."""
        support, key = self._loaded.get(REFERENCE), (way, case, p.name)
        if support is None or p.nbytes not in _COMPARED_NBYTES:
            return False
        if key not in self._compared:
            self._compared[key] = OnDevice.of(
                self._device, support.module, support.artifact, self._expected[way][case][p.name]
            )
        compared = self._compared[key]
        return compared is not None and compared.is_near(place.pointer)

    def _is_intact(self, memory: Memory, offset: int) -> bool:
        guard = np.empty(_GUARD_NBYTES, np.uint8)
        self._device.read(memory, guard, offset)
        return bool((guard == _CANARY).all())

    def time(self, slot: int, calls: int) -> Sample:
        loaded, device = self._loaded[slot], self._device
        if self._flush is not None and slot != REFERENCE:
            return Sample(self._cold_seconds(loaded, calls, self._flush), 1.0)
        if slot == REFERENCE:
            calls = max(calls, _REFERENCE_CALLS)
        if calls == 1:
            return Sample(device.seconds((loaded.call,))[0], 1.0)
        runs = ceil(calls / MAX_RECORDED)
        count = ceil(calls / runs)
        recorded = loaded.warm.get(count)
        if recorded is None:
            recorded = loaded.warm[count] = device.record([loaded.call] * count)
            recorded.run()  # the first run takes longer
        seconds = sum(recorded.seconds() for _ in range(runs))
        return Sample(seconds / (runs * count), 1.0)

    def _cold_seconds(self, loaded: _Loaded, calls: int, flush: Memory) -> float:
        """Each call has buffers of its own, and the caches are overwritten ahead of all."""
        if loaded.cold is None:
            loaded.cold_calls, loaded.cold, loaded.cold_memory = self._rotating(loaded)
            loaded.cold.run()
        spent, done = 0.0, 0
        while done < calls:
            self._device.fill(flush, 0)
            spent += loaded.cold.seconds()
            done += loaded.cold_calls
        return spent / done

    def _rotating(self, loaded: _Loaded) -> tuple[int, Recorded, Memory]:
        device = self._device
        sizes = [-(-max(p.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT for p, _ in loaded.places]
        count = max(1, min(MAX_RECORDED, _MAX_SETS_NBYTES // max(sum(sizes), 1)))
        memory = device.allocate(count * sum(sizes))
        calls, at = [], 0
        for _ in range(count):
            pointers = []
            for (p, place), size in zip(loaded.places, sizes, strict=True):
                if not p.output:
                    device.copy(memory, place.memory, p.nbytes, at, _GUARD_NBYTES)
                pointers.append(memory.at(at, p.nbytes))
                at += size
            calls.append(device.call(loaded.module, 0, pointers, loaded.scratch))
        return count, device.record(calls), memory


class OnDevice:
    """An expected output in the memory of the device."""

    @staticmethod
    def of(
        device: Device, module: Module, support: Artifact, expected: Expected
    ) -> OnDevice | None:
        """None if the host has to compare: float64, integers that may differ, or too little memory.
        `support` are the kernels of gpu_support.py, which the module has.
        """
        d = dtype(expected.want.dtype)
        if not comparison(d) or not (d.is_float or expected.is_exact):
            return None
        entry = [e.name for e in support.entries].index(comparison(d))
        limits = [np.ascontiguousarray(expected.limits)] if d.is_float else []
        count = expected.want.size if d.is_float else expected.want.nbytes
        try:
            return OnDevice(
                device, module, entry, [expected.want, *limits, np.array([count], np.int64)]
            )
        except DeviceError as error:
            if error.kind == "fault":
                raise
            return None

    def __init__(self, device: Device, module: Module, entry: int, data: list[Array]) -> None:
        self._device, self._module, self._entry = device, module, entry
        self._data = [np.ascontiguousarray(a) for a in data]
        self._memory: list[Memory] = [device.allocate(a.nbytes) for a in self._data]
        self._differs = device.allocate(4)
        self.restore()

    def restore(self) -> None:
        """Undoes what a bad kernel may have written here."""
        for memory, data in zip(self._memory, self._data, strict=True):
            self._device.write(memory, data)

    def is_near(self, output: Pointer) -> bool:
        """Whether all elements of an output are right."""
        device, found = self._device, np.ones(1, np.int32)
        device.fill(self._differs, 0)
        given = [m.at(0, m.nbytes) for m in (*self._memory, self._differs)]
        device.run((device.call(self._module, self._entry, [output, *given], None),))
        device.read(self._differs, found)
        return not found[0]
