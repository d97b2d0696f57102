"""DeviceKernel: the Kernel of an artifact for a GPU. OpenDeviceKernel: one whose sizes are open,
which the shapes of the arrays of a call determine. DevicePortfolio: several of them, each for the
sizes that it is fastest at.

NumPy arrays are copied to the device and back. Tensors on the device (PyTorch, CuPy, anything with
DLPack) are used in place, on the caller's stream; then a call returns when its launches are
enqueued, as calls of those libraries do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, BuildError
from tilesmith.base.given import checks_given
from tilesmith.codegen.artifact import Artifact, Parameter
from tilesmith.runtime.arrays import (
    Array,
    convert,
    convert_output,
    dlpack_device,
    empty,
    is_on_host,
    is_torch,
    reject,
    torch_tensor,
)
from tilesmith.runtime.devices.open import MAX_RECORDED, Call, Device, Memory, Module, open_device
from tilesmith.runtime.devices.tensors import (
    ON_CUDA,
    callers_stream,
    device_tensor,
    new_tensor,
    stream_handle,
)
from tilesmith.runtime.dispatch import Region, choice_of, member_of
from tilesmith.runtime.entry_at import entry_at
from tilesmith.runtime.kernel import AS_GIVEN, Kernel, OfOpenSizes, Origin, Timing, random_array
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel, layouts_of

_MAX_FREE_FRAMES = 4


@dataclass(slots=True)
class Frame:
    """Memory on the device for one call: copies of host arrays, by parameter, and the workspace."""

    scratch: Memory | None
    copies: dict[int, Memory] = field(default_factory=dict)


@dataclass(slots=True)
class _Bound:
    """A call on given arrays."""

    call: Call
    frame: Frame
    writes: list[tuple[Memory, Array]]  # host arrays to copy to the device, ahead
    reads: list[tuple[Memory, Array]]  # and from there, afterwards
    stream: int | None  # None: the device's own
    waits: bool  # whether the results must be there when the call returns
    result: Any
    held: list[Any]  # tensors of others

    def run(self, device: Device) -> Any:
        for memory, array in self.writes:
            device.write(memory, array)
        device.run((self.call,), self.stream)
        if self.waits:
            device.synchronize(self.stream)
        for memory, array in self.reads:
            device.read(memory, array)
        return self.result


class DeviceKernel(Kernel):
    """Call it with one array per input; it returns the output, or a tuple of outputs, as NumPy
    arrays, or as tensors if an input is one, on the device if one is. `out=` gives the memory to
    write to.
    """

    def __init__(self, artifact: Artifact, origin: Origin = AS_GIVEN) -> None:
        # Code for a device that is not here can be read, so nothing is loaded before a call.
        self.artifact, self.origin = artifact, origin
        self._frames: list[Frame] = []
        self._scratch: dict[int, Memory] = {}  # of calls on tensors, by stream
        self._outgrown: list[Memory] = []
        self._lock = threading.Lock()

    @cached_property
    def device(self) -> Device:
        try:
            return open_device(self.artifact.target)
        except BuildError as error:
            raise BuildError(f"{self.name!r} cannot run here: {error}") from None

    @property
    def module(self) -> Module:
        with self._lock:
            return self._module

    @cached_property
    def _module(self) -> Module:
        return self.device.load(self.artifact)

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None) -> Any:
        bound = self._prepare(arrays, out, stream)
        result = bound.run(self.device)
        if bound.waits or bound.stream is None:
            self._release(bound.frame)
        return result

    def bind(self, *arrays: Any, out: Any = None, stream: Any = None) -> Callable[[], Any]:
        """A function without arguments that runs this kernel on these arrays, which are checked
        only here. Host arrays are copied in every call.
        """
        bound, device = self._prepare(arrays, out, stream, alone=True), self.device
        return lambda: bound.run(device)

    @property
    def entry_address(self) -> int:
        raise BuildError(f"{self.name!r} runs on a GPU; it has no address in this process")

    def raw(self, addresses: Sequence[Any]) -> None:
        """Enqueues a call on unchecked pointers on the device, inputs first, on the device's own
        stream: addresses (CUDA), or memory objects (OpenCL).
        """
        device = self.device
        device.run((device.call(self.module, 0, addresses, self._stream_scratch(None)),))

    def time(
        self, *arrays: Any, out: Any = None, repeats: int = 10, min_seconds: float = 0.01
    ) -> Timing:
        """The time on the device, without copies: `repeats` samples of at least `min_seconds` each.
        Calls are recorded and enqueued together (a CUDA graph), because enqueueing one takes longer
        than many kernels do.
        """
        if repeats < 1:
            raise ArgumentError(f"repeats is {repeats}; at least one sample is needed")
        if not arrays:
            arrays = tuple(random_array(p) for p in self.artifact.inputs)
        device, bound = self.device, self._prepare(arrays, out, None, alone=True)
        for memory, array in bound.writes:
            device.write(memory, array)
        device.seconds((bound.call,))  # warm-up
        (one,) = device.seconds((bound.call,))
        count = max(1, min(MAX_RECORDED, int(min_seconds / max(one, 1e-6))))
        recorded = device.record([bound.call] * count)
        per_run = recorded.seconds()
        runs = max(1, int(min_seconds / max(per_run, 1e-7)) + (min_seconds > per_run))

        def sample() -> float:
            return sum(recorded.seconds() for _ in range(runs)) / (runs * count)

        return Timing(tuple(sample() for _ in range(repeats)), runs * count)

    def _prepare(
        self, arrays: tuple[Any, ...], out: Any, stream: Any, alone: bool = False
    ) -> _Bound:
        """`alone`: memory is not taken from other calls of this kernel."""
        inputs, outputs = self.artifact.inputs, self.artifact.outputs
        if len(arrays) != len(inputs):
            self._refuse_count(len(arrays))
        given = None if out is None else self._outputs_of(out)
        device = self.device
        on_device = [a for a in (*arrays, *(given or ())) if self._is_on_device(a)]
        handle = None if stream is None else stream_handle(stream)
        theirs = callers_stream(on_device, device.target.device)
        if handle is None:
            handle = theirs
        # A library that works on another stream than the kernel is told which one to wait for.
        told = None if theirs is not None and theirs == handle else self._own_stream(handle)
        results = self._new_outputs(on_device, is_torch(arrays)) if given is None else given
        frame = self._frame(handle, bool(on_device), alone)
        pointers: list[Any] = []
        held: list[Any] = [arrays, out]
        spans: list[tuple[int, int]] = []
        writes: list[tuple[Memory, Array]] = []
        reads: list[tuple[Memory, Array]] = []
        for k, (a, p) in enumerate(zip((*arrays, *results), (*inputs, *outputs), strict=True)):
            if self._is_on_device(a):
                b = device_tensor(a, p, told, device.alignment)
                held.append(b)
                pointers.append(b.address)
                spans.append((b.address, b.address + p.nbytes))
                continue
            host = self._host_array(a, p)
            start = host.ctypes.data
            spans.append((start, start + p.nbytes))
            memory = frame.copies.get(k)
            if memory is None:
                memory = frame.copies[k] = device.allocate(p.nbytes)
            (reads if p.output else writes).append((memory, host))
            pointers.append(memory.at(0, p.nbytes))
        if given is not None:
            self._require_apart(spans)
        call = device.call(self.module, 0, pointers, frame.scratch)
        result = results[0] if len(results) == 1 else tuple(results)
        # Without a stream of the caller's, whoever uses the results cannot wait for them.
        waits = bool(on_device) and (bool(reads) or handle is None)
        return _Bound(call, frame, writes, reads, handle, waits, result, held)

    def _own_stream(self, handle: int | None) -> int:
        """As DLPack numbers streams: 1 is the default one."""
        own = getattr(self.device, "stream", 0) if handle is None else handle
        return own or 1

    def _is_on_device(self, a: Any) -> bool:
        if type(a) is np.ndarray or not hasattr(a, "__dlpack_device__"):
            return False
        p = self.artifact.parameters[0]
        kind, index = dlpack_device(a, p)
        if is_on_host(kind):
            return False
        here = self.device.target
        if here.kind != "cuda" or kind not in ON_CUDA or index != here.device:
            what = f"device {index} of kind {kind} of DLPack's"
            raise ArgumentError(
                f"{self.name!r} runs on {here.model} (device {here.device}) and got a "
                f"{type(a).__name__} on {what}; move it there, or to the processor's memory"
            )
        return True

    def _host_array(self, a: Any, p: Parameter) -> Array:
        array = a if type(a) is np.ndarray else (convert_output if p.output else convert)(a, p)
        flags = array.flags
        fits = array.shape == p.shape and array.dtype == p.dtype.numpy and flags.c_contiguous
        if not fits or not flags.aligned or (p.output and not flags.writeable):
            reject(array, p, a)
        return array

    def _new_outputs(self, on_device: list[Any], torch: bool) -> tuple[Any, ...]:
        outputs = self.artifact.outputs
        if on_device:
            index = self.device.target.device
            return tuple(new_tensor(on_device[0], p, index) for p in outputs)
        made = (empty(p.shape, p.dtype.numpy, p.nbytes)[0] for p in outputs)
        return tuple(map(torch_tensor, made) if torch else made)

    def _require_apart(self, spans: Sequence[tuple[int, int]]) -> None:
        """The code is compiled on the assumption that outputs overlap no other array."""
        parameters = self.artifact.parameters
        for k in range(len(self.artifact.inputs), len(parameters)):
            begin, end = spans[k]
            for i, (start, stop) in enumerate(spans[:k]):
                if start < end and begin < stop:
                    self._refuse_overlap(parameters[k], parameters[i])

    def _frame(self, stream: int | None, on_device: bool, alone: bool) -> Frame:
        if on_device and not alone:
            # Calls on one stream run one after the other, so they may share a workspace.
            return Frame(self._stream_scratch(stream))
        try:
            if not alone:
                return self._frames.pop()
        except IndexError:
            pass
        return Frame(self._new_scratch())

    def _release(self, frame: Frame) -> None:
        if frame.copies and len(self._frames) < _MAX_FREE_FRAMES:
            self._frames.append(frame)

    def _new_scratch(self) -> Memory | None:
        nbytes = self.artifact.workspace_nbytes
        return self.device.allocate(nbytes) if nbytes else None

    def _stream_scratch(self, stream: int | None) -> Memory | None:
        key = -1 if stream is None else stream
        if key not in self._scratch:
            memory = self._new_scratch()
            if memory is None:
                return None
            self._scratch[key] = memory
        return self._scratch[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceKernel, (self.artifact, self.origin)


@checks_given
class OpenDeviceKernel(OfOpenSizes[DeviceKernel], DeviceKernel):
    """A kernel on a GPU that takes arrays of any size: dimensions that the Function was written
    with as `ts.size(...)` may have another length in every call. The blocks of its launches are
    counted on the host. Otherwise it is like any DeviceKernel.

    Example:

        n = ts.size("n")
        X = ts.placeholder((n, 64), name="X")
        kernel = ts.build(ts.function([X, ts.ops.softmax(X)]), ts.opencl())
        out = kernel(np.ones((17, 64), np.float32))
    """

    most_shapes = 256

    def __init__(self, artifact: Artifact, origin: Origin = AS_GIVEN) -> None:
        super().__init__(artifact, origin)
        self._open_all()

    def _sized(self, sizes: Mapping[str, int]) -> DeviceKernel:
        return _SizedDeviceKernel(self, sizes)

    def _for(self, arrays: Sequence[Any]) -> DeviceKernel:
        if len(arrays) != len(self.artifact.inputs):
            self._refuse_count(len(arrays))
        shapes = []
        for a, p in zip(arrays, self.artifact.inputs, strict=True):
            shape = a.shape if hasattr(a, "shape") else convert(a, p).shape
            shapes.append(tuple(map(int, shape)))
        return self.sized(*shapes)

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None) -> Any:
        return self._for(arrays)(*arrays, out=out, stream=stream)

    def bind(self, *arrays: Any, out: Any = None, stream: Any = None) -> Callable[[], Any]:
        return self._for(arrays).bind(*arrays, out=out, stream=stream)

    def raw(self, addresses: Sequence[Any]) -> None:
        names = ", ".join(self.open_sizes)
        raise BuildError(f"{self.name!r} has the open sizes {names}; call sized(...).raw")

    def time(
        self, *arrays: Any, out: Any = None, repeats: int = 10, min_seconds: float = 0.01
    ) -> Timing:
        self._require_arrays(arrays)
        kernel = self._for(arrays)
        return kernel.time(*arrays, out=out, repeats=repeats, min_seconds=min_seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenDeviceKernel, (self.artifact, self.origin)


class _SizedDeviceKernel(DeviceKernel):
    """An OpenDeviceKernel for certain sizes. All of them share the code on the device, and the
    memory of calls.
    """

    def __init__(self, whole: OpenDeviceKernel, sizes: Mapping[str, int]) -> None:
        entry = entry_at(whole.artifact, sizes)
        fixed = Artifact(
            whole.artifact.name, whole.artifact.target, (entry,), whole.artifact.source,
            whole.artifact.code, language=whole.artifact.language,
        )  # fmt: skip
        super().__init__(fixed, whole.origin)
        self._whole = whole

    @cached_property
    def _module(self) -> Module:
        return self._whole.module.sized(self.artifact.entries[0])

    def _frame(self, stream: int | None, on_device: bool, alone: bool) -> Frame:
        if on_device or alone:
            return super()._frame(stream, on_device, alone)
        try:
            frame = self._whole._frames.pop()
        except IndexError:
            return Frame(self._new_scratch())
        need = self.artifact.workspace_nbytes
        if need and (frame.scratch is None or frame.scratch.nbytes < need):
            frame.scratch = self._new_scratch()
        for k, p in enumerate(self.artifact.parameters):
            if k in frame.copies and frame.copies[k].nbytes < p.nbytes:
                del frame.copies[k]
        return frame

    def _release(self, frame: Frame) -> None:
        self._whole._release(frame)

    def _stream_scratch(self, stream: int | None) -> Memory | None:
        key, shared = -1 if stream is None else stream, self._whole._scratch
        known, need = shared.get(key), self.artifact.workspace_nbytes
        if need and (known is None or known.nbytes < need):
            if known is not None:  # a graph that was captured at a smaller size may refer to it
                self._whole._outgrown.append(known)
                need = max(need, 2 * known.nbytes)
            shared[key] = known = self.device.allocate(need)
        return known if need else None


@checks_given
class DevicePortfolio(OpenDeviceKernel):
    """A kernel with open sizes that is several kernels: `members`, of which `regions` says which
    one runs at which sizes, and the first one runs at sizes outside of `limits`.
    """

    def __init__(
        self,
        members: Sequence[OpenDeviceKernel],
        regions: Sequence[Region],
        limits: Mapping[str, tuple[int, int]],
    ) -> None:
        first = members[0]
        if any(layouts_of(m) != layouts_of(first) for m in members):
            raise BuildError(f"the kernels of {first.name!r} take inputs in different layouts")
        super().__init__(first.artifact, first.origin)
        self.members, self.regions, self.limits = tuple(members), tuple(regions), dict(limits)
        self.choice = choice_of(self.regions, self.limits)

    def member_for(self, sizes: Mapping[str, int]) -> int:
        """The number of the kernel that runs at these sizes."""
        return member_of(self.choice, sizes)

    def _sized(self, sizes: Mapping[str, int]) -> DeviceKernel:
        member = self.members[self.member_for(sizes)]
        return _SizedDeviceKernel(member, sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return DevicePortfolio, (self.members, self.regions, self.limits)


AnyOpenKernel = OpenKernel | OpenDeviceKernel
AnyPortfolio = PortfolioKernel | DevicePortfolio


def portfolio_kernel(
    members: Sequence[AnyOpenKernel], regions: Sequence[Region],
    limits: Mapping[str, tuple[int, int]],
) -> AnyPortfolio:  # fmt: skip
    """The kernel that dispatches to kernels of one kind of target."""
    on_device = [m for m in members if isinstance(m, OpenDeviceKernel)]
    if on_device:
        return DevicePortfolio(on_device, regions, limits)
    return PortfolioKernel([m for m in members if isinstance(m, OpenKernel)], regions, limits)


def kernel_of(artifact: Artifact, origin: Origin = AS_GIVEN) -> Kernel:
    """The Kernel of an artifact, whatever its target."""
    is_open = artifact.entries[0].open is not None
    if artifact.target.kind == "cpu":
        return (OpenKernel if is_open else Kernel)(artifact, origin)
    return (OpenDeviceKernel if is_open else DeviceKernel)(artifact, origin)
