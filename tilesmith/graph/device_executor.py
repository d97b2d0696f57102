"""DeviceExecutor: a Plan and a kernel for each step in, a callable out that runs the whole plan on
a GPU, as one recorded sequence of launches (a CUDA graph).

Weights are uploaded once, in the layout that each kernel wants. Inputs, outputs and everything in
between have fixed places on the device, because a recorded sequence has fixed addresses: arrays of
the caller are copied there and back, in the memory of the device where they are on it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError, GraphError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Parameter
from tilesmith.graph.checks import verified, without_hidden
from tilesmith.graph.executor import ArrayStore, Executor, fill
from tilesmith.graph.graph import Array
from tilesmith.graph.plan import Place, Plan
from tilesmith.graph.program import Feeds
from tilesmith.runtime.arrays import empty, is_on_host
from tilesmith.runtime.chain import CLOCK_MONOTONIC
from tilesmith.runtime.device_kernel import DeviceKernel
from tilesmith.runtime.devices.open import Call, Device, Memory, Recorded, open_device
from tilesmith.runtime.devices.tensors import callers_stream, device_tensor, new_tensor
from tilesmith.runtime.kernel import Kernel

_REPEATS = 10  # of a kernel whose time is taken


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Memory on the device that somebody else owns."""

    address: int
    nbytes: int

    def at(self, offset: int, nbytes: int) -> int:
        return self.address + offset


class DeviceExecutor(Executor):
    """Call it with an array for each input of the graph, checked by whoever calls. One call runs at
    a time; others wait.
    """

    def __init__(
        self, plan: Plan, kernels: Sequence[Kernel], target: Target, store: ArrayStore | None = None
    ) -> None:
        self.plan, self.kernels, self.target = plan, tuple(kernels), target
        self._store, self._known = store, None
        self._lock = threading.Lock()
        self._stream: int | None = None  # the last one that calls were enqueued on
        values = plan.graph.values
        self._outputs = [(n, values[v].shape, values[v].dtype.numpy) for n, v in plan.graph.outputs]
        self._inputs = {x: values[x] for x in plan.graph.inputs}
        self._held = [self._constants(k) for k in range(len(plan.steps))]
        self._obstacle = ""  # why it cannot run here, but be exported
        try:
            self.device: Device = open_device(target)
        except BuildError as error:
            self._obstacle = str(error)
        else:
            self._prepare(self.device)

    def _prepare(self, device: Device) -> None:
        """Uploads the weights, and records all launches."""
        plan = self.plan
        self._arena = device.allocate(plan.arena.nbytes)
        self._given = {x: device.allocate(v.nbytes) for x, v in self._inputs.items()}
        self._returned = {n: device.allocate(prod(s) * d.itemsize) for n, s, d in self._outputs}
        workspace = max((k.artifact.workspace_nbytes for k in self.kernels), default=0)
        self._scratch = device.allocate(workspace) if workspace else None
        self._weights: dict[int, Memory] = {}  # by the identity of the host's array
        self._calls = [self._step(k) for k in range(len(self.kernels))]
        self._recorded: Recorded = device.record([c for calls in self._calls for c in calls])
        # Each step, and all of them, several times in a row, to be timed.
        self._rows: list[Recorded] | None = None
        self._several: Recorded | None = None

    def _require_device(self) -> None:
        if self._obstacle:
            raise BuildError(f"{self.plan.graph.name} cannot run here: {self._obstacle}")

    def _step(self, k: int) -> list[Call]:
        """The calls of a step: its kernel, and copies of inputs that do not lie on a boundary."""
        device, kernel, step = self.device, self.kernels[k], self.plan.steps[k]
        assert isinstance(kernel, DeviceKernel)
        calls: list[Call] = []
        pointers: list[Any] = []
        for p, place in zip(kernel.artifact.parameters, step.places, strict=True):
            memory = self._memory(k, len(pointers), place)
            if place.offset % device.alignment == 0:
                pointers.append(memory.at(place.offset, p.nbytes))
                continue
            if p.output:
                raise GraphError(
                    f"{step.func.name} writes {p.name} at byte {place.offset} of another array, "
                    f"which {device.target.model} does not allow; compile without join_in_place"
                )
            aligned = device.allocate(p.nbytes)
            calls.append(device.copy_call(aligned, memory, p.nbytes, 0, place.offset))
            pointers.append(aligned.at(0, p.nbytes))
        return [*calls, device.call(kernel.module, 0, pointers, self._scratch)]

    def _memory(self, k: int, at: int, place: Place) -> Memory:
        if place.kind == "constant":
            return self._uploaded(self._held[k][at])
        return self._held_by(place)

    def _held_by(self, place: Place) -> Memory:
        if place.kind == "arena":
            return self._arena
        return (self._given if place.kind == "input" else self._returned)[place.name]

    def _uploaded(self, array: Array) -> Memory:
        memory = self._weights.get(id(array))
        if memory is None:
            memory = self._weights[id(array)] = self.device.allocate(array.nbytes)
            self.device.write(memory, np.ascontiguousarray(array))
        return memory

    def __call__(self, feeds: Feeds) -> dict[str, Array]:
        self._require_device()
        with self._lock:
            self._write(feeds)
            self._recorded.run()
            return self._read(feeds)

    def timed(
        self, feeds: Feeds, clock: int = CLOCK_MONOTONIC
    ) -> tuple[dict[str, Array], list[float]]:
        """The outputs, and the seconds of every step on the device, which has its own clock: of
        one among several in a row, because starting a sequence takes longer than most kernels.
        """
        self._require_device()
        with self._lock:
            self._write(feeds)
            if self._rows is None:
                self._rows = [self.device.record([*calls] * _REPEATS) for calls in self._calls]
            times = [row.seconds() / _REPEATS for row in self._rows]
            self._recorded.run()  # a step may have overwritten what it read
            return self._read(feeds), times

    def seconds(self) -> float:
        """The time of one call on the device, without copies, on the inputs of the last call: of
        one among several in a row, as callers that do not wait for each one see it.
        """
        self._require_device()
        with self._lock:
            if self._several is None:
                every = [c for calls in self._calls for c in calls]
                self._several = self.device.record(every * _REPEATS)
            return self._several.seconds() / _REPEATS

    def _write(self, feeds: Feeds) -> None:
        self._wait_for(None)
        for name, memory in self._given.items():
            self.device.write(memory, np.ascontiguousarray(feeds[name]))

    def _wait_for(self, stream: int | None) -> None:
        """Calls on another stream may still use the same memory."""
        if self._stream is not None and self._stream != stream:
            self.device.synchronize(self._stream)
        self._stream = stream

    def _read(self, feeds: Feeds) -> dict[str, Array]:
        copied = dict(self.plan.copies)
        results = {n: empty(s, d, prod(s) * d.itemsize)[0] for n, s, d in self._outputs}
        for name, out in results.items():
            if name not in copied:
                self.device.read(self._returned[name], out)
        for name, place in copied.items():
            out = results[name]
            if place.kind == "arena":
                self.device.read(self._arena, out, place.offset)
            else:
                fill(out, self._source(place, feeds, results), place.offset)
        return verified(self.plan.graph.checks, feeds, results)

    def on_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """With tensors on the device for all inputs; the outputs are tensors of the same library,
        on the caller's stream. Checks are left out, as nobody waits for the device.
        """
        self._require_device()
        device = self.device
        first, index = next(iter(feeds.values())), device.target.device
        stream = callers_stream(feeds.values(), index)
        own = getattr(device, "stream", 0)
        with self._lock:
            self._wait_for(stream)
            held = []
            for name, memory in self._given.items():
                p = _parameter(name, self._inputs[name], output=False)
                b = device_tensor(feeds[name], p, own if stream is None else None, 1)
                copy = device.copy_call(memory, _Foreign(b.address, p.nbytes), p.nbytes)
                device.run((copy,), stream)
                held.append(b)
            self._recorded.run(stream)
            results = {}
            copied = dict(self.plan.copies)
            for name, value in self.plan.graph.outputs:
                v = self.plan.graph.values[value]
                out = results[name] = new_tensor(first, _parameter(name, v, output=True), index)
                b = device_tensor(out, _parameter(name, v, output=True), None, 1)
                source, offset = self._lies(name, copied.get(name))
                to = _Foreign(b.address, v.nbytes)
                device.run((device.copy_call(to, source, v.nbytes, 0, offset),), stream)
            if stream is None:
                device.synchronize()
            return without_hidden(self.plan.graph.checks, results)

    def _lies(self, name: str, place: Place | None) -> tuple[Memory, int]:
        """Where an output lies on the device when all kernels have run."""
        if place is None:
            return self._returned[name], 0
        if place.kind == "constant":
            return self._uploaded(self.plan.graph.constants[place.name]), place.offset
        return self._held_by(place), place.offset


def are_on_device(feeds: Any) -> bool:
    """Whether all are tensors on a GPU."""
    values = list(feeds.values()) if hasattr(feeds, "values") else []
    return bool(values) and all(
        type(v) is not np.ndarray
        and hasattr(v, "__dlpack_device__")
        and not is_on_host(int(v.__dlpack_device__()[0]))
        for v in values
    )


def _parameter(name: str, value: Any, output: bool) -> Parameter:
    return Parameter(name, value.shape, value.dtype, output)
