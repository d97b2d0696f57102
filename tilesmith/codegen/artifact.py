"""Artifact: what a back end makes of a Function for a Target: machine code, and what is needed to
call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.base.dtype import DType
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target, cpu
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer

# What LLVM text calls its entry. The compiler gives it a symbol of its own (`Entry.symbol`).
ENTRY = "tilesmith_entry"
# What threaded code calls: void (ptr body, ptr ctx, i64 n, i64 num_threads), with body void (ptr
# ctx, i64 begin, i64 end, i64 thread). The runtime brings it.
PARALLEL_FOR = "tilesmith_parallel_for"


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array the kernel reads or writes: row-major, without gaps."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    output: bool
    # What the caller has, and how it lies here, where that is not row by row.
    packed: Buffer | None = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.nbytes

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Check:
    """A dimension of a buffer that is read at indices from a tensor. The n-th check of a kernel has
    two int64 in the workspace, from byte 16 n on: whether an index was outside, and which.
    """

    buffer: str
    dimension: int
    extent: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A function that the code defines, as void (ptr args, ptr workspace): args points at the data
    pointers of the parameters, in calling order.
    """

    name: str  # of the Function
    symbol: str  # in the object; no two kernels have the same
    parameters: tuple[Parameter, ...]  # inputs, then outputs
    workspace_nbytes: int = 0  # scratch that the caller brings, 64-byte aligned; 0 is none
    uses_threads: bool = False
    checks: tuple[Check, ...] = ()  # of a kernel for debugging

    @staticmethod
    def of(func: Function, symbol: str, workspace_nbytes: int = 0) -> Entry:
        """The entry of a Function's kernel that runs in one thread."""
        return Entry(func.name, symbol, parameters_of(func), workspace_nbytes)


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled code with what is needed to call it. Plain data: it can be pickled, sent and stored.

    It may hold several kernels. What is said of one alone is said of the first.
    """

    name: str
    target: Target
    entries: tuple[Entry, ...]
    source: str
    code: bytes  # relocatable object
    cpu: str = ""  # as LLVM was told
    features: str = ""
    language: str = "llvm"  # of the source

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
    here, target = cpu(), artifact.target
    if target.arch != here.arch:
        what = f"{target.arch}; this machine is {here.arch}"
    elif missing := target.features - here.features:
        what = f"a processor with {', '.join(sorted(missing))}, which this machine's has not"
    else:
        return None
    return f"{artifact.name!r} was built for {what}; kernel.source and kernel.assembly can be read"


def parameters_of(func: Function) -> tuple[Parameter, ...]:
    """What the kernel of a Function takes, and writes."""
    inputs = [_parameter(b, output=False) for b in func.inputs]
    return (*inputs, *(_parameter(b, output=True) for b in func.outputs))


def _parameter(buffer: Buffer, output: bool) -> Parameter:
    shape = []
    for extent in buffer.physical_shape:
        if extent.const is None:
            raise BuildError(f"parameter {buffer.name!r} has the open extent {extent}")
        shape.append(extent.const)
    packed = None if buffer.layout is None and not buffer.basis else buffer
    return Parameter(buffer.name, tuple(shape), buffer.dtype, output, packed)
