"""`Artifact`: the code that a back end generates from a Function for a Target, with everything
needed to call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from typing import Any, Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType, dtype
from tilesmith.base.errors import BuildError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target, cpu
from tilesmith.expr.ints import ZERO, Int, parse_int
from tilesmith.ir.deserialize import buffer_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer
from tilesmith.ir.serialize import buffer_to_json

# The name of the entry in LLVM text. The compiler renames it to a unique symbol (`Entry.symbol`).
ENTRY = "tilesmith_entry"
# The function that threaded code calls: void (ptr body, ptr ctx, i64 n, i64 num_threads), with body
# void (ptr ctx, i64 begin, i64 end, i64 thread). The runtime provides it.
PARALLEL_FOR = "tilesmith_parallel_for"


@dataclass(frozen=True, slots=True)
class DenseArray:
    """An array that a caller passes: row-major and contiguous."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.nbytes

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Parameter(DenseArray):
    """An array that the kernel reads or writes."""

    output: bool
    # The caller's buffer and its layout here, unless it is plain row-major.
    packed: Buffer | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A dimension of a buffer whose indices are loaded from a tensor. Check number n of a kernel
    has two int64 in the workspace, from byte 16 n on: whether an index was outside, and the index.
    """

    buffer: str
    dimension: int
    extent: int


@dataclass(frozen=True, slots=True)
class Resources:
    """What a thread and a block of a compiled GPU function use."""

    registers: int  # per thread
    spilled_nbytes: int  # loaded and stored per thread because registers did not suffice
    shared_nbytes: int  # per block, without the launch's dynamic shared memory
    stack_nbytes: int = 0  # per thread, in slow memory: spilled values and indexed local buffers


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor as NVIDIA's copy engine sees it, the fastest dimension first. One copy moves a box
    of it to shared memory, in rows of 128 bytes that are swizzled: along each dimension, every
    `steps`-th element of `box`. Numbers that depend on open sizes are -1.
    """

    buffer: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes, of all dimensions but the first
    box: tuple[int, ...]  # elements
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a GPU function. Its arguments are its tensor maps, then pointers to the named
    buffers: parameters of the entry, or buffers in its workspace. All must be aligned to 16 bytes.
    """

    symbol: str  # the function's name in the module
    grid: int  # blocks; with open sizes the most of them, or 0
    threads: int  # per block
    arguments: tuple[str, ...]
    shared_nbytes: int = 0  # dynamic shared memory per block
    resources: Resources | None = None  # where the compiler tells
    maps: tuple[TensorMap, ...] = ()
    # Whether it may begin before the launch in front of it is complete, for which it waits.
    overlaps: bool = False
    # Arguments behind the pointers: open sizes, with the largest value of each that the code is for
    # (an int if that fits), and their values where they are known.
    sizes: tuple[tuple[str, int], ...] = ()
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """The open sizes of a kernel. On CPUs their values follow the data pointers in args, as int64,
    in the order of `names`. Shapes, the bytes of the workspace, and on GPUs the blocks of launches,
    the offsets of buffers between these and the shapes of tensor maps are expressions of them.
    """

    names: tuple[str, ...]  # with a leading #
    shapes: tuple[tuple[Int, ...], ...]  # of the parameters, in calling order
    workspace: Int = ZERO
    grids: tuple[Int, ...] = ()
    scratch: tuple[Int, ...] = ()
    maps: tuple[tuple[tuple[Int, ...], ...], ...] = ()  # of each launch, fastest dimension first

    @staticmethod
    def of(func: Function) -> OpenSizes | None:
        """Those of a Function's kernel; None if it has none."""
        shapes = tuple(b.given_shape if b.is_as_given else b.physical_shape for b in func.params)
        names = tuple(dict.fromkeys(n for s in shapes for e in s for n in sorted(e.names)))
        given = {n for s in shapes[: len(func.inputs)] for e in s for n in e.names}
        if missing := [n.removeprefix("#") for n in names if n not in given]:
            raise BuildError(
                f"{func.name!r} has the open sizes {', '.join(missing)}, which no input has: a "
                "kernel is told its sizes by the shapes of its inputs"
            )
        return OpenSizes(names, shapes) if names else None


@checks_given
@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of the code.

    On a CPU it is a function, void (ptr args, ptr workspace). args points to the data pointers of
    the parameters, in calling order. On a GPU it is a sequence of launches.
    """

    name: str  # the Function's name
    symbol: str  # in the object; unique among kernels
    parameters: tuple[Parameter, ...]  # inputs, then outputs
    workspace_nbytes: int = 0  # scratch memory that the caller provides, 64-byte aligned
    uses_threads: bool = False
    checks: tuple[Check, ...] = ()  # bounds checks of a kernel for debugging
    launches: tuple[Launch, ...] = ()  # of a GPU kernel, in stream order
    # buffers between launches, by name: the offset of each in the workspace, a multiple of 256
    scratch: tuple[tuple[str, int], ...] = ()
    open: OpenSizes | None = None  # shapes of parameters have -1 for open dimensions then

    @staticmethod
    def of(func: Function, symbol: str, workspace_nbytes: int = 0) -> Entry:
        """The entry of a Function's kernel that runs in one thread."""
        return Entry(func.name, symbol, parameters_of(func), workspace_nbytes)


@checks_given
@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled code with everything needed to call it. Plain data: it can be pickled, sent and
    stored.

    It may hold several kernels. Properties of a single kernel are those of the first.
    """

    name: str
    target: Target
    entries: tuple[Entry, ...]
    source: str
    code: bytes  # a relocatable object file; cubins (see c/nvrtc.py) or source text for a GPU
    cpu: str = ""  # LLVM's name of the processor
    features: str = ""
    language: str = "llvm"  # the language of the source

    @property
    def symbol(self) -> str:
        return self.entries[0].symbol

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.entries[0].parameters

    @property
    def workspace_nbytes(self) -> int:
        return self.entries[0].workspace_nbytes

    @property
    def uses_threads(self) -> bool:
        return any(e.uses_threads for e in self.entries)

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.entries[0].checks

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.output)

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.output)


def obstacle(artifact: Artifact) -> str | None:
    """Why this machine cannot run the artifact; None if it can."""
    what = foreign(artifact.target)
    if what is None:
        return None
    return f"{artifact.name!r} was built for {what}; kernel.source and kernel.assembly can be read"


def foreign(target: Target) -> str | None:
    """What a processor has that this machine's has not; None if code for it runs here."""
    here = cpu()
    if target.arch != here.arch:
        return f"{target.arch}; this machine is {here.arch}"
    if missing := target.features - here.features:
        return f"a processor with {', '.join(sorted(missing))}, which this machine's has not"
    return None


def parameters_of(func: Function) -> tuple[Parameter, ...]:
    """The parameters of a Function's kernel."""
    inputs = [_parameter(b, output=False) for b in func.inputs]
    return (*inputs, *(_parameter(b, output=True) for b in func.outputs))


def _parameter(buffer: Buffer, output: bool) -> Parameter:
    shape = []
    for extent in buffer.given_shape if buffer.is_as_given else buffer.physical_shape:
        shape.append(-1 if extent.const is None else extent.const)
    packed = None if buffer.is_as_given else buffer
    return Parameter(buffer.name, tuple(shape), buffer.dtype, output, packed)


# Writes the description of a kernel, all of an `Entry`, as JSON values, and reads it again.
def entry_to_json(entry: Entry) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": entry.name,
        "symbol": entry.symbol,
        "parameters": [_parameter_to_json(p) for p in entry.parameters],
        "workspace_nbytes": entry.workspace_nbytes,
        "uses_threads": entry.uses_threads,
        "checks": [asdict(c) for c in entry.checks],
        "launches": [asdict(launch) for launch in entry.launches],
        "scratch": entry.scratch,
    }
    if entry.open is not None:
        data["open"] = [
            entry.open.names,
            [[str(e) for e in shape] for shape in entry.open.shapes],
            str(entry.open.workspace),
            [str(e) for e in entry.open.grids],
            [str(e) for e in entry.open.scratch],
            [[[str(e) for e in shape] for shape in maps] for maps in entry.open.maps],
        ]
    return data


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """What is not the description of a kernel raises a TilesmithError, ValueError, TypeError,
    LookupError or AttributeError.
    """
    return Entry(
        name=str(data["name"]),
        symbol=str(data["symbol"]),
        parameters=tuple(map(_parameter_of, data["parameters"])),
        workspace_nbytes=int(data["workspace_nbytes"]),
        uses_threads=bool(data["uses_threads"]),
        checks=tuple(Check(**c) for c in data["checks"]),
        launches=tuple(map(_launch, data["launches"])),
        scratch=tuple((str(name), int(at)) for name, at in data["scratch"]),
        open=_open_sizes(data.get("open")),
    )


def _open_sizes(data: Any) -> OpenSizes | None:
    if data is None:
        return None
    names, shapes, workspace, grids, scratch, maps = data

    def integers(part: Any) -> tuple[Int, ...]:
        return tuple(parse_int(str(e)) for e in part)

    return OpenSizes(
        tuple(map(str, names)),
        tuple(map(integers, shapes)),
        parse_int(str(workspace)),
        integers(grids),
        integers(scratch),
        tuple(tuple(map(integers, shapes)) for shapes in maps),
    )


def _parameter_to_json(p: Parameter) -> list[Any]:
    packed = None if p.packed is None else buffer_to_json(p.packed)
    return [p.name, p.shape, p.dtype.name, p.output, packed]


def _parameter_of(data: Any) -> Parameter:
    name, shape, kind, output, packed = data
    return Parameter(
        str(name),
        tuple(map(int, shape)),
        dtype(str(kind)),
        bool(output),
        None if packed is None else buffer_from_json(packed),
    )


def _launch(data: Mapping[str, Any]) -> Launch:
    used = data["resources"]
    return Launch(
        **{
            **data,
            "arguments": tuple(map(str, data["arguments"])),
            "resources": None if used is None else Resources(**used),
            "maps": tuple(map(_tensor_map, data.get("maps", ()))),
            "sizes": tuple((str(n), int(most)) for n, most in data.get("sizes", ())),
            "values": tuple(map(int, data.get("values", ()))),
        }
    )


def _tensor_map(data: Mapping[str, Any]) -> TensorMap:
    sizes = (tuple(map(int, data[name])) for name in ("shape", "strides", "box", "steps"))
    return TensorMap(str(data["buffer"]), str(data["dtype"]), *sizes)


# `Backend`: the protocol of code generators, each for one kind of target.
#
# A back end is a frozen record of its settings. `runtime/build.py` lists the built-in ones; your
# own is passed as `parts=ts.Parts(backends=(MyBackend(),))`, or `ts.build(func,
# backend=MyBackend())`.
class Backend(Protocol):
    """The protocol of a code generator: `kind` is the kind of target that it is for, and `compile`
    turns a scheduled Function into an Artifact.
    """

    @property
    def kind(self) -> str:
        """The kind of target it is for: "cpu", "cuda" ..."""

    def compile(self, func: Function, target: Target, *, checked: bool = False) -> Artifact:
        """Lowers and compiles a Function. Raises a BuildError for what it does
        not support. `checked`: indices that are loaded from tensors are tested (see `ts.build`).
        """
