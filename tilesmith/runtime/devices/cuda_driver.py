"""NVIDIA's driver: the functions of libcuda that running kernels takes, by ctypes, with errors as
DeviceErrors.

libcuda comes with the driver, so running needs no package. Only generating code does (NVRTC).
`CudaDriver` is what CudaDevice needs of it; tests give it another one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any, Protocol

from tilesmith.base.errors import DeviceError, TargetError
from tilesmith.codegen.artifact import TensorMap

# CUdevice_attribute
MAX_THREADS, WARP_SIZE, MAX_REGISTERS, MULTIPROCESSORS, L2_NBYTES = 1, 10, 12, 16, 38
MAJOR, MINOR, OPT_IN_SHARED_NBYTES = 75, 76, 97
# CUfunction_attribute
LOCAL_NBYTES, NUM_REGISTERS, MAX_DYNAMIC_SHARED_NBYTES = 3, 4, 8

STATIC_SHARED_NBYTES = 48 << 10  # more dynamic shared memory per block must be asked for

_OUT_OF_MEMORY = 2
# Codes after which the context is unusable: what a kernel did wrong while it ran, and lost devices.
_FAULTS = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
# Of those, accesses outside of any allocation or off their boundaries.
ADDRESS_FAULTS = ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS")

# CUtensorMap, and CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_MAP_NBYTES, _MAP_ALIGNMENT = 128, 64
MAP_DTYPES = {"int8": 0, "uint8": 0, "float16": 6, "float32": 11, "bfloat16": 9}
_SWIZZLE_128B, _L2_256B = 3, 3

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads may allocate meanwhile
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream


class CudaDriver(Protocol):
    """Handles and addresses are integers; times are seconds. `arguments` is the address of an array
    of pointers to the arguments.
    """

    def count(self) -> int: ...
    def name(self, device: int) -> str: ...
    def attribute(self, device: int, number: int) -> int: ...
    def context(self, device: int) -> int: ...
    def push(self, context: int) -> None: ...
    def pop(self) -> None: ...
    def allocate(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def write(self, to: int, host: int, nbytes: int, stream: int) -> None: ...
    def read(self, host: int, address: int, nbytes: int, stream: int) -> None: ...
    def copy(self, to: int, address: int, nbytes: int, stream: int) -> None: ...
    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None: ...
    def load(self, code: bytes) -> int: ...
    def unload(self, module: int) -> None: ...
    def function(self, module: int, symbol: str) -> int: ...
    def allow_shared(self, function: int, nbytes: int) -> None: ...
    def function_attribute(self, function: int, number: int) -> int: ...
    def launch(
        self, function: int, grid: int, threads: int, shared: int, stream: int, arguments: int
    ) -> None: ...
    def launch_early(
        self, function: int, grid: int, threads: int, shared: int, stream: int, arguments: int
    ) -> None: ...
    def tensor_map(self, tensor: TensorMap, address: int) -> Any: ...
    def create_stream(self) -> int: ...
    def synchronize(self, stream: int) -> None: ...
    def begin_capture(self, stream: int) -> None: ...
    def end_capture(self, stream: int) -> int: ...
    def launch_graph(self, graph: int, stream: int) -> None: ...
    def free_graph(self, graph: int) -> None: ...
    def create_event(self) -> int: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait(self, event: int) -> None: ...
    def elapsed(self, begin: int, end: int) -> float: ...


@contextmanager
def current(driver: CudaDriver, context: int) -> Iterator[None]:
    """Makes a context current in this thread for a while, and the one before it afterwards: other
    libraries in this process follow the current context, too.
    """
    driver.push(context)
    try:
        yield
    finally:
        driver.pop()


_POINTER = ctypes.POINTER(c_void_p)
# The result of each function is a code. Names that end in _v2 are those that cuda.h stands for.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, ctypes.POINTER(c_char_p)),
    "cuGetErrorString": (c_int, ctypes.POINTER(c_char_p)),
    "cuDeviceGetCount": (ctypes.POINTER(c_int),),
    "cuDeviceGet": (ctypes.POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (ctypes.POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuMemAlloc_v2": (ctypes.POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuModuleLoadData": (_POINTER, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_POINTER, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuFuncGetAttribute": (ctypes.POINTER(c_int), c_int, c_void_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (c_void_p, c_int, c_uint, c_uint64, *(c_void_p,) * 4, *(c_int,) * 4),
    "cuStreamCreate": (_POINTER, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _POINTER),
    "cuThreadExchangeStreamCaptureMode": (ctypes.POINTER(c_int),),
    "cuGraphInstantiateWithFlags": (_POINTER, c_void_p, ctypes.c_ulonglong),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuEventCreate": (_POINTER, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (ctypes.POINTER(c_float), c_void_p, c_void_p),
}


class _Config(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = (
        *((name, c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and a value that takes 64 bytes."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_int * 16))


_EARLY = _Attribute(6, 0, (c_int * 16)(1))  # PROGRAMMATIC_STREAM_SERIALIZATION


class LibCuda:
    """The driver of this machine. `path` names the library."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        library = ctypes.CDLL(path)
        self._calls: dict[str, Any] = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
            self._calls[name] = function
        self._call("cuInit", 0)
        self._launch = self._calls["cuLaunchKernel"]

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._calls[name](*arguments)
        if code:
            self._fail(name, code)

    def _fail(self, name: str, code: int) -> None:
        texts = []
        for ask in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            self._calls[ask](code, byref(text))
            texts.append(text.value.decode() if text.value else f"error {code}")
        kind = "memory" if code == _OUT_OF_MEMORY else "fault" if code in _FAULTS else "refused"
        raise DeviceError(f"{texts[0]} ({texts[1]}) from {name}", kind)

    def _handle(self, name: str, *arguments: Any) -> int:
        out = c_void_p()
        self._call(name, byref(out), *arguments)
        return out.value or 0

    def count(self) -> int:
        out = c_int()
        self._call("cuDeviceGetCount", byref(out))
        return out.value

    def _device(self, index: int) -> int:
        out = c_int()
        self._call("cuDeviceGet", byref(out), index)
        return out.value

    def name(self, device: int) -> str:
        out = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", out, len(out), self._device(device))
        return out.value.decode()

    def attribute(self, device: int, number: int) -> int:
        out = c_int()
        self._call("cuDeviceGetAttribute", byref(out), number, self._device(device))
        return out.value

    def context(self, device: int) -> int:
        """The primary context, which PyTorch and others share. The process keeps it."""
        return self._handle("cuDevicePrimaryCtxRetain", self._device(device))

    def push(self, context: int) -> None:
        self._call("cuCtxPushCurrent_v2", context)

    def pop(self) -> None:
        self._handle("cuCtxPopCurrent_v2")

    def allocate(self, nbytes: int) -> int:
        out = c_uint64()
        with self._in_any_capture():
            self._call("cuMemAlloc_v2", byref(out), nbytes)
        return out.value

    def free(self, address: int) -> None:
        with self._in_any_capture():
            self._call("cuMemFree_v2", address)

    @contextmanager
    def _in_any_capture(self) -> Iterator[None]:
        """Others in this process may be capturing a graph, as `torch.cuda.graph` does; what this
        thread does to memory would end that, unless it says that it knows.
        """
        mode = c_int(_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", byref(mode))

    def write(self, to: int, host: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync_v2", to, host, nbytes, stream)

    def read(self, host: int, address: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync_v2", host, address, nbytes, stream)

    def copy(self, to: int, address: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoDAsync_v2", to, address, nbytes, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", address, byte, nbytes, stream)

    def load(self, code: bytes) -> int:
        return self._handle("cuModuleLoadData", code)

    def unload(self, module: int) -> None:
        self._call("cuModuleUnload", module)

    def function(self, module: int, symbol: str) -> int:
        return self._handle("cuModuleGetFunction", module, symbol.encode())

    def allow_shared(self, function: int, nbytes: int) -> None:
        self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_NBYTES, nbytes)

    def function_attribute(self, function: int, number: int) -> int:
        out = c_int()
        self._call("cuFuncGetAttribute", byref(out), number, function)
        return out.value

    def launch(
        self, function: int, grid: int, threads: int, shared: int, stream: int, arguments: int
    ) -> None:
        code = self._launch(function, grid, 1, 1, threads, 1, 1, shared, stream, arguments, None)
        if code:
            self._fail("cuLaunchKernel", code)

    def launch_early(
        self, function: int, grid: int, threads: int, shared: int, stream: int, arguments: int
    ) -> None:
        """Launches a function that waits itself until the launch before it is complete."""
        config = _Config(grid, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(_EARLY), 1)
        self._call("cuLaunchKernelEx", byref(config), function, arguments, None)

    def tensor_map(self, tensor: TensorMap, address: int) -> Any:
        """The description of a tensor that a kernel takes by value, as a ctypes object."""
        room = (ctypes.c_ubyte * (_MAP_NBYTES + _MAP_ALIGNMENT))()
        start = -ctypes.addressof(room) % _MAP_ALIGNMENT
        out = (ctypes.c_ubyte * _MAP_NBYTES).from_buffer(room, start)
        rank = len(tensor.shape)
        self._call(
            "cuTensorMapEncodeTiled", byref(out), MAP_DTYPES[tensor.dtype], rank, address,
            (c_uint64 * rank)(*tensor.shape), (c_uint64 * rank)(*tensor.strides),
            (c_uint * rank)(*tensor.box), (c_uint * rank)(*tensor.steps),
            0, _SWIZZLE_128B, _L2_256B, 0,
        )  # fmt: skip
        return out

    def create_stream(self) -> int:
        return self._handle("cuStreamCreate", _NON_BLOCKING)

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture_v2", stream, _RELAXED)

    def end_capture(self, stream: int) -> int:
        """The instantiated graph."""
        out = c_void_p()
        self._call("cuStreamEndCapture", stream, byref(out))
        try:
            return self._handle("cuGraphInstantiateWithFlags", out, 0)
        finally:
            self._call("cuGraphDestroy", out)

    def launch_graph(self, graph: int, stream: int) -> None:
        self._call("cuGraphLaunch", graph, stream)

    def free_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", graph)

    def create_event(self) -> int:
        return self._handle("cuEventCreate", 0)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def elapsed(self, begin: int, end: int) -> float:
        out = c_float()
        self._call("cuEventElapsedTime", byref(out), begin, end)
        return out.value * 1e-3


@cache
def cuda_driver() -> CudaDriver:
    """Raises a TargetError where there is no driver or no device."""
    try:
        return LibCuda()
    except OSError:
        raise TargetError(
            "there is no CUDA driver here (libcuda.so.1 cannot be loaded); install NVIDIA's driver,"
            " or use ts.opencl() or ts.cpu()"
        ) from None
    except AttributeError as error:
        raise TargetError(
            f"the CUDA driver here is too old: {error}; CUDA 12 or newer is needed"
        ) from None
    except DeviceError as error:
        raise TargetError(f"the CUDA driver does not start: {error}") from None
