"""Artifact: what a build leaves behind.

A Function and a Target have gone in; machine code comes out, with all that is needed to call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.base.dtype import DType
from tilesmith.base.target import Target, cpu
from tilesmith.ir.nodes import Buffer

# The one symbol that an object for a processor defines: void (ptr args, ptr workspace), where args
# points at the data pointers of the parameters in calling order.
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
class Artifact:
    """Plain data: it can be pickled, sent and stored."""

    name: str  # of the Function
    target: Target
    parameters: tuple[Parameter, ...]  # inputs, then outputs
    source: str  # LLVM IR
    code: bytes  # relocatable object
    workspace_nbytes: int  # scratch that the caller brings, 64-byte aligned; 0 is none
    uses_threads: bool
    cpu: str  # as LLVM was told
    features: str
    checks: tuple[Check, ...] = ()  # of a kernel for debugging

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
