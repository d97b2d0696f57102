"""A CUDA driver in NumPy: its memory is bytes, its modules are functions of Python by name, and it
can be told to fail. Calls are written down.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tilesmith.base.errors import DeviceError
from tilesmith.codegen.artifact import TensorMap

# What a kernel of a fake module is: called with the arrays of bytes behind its arguments.
Function = Callable[..., None]
ATTRIBUTES = {
    1: 1024, 10: 32, 12: 65536, 16: 132, 38: 60 << 20, 75: 9, 76: 0, 97: 232448,
}  # fmt: skip


class FakeCuda:
    def __init__(self, functions: dict[str, Function] | None = None, count: int = 1) -> None:
        self.functions = functions or {}
        self.devices = count
        self.calls: list[tuple[Any, ...]] = []
        self.memory: dict[int, Any] = {}
        self.handles: dict[int, Any] = {}
        self.contexts: list[int] = []
        self.capturing: list[Any] | None = None
        self.fail: DeviceError | None = None  # raised when the device is waited for
        self.fail_when = ""  # "wait": only where an event is waited for
        self.clock = 0.0
        self.times: dict[int, float] = {}
        self._next = 0x1000

    def _handle(self, what: Any) -> int:
        self._next += 16
        self.handles[self._next] = what
        return self._next

    def count(self) -> int:
        return self.devices

    def name(self, device: int) -> str:
        return "NVIDIA Pretend"

    def attribute(self, device: int, number: int) -> int:
        return ATTRIBUTES[number]

    def context(self, device: int) -> int:
        return self._handle(("context", device))

    def push(self, context: int) -> None:
        self.contexts.append(context)

    def pop(self) -> None:
        self.contexts.pop()

    def allocate(self, nbytes: int) -> int:
        assert self.contexts, "no context is current"
        # Real memory, so that DLPack tensors of tests and these are alike.
        raw = np.full(nbytes + 512, 0xCD, np.uint8)
        at = -(-raw.ctypes.data // 256) * 256
        self.memory[at] = raw
        self.calls.append(("allocate", nbytes))
        return at

    def free(self, address: int) -> None:
        del self.memory[address]
        self.calls.append(("free",))

    def _do(self, stream: int, work: Callable[[], None]) -> None:
        assert self.contexts, "no context is current"
        if self.capturing is not None:
            self.capturing.append(work)
        else:
            work()

    def write(self, to: int, host: int, nbytes: int, stream: int) -> None:
        self.calls.append(("write", nbytes))
        self._do(stream, lambda: ctypes.memmove(to, host, nbytes))

    def read(self, host: int, address: int, nbytes: int, stream: int) -> None:
        self.calls.append(("read", nbytes))
        self._do(stream, lambda: ctypes.memmove(host, address, nbytes))

    def copy(self, to: int, address: int, nbytes: int, stream: int) -> None:
        self.calls.append(("copy", nbytes, stream))
        self._do(stream, lambda: ctypes.memmove(to, address, nbytes))

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self._do(stream, lambda: ctypes.memset(address, byte, nbytes))

    def load(self, code: bytes) -> int:
        if code == b"foreign":
            raise DeviceError("CUDA_ERROR_NO_BINARY_FOR_GPU (...) from cuModuleLoadData")
        self.calls.append(("load",))
        return self._handle("module")

    def unload(self, module: int) -> None:
        self.calls.append(("unload",))

    def function(self, module: int, symbol: str) -> int:
        return self._handle(self.functions[symbol])

    def allow_shared(self, function: int, nbytes: int) -> None:
        if nbytes > ATTRIBUTES[97]:
            raise DeviceError("CUDA_ERROR_INVALID_VALUE (...) from cuFuncSetAttribute")
        self.calls.append(("shared", nbytes))

    def function_attribute(self, function: int, number: int) -> int:
        return 32

    def launch_early(
        self, function: int, grid: int, threads: int, shared: int, stream: int, arguments: int
    ) -> None:
        self.calls.append(("early",))
        self.launch(function, grid, threads, shared, stream, arguments)

    def launch(
        self, function: int, grid: int, threads: int, shared: int, stream: int, arguments: int
    ) -> None:
        self.calls.append(("launch", grid, threads, shared, stream))
        work = self.handles[function]
        count = work.__code__.co_argcount
        pointers = (ctypes.c_void_p * count).from_address(arguments)
        values = [ctypes.c_uint64.from_address(p).value for p in pointers]

        def run() -> None:
            self.clock += 1e-5
            work(*values)

        self._do(stream, run)

    def tensor_map(self, tensor: TensorMap, address: int) -> Any:
        """The kernel gets the address in place of the description."""
        assert self.contexts, "no context is current"
        self.calls.append(("tensor_map", tensor.buffer))
        return ctypes.c_uint64(address)

    def create_stream(self) -> int:
        return self._handle("stream")

    def synchronize(self, stream: int) -> None:
        self.calls.append(("synchronize", stream))
        if self.fail is not None and not self.fail_when:
            raise self.fail

    def begin_capture(self, stream: int) -> None:
        self.capturing = []

    def end_capture(self, stream: int) -> int:
        assert self.capturing is not None
        graph, self.capturing = self._handle(self.capturing), None
        self.calls.append(("graph", len(self.handles[graph])))
        return graph

    def launch_graph(self, graph: int, stream: int) -> None:
        self.calls.append(("launch graph", stream))
        for work in self.handles[graph]:
            work()

    def free_graph(self, graph: int) -> None:
        self.calls.append(("free graph",))

    def create_event(self) -> int:
        return self._handle("event")

    def record(self, event: int, stream: int) -> None:
        self.times[event] = self.clock

    def wait(self, event: int) -> None:
        if self.fail is not None:
            raise self.fail

    def elapsed(self, begin: int, end: int) -> float:
        return self.times[end] - self.times[begin]


def floats(address: int, count: int) -> Any:
    """The floats at an address, to read and to write."""
    return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32)


class Tensor:
    """A tensor on the pretended device, as DLPack hands it out. It notes the stream it is told."""

    def __init__(self, data: Any, index: int = 0, offset: int = 0) -> None:
        raw = np.empty(data.nbytes + 512, np.uint8)
        at = -(-raw.ctypes.data // 256) * 256 - raw.ctypes.data + offset
        self.array = raw[at : at + data.nbytes].view(data.dtype).reshape(data.shape)
        self.array[...] = data
        self.index, self.streams = index, list[Any]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.index

    def __dlpack__(self, stream: Any = None, **settings: Any) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__(**settings)
