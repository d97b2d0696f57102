"""`Kernel`: the callable that a build returns. It checks arrays against the parameters and calls
the machine code.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy import ndarray

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, BuildError
from tilesmith.base.given import checks_given
from tilesmith.codegen.artifact import Artifact, OpenSizes, Parameter, obstacle
from tilesmith.ir.open_shapes import sizes_of
from tilesmith.ir.pack import packed
from tilesmith.runtime.arrays import (
    Array,
    address_of,
    at_a_line,
    convert,
    convert_output,
    empty,
    is_torch,
    reject,
    torch_tensor,
)
from tilesmith.runtime.export.library import Library, kernel_library
from tilesmith.runtime.export.write import Exported, write_library


# `Timing`: the samples of `kernel.time`.
@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, one per sample; a sample is the mean over `calls` consecutive calls."""

    samples: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)

    def __str__(self) -> str:
        return (
            f"{self.median * 1e6:.3f} us (best {self.best * 1e6:.3f}, {len(self.samples)} samples "
            f"of {self.calls} calls)"
        )


# `Origin`: where the schedule of a kernel comes from.
@dataclass(frozen=True, slots=True)
class Origin:
    """Where a kernel's schedule comes from: a "record" of a database, a "pack" of records of other
    machines, a "draft" by the analytic score, a "schedule" as given, or the "naive" loop nest if
    nothing else worked.
    """

    kind: str
    seconds: float | None = None  # the record's time
    why: str = ""
    record: str = ""  # the record's key: a digest of its task and its trace
    # The trace as JSON; empty for the plain loop nest, and where it is not known.
    schedule: str = field(default="", repr=False)

    def __str__(self) -> str:
        match self.kind:
            case "record":
                seconds = self.seconds or 0.0
                text = f"the best record, {seconds * 1e6:.4g} us"
            case "pack":
                text = "the schedule of a pack"
            case "draft":
                text = "a draft by the analytic score"
            case "naive":
                text = "the plain loop nest"
            case _:
                text = "the schedule as given"
        return f"{text} ({self.why})" if self.why else text


AS_GIVEN = Origin("schedule")


_MAX_FREE_FRAMES = 8


class _Frame:
    """The memory of one call: the array of pointers, and the workspace."""

    __slots__ = ("address", "pointers", "workspace", "workspace_address")

    def __init__(self, num_parameters: int, workspace_nbytes: int) -> None:
        self.pointers: Any = (ctypes.c_void_p * num_parameters)()
        self.address = ctypes.addressof(self.pointers)
        shape = (workspace_nbytes,)
        self.workspace, self.workspace_address = empty(shape, np.dtype(np.uint8), shape[0])


# (shape, dtype, address bits that must be 0, nbytes, the parameter itself)
_Expected = tuple[tuple[int, ...], np.dtype[Any], int, int, Parameter]


def expected_of(p: Parameter) -> _Expected:
    return p.shape, p.dtype.numpy, p.dtype.numpy.alignment - 1, p.nbytes, p


@checks_given
class Kernel:
    """A compiled computation: call it with one array per input; it returns the output, or a tuple
    of outputs. Arrays are NumPy's, or anything with `__dlpack__`; of PyTorch's tensors, outputs are
    such tensors, too.

    `out=` gives the memory to write to. It may be called from several threads at once, and releases
    the GIL while it computes. `origin` says where the schedule comes from.

    Example:

        kernel = ts.build(func, ts.cpu(num_cores=1))
        out = kernel(a, b)
        kernel(a, b, out=out)
        print(kernel.time(a, b).median, len(kernel.source))
    """

    def __init__(
        self, artifact: Artifact, origin: Origin = AS_GIVEN, *, threads: int | None = None
    ) -> None:
        """`threads` bounds those of a call; by default they are the cores of the target."""
        self.artifact, self.origin = artifact, origin
        # Looked up once, because a call takes only microseconds.
        self._inputs = [expected_of(p) for p in artifact.inputs]
        self._outputs = [expected_of(p) for p in artifact.outputs]
        self._nbytes = [p.nbytes for p in artifact.parameters]
        self._free: list[_Frame] = []
        self._sizes: tuple[int, ...] = ()  # of an open kernel, behind the pointers
        self._checks = bool(artifact.checks)
        # Code for another machine can be read, but not called.
        self._obstacle = obstacle(artifact)
        if self._obstacle is None:
            # Imported late, here and below: `import tilesmith` must not load LLVM.
            from tilesmith.runtime.loader import load

            self._library = load(artifact, threads)
            self._entry = self._library.addresses[artifact.symbol]
            signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
            self._run = signature(self._entry)

    def _run_checked(self, frame: _Frame) -> None:
        """Raises an ArgumentError for the first index check that failed."""
        results = frame.workspace[: 16 * len(self.artifact.checks)].view(np.int64).reshape(-1, 2)
        results[...] = 0
        self._run(frame.address, frame.workspace_address)
        for check, (outside, index) in zip(self.artifact.checks, results.tolist(), strict=True):
            if outside:
                raise ArgumentError(
                    f"{self.name!r} reads {check.buffer} at {index} in dimension "
                    f"{check.dimension}, which has {check.extent} elements"
                )

    @property
    def name(self) -> str:
        """The name of the Function."""
        return self.artifact.name

    @property
    def source(self) -> str:
        """The text that the back end generated: LLVM IR, CUDA C, OpenCL C, or the language of your
        own back end.
        """
        self._require_source("source")
        return self.artifact.source

    @cached_property
    def assembly(self) -> str:
        """The machine code as text."""
        from tilesmith.codegen.llvm.compiler import assembly

        self._require_source("assembly")
        if self.artifact.language != "llvm":
            raise BuildError(
                f"{self.name!r} has no assembly: its source is {self.artifact.language}"
            )
        return assembly(self.artifact)

    def _require_source(self, what: str) -> None:
        if self.artifact.code and not self.artifact.source:
            raise BuildError(
                f"{self.name!r} is of a saved model, which has machine code only; compile the "
                f"model to read its {what}"
            )

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        pointers, result, _held = self._bind(arrays, out)
        self._raw(pointers)
        return result

    def bind(self, *arrays: Any, out: Any = None) -> Callable[[], Any]:
        """A function without arguments that runs this kernel on these arrays. They are checked only
        here, so a call costs a fraction of a microsecond. Two bound functions may run at the same
        time, but one must not run twice at once, because it has a single workspace.
        """
        pointers, result, held = self._bind(arrays, out)
        frame = self._new_frame()
        frame.pointers[:] = [*pointers, *self._sizes]
        run, address, workspace = self._run, frame.address, frame.workspace_address
        kept = (self, frame, arrays, held)  # keeps the memory behind the addresses alive
        if self._checks:

            def checked_call() -> Any:
                self._run_checked(frame)
                return result

            checked_call.__dict__["kept"] = kept
            return checked_call

        def call(_kept: object = kept) -> Any:
            run(address, workspace)
            return result

        return call

    @property
    def entry_address(self) -> int:
        """The address of the machine code, void (void **args, void *workspace), valid while the
        kernel lives. args holds the data pointers, inputs first. The workspace has
        `artifact.workspace_nbytes` bytes and is aligned to 64. Other native code may call it.
        """
        if self._obstacle is not None:
            raise BuildError(self._obstacle)
        return self._entry

    def raw(self, addresses: Sequence[int]) -> None:
        """A call on unchecked addresses, inputs first. Each must be the start of a row-major array
        of its parameter's shape and dtype, aligned to its dtype, and no output may overlap another
        array. Anything else is undefined behaviour, as in C.
        """
        self._raw(addresses)

    def _raw(self, addresses: Sequence[int]) -> None:
        if self._obstacle is not None:
            raise BuildError(self._obstacle)
        free = self._free
        try:  # list.pop and list.append are atomic
            frame = free.pop()
        except IndexError:
            frame = self._new_frame()
        frame.pointers[:] = addresses
        if self._checks:
            self._run_checked(frame)
        else:
            self._run(frame.address, frame.workspace_address)
        if len(free) < _MAX_FREE_FRAMES:
            free.append(frame)

    def pack(self, name: str, array: Any) -> Array:
        """`array` in the layout that this kernel takes for the parameter, which tuning may have
        chosen, from the start of a cache line on. Weights are packed once and used in many calls.
        """
        p = next((p for p in self.artifact.inputs if p.name == name), None)
        if p is None:
            names = ", ".join(p.name for p in self.artifact.inputs) or "none"
            raise ArgumentError(f"{self.name!r} has no input {name!r}; it has {names}")
        a = convert(array, p)
        return at_a_line(a if p.packed is None else packed(p.packed, a, repr(self.name)))

    def time(
        self, *arrays: Any, out: Any = None, repeats: int = 10, min_seconds: float = 0.01
    ) -> Timing:
        """Times calls in a native loop: `repeats` samples of at least `min_seconds` each. Without
        arrays, on random ones.
        """
        from tilesmith.runtime.loader import pool

        if repeats < 1:
            raise ArgumentError(f"repeats is {repeats}; at least one sample is needed")
        if not arrays:
            arrays = tuple(random_array(p) for p in self.artifact.inputs)
        pointers, _result, _held = self._bind(arrays, out)
        frame = self._new_frame()
        frame.pointers[:] = [*pointers, *self._sizes]
        repeat = pool().repeat

        def seconds(calls: int) -> float:
            start = time.perf_counter()
            repeat(self._entry, frame.address, frame.workspace_address, calls)
            return time.perf_counter() - start

        calls = 1
        seconds(calls)  # warm-up: maps memory, starts threads
        while (took := seconds(calls)) < min_seconds:
            # Aims above the goal, at most tenfold, because the first samples are imprecise.
            calls = min(10 * calls, int(1.2 * calls * min_seconds / max(took, 1e-9)) + 1)
        return Timing(tuple(seconds(calls) / calls for _ in range(repeats)), calls)

    def _bind(self, arrays: tuple[Any, ...], out: Any) -> tuple[list[int], Any, list[Array]]:
        """The addresses in calling order, the call's result, and arrays that must outlive it."""
        if self._obstacle is not None:
            raise BuildError(self._obstacle)
        if len(arrays) != len(self._inputs):
            self._refuse_count(len(arrays))
        held: list[Array] = []
        pointers: list[int] = []
        # The lengths were just compared; `strict=` would cost half a microsecond.
        for given, (shape, kind, misaligned, _, p) in zip(arrays, self._inputs):  # noqa: B905
            a = given
            if type(a) is not ndarray:
                a = convert(a, p)
                held.append(a)
            address = address_of(a)
            if (
                a.shape != shape
                or a.dtype != kind
                or not a.flags.c_contiguous
                or address & misaligned
            ):
                reject(a, p, given)
            pointers.append(address)
        if out is not None:
            return self._bind_outputs(out, pointers, held)
        outputs = []
        for shape, kind, _, nbytes, _ in self._outputs:
            array, address = empty(shape, kind, nbytes)
            outputs.append(array)
            pointers.append(address)
        if held and is_torch(arrays):
            outputs = list(map(torch_tensor, outputs))
        return pointers, outputs[0] if len(outputs) == 1 else tuple(outputs), held

    def _bind_outputs(
        self, out: Any, pointers: list[int], held: list[Array]
    ) -> tuple[list[int], Any, list[Array]]:
        given = self._outputs_of(out)
        for one, (shape, kind, misaligned, nbytes, p) in zip(given, self._outputs):  # noqa: B905
            a = one
            if type(a) is not ndarray:
                a = convert_output(a, p)
                held.append(a)
            address = address_of(a)
            flags = a.flags
            if (
                a.shape != shape
                or a.dtype != kind
                or not (flags.c_contiguous and flags.writeable)
                or address & misaligned
            ):
                reject(a, p, one)
            # The code is compiled on the assumption that outputs overlap no other array.
            if nbytes:
                end = address + nbytes
                for i, other in enumerate(pointers):
                    if other < end and address < other + self._nbytes[i] and self._nbytes[i]:
                        self._refuse_overlap(p, self.artifact.parameters[i])
            pointers.append(address)
        return pointers, given[0] if len(given) == 1 else given, held

    def _refuse_count(self, given: int) -> NoReturn:
        inputs = self.artifact.inputs
        names = ", ".join(map(str, inputs)) or "none"
        raise ArgumentError(f"{self.name!r} takes {len(inputs)} arrays ({names}) and got {given}")

    def _outputs_of(self, out: Any) -> tuple[Any, ...]:
        """What `out=` gives, one for each output."""
        given = out if isinstance(out, tuple) else (out,)
        outputs = self.artifact.outputs
        if len(given) != len(outputs):
            names = ", ".join(map(str, outputs))
            raise ArgumentError(
                f"{self.name!r} writes {len(outputs)} arrays ({names}) and out has {len(given)}; "
                "several are passed as a tuple"
            )
        return given

    def _refuse_overlap(self, out: Parameter, other: Parameter) -> NoReturn:
        what = "output" if other.output else "input"
        raise ArgumentError(
            f"out for {out} overlaps the {what} {other}; it needs memory of its own"
        )

    def _new_frame(self) -> _Frame:
        count = len(self.artifact.parameters) + len(self._sizes)
        return _Frame(count, self.artifact.workspace_nbytes)

    def export(
        self,
        folder: str | os.PathLike[str],
        name: str = "",
        *,
        weights: Mapping[str, Any] | None = None,
        shared: bool = True,
        compiler: str = "",
    ) -> Exported:
        """Writes a library that runs the kernel without Python, as Model.export does; `name` is
        that of the kernel by default. Inputs that `weights` has arrays for are kept in the weights
        file, as this kernel wants them packed; a C program passes the others.
        """
        library = self._exported(name or self.name, weights or {})
        return write_library(library, folder, shared, compiler)

    def _exported(self, name: str, weights: Mapping[str, Any]) -> Library:
        return kernel_library(self.artifact, name, weights)

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel, (self.artifact, self.origin)

    def __repr__(self) -> str:
        def show(parameters: Iterable[Parameter]) -> str:
            return ", ".join(map(str, parameters))

        a = self.artifact
        machine = a.cpu or a.target.model or a.target.arch
        origin = "" if self.origin == AS_GIVEN else f", from {self.origin}"
        return f"<Kernel {a.name}({show(a.inputs)}) -> {show(a.outputs)}, for {machine}{origin}>"


def random_array(p: Parameter, seed: int = 0) -> Array:
    """Random data for timing: floats in [0, 1); zeros and ones for other dtypes."""
    rng = np.random.default_rng(seed)
    array, _ = empty(p.shape, p.dtype.numpy, p.nbytes)
    array[...] = (
        rng.random(p.shape, np.float32) if p.dtype.is_float else rng.integers(0, 2, p.shape)
    )
    return array


K = TypeVar("K", bound=Kernel)
Shapes = tuple[tuple[int, ...], ...]


class OfOpenSizes(Kernel, Generic[K]):
    """What kernels with open sizes have in common, on a processor or on a GPU: the shapes of the
    arrays choose a kernel of fixed sizes, `K`, which runs the same code. At most `most_shapes` of
    them are kept.
    """

    most_shapes = 1024  # of about 4 KB each
    _open: OpenSizes
    _known: dict[Shapes, K]

    def _open_all(self) -> None:
        sizes = self.artifact.entries[0].open
        assert sizes is not None
        self._open, self._known = sizes, {}

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The names of the open sizes, in the order in which the code takes them."""
        return tuple(n.removeprefix("#") for n in self._open.names)

    def sizes_of(self, *shapes: tuple[int, ...]) -> dict[str, int]:
        """The sizes that inputs of these shapes have. Raises an ArgumentError if two of them
        contradict each other.
        """
        names = [p.name for p in self.artifact.inputs]
        return sizes_of(self.name, names, self._open.shapes, shapes)

    def sized(self, *shapes: tuple[int, ...]) -> K:
        """The same code for inputs of these shapes, as a kernel of fixed sizes."""
        found = self._known.get(shapes)
        if found is None:
            found = self._sized(self.sizes_of(*shapes))
            if len(self._known) >= self.most_shapes:
                self._known.clear()
            self._known[shapes] = found
        return found

    @abstractmethod
    def _sized(self, sizes: Mapping[str, int]) -> K: ...

    def pack(self, name: str, array: Any) -> Array:
        p = next((p for p in self.artifact.inputs if p.name == name), None)
        if p is not None and p.packed is not None and -1 in p.shape:
            raise ArgumentError(f"{name!r} of {self.name!r} has open sizes and is not packed")
        return super().pack(name, array)

    def _require_arrays(self, arrays: Sequence[Any]) -> None:
        if not arrays:
            raise ArgumentError(
                f"{self.name!r} has the open sizes {', '.join(self.open_sizes)}; give the arrays "
                "to time it with"
            )
