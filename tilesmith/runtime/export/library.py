"""What is exported, as plain data: the arrays that a caller passes, the kernels with the addresses
of their arguments, and the weights. A model and a single kernel are both described by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith.base.identity import digest
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, DenseArray, Parameter
from tilesmith.expr.ints import Int, of, product, var
from tilesmith.ir.pack import packed
from tilesmith.runtime.arrays import Array, convert, reject
from tilesmith.runtime.dispatch import Choice

ALIGNMENT = 64  # of everything in the weights and in the arena


@dataclass(frozen=True, slots=True)
class Port(DenseArray):
    """An input or an output of the library. Its shape has -1 for open dimensions; `extents` has
    all of them as expressions of the sizes, and is empty if none is open.
    """

    note: str = ""  # what a caller must know of its layout
    extents: tuple[Int, ...] = ()

    @property
    def total(self) -> Int:
        """Bytes, as an expression of the sizes."""
        return product(self.extents or self.shape) * self.dtype.nbytes


@dataclass(frozen=True, slots=True)
class Address:
    """So many bytes behind the start of an "input" or an "output" (by its number), of the "arena"
    or of the "weights". With open sizes, the arena has arrays with numbers of their own, and "none"
    is the address of an array that a kernel does not read.
    """

    base: str
    offset: int | Int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    symbol: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """An output that no kernel writes, and where it lies."""

    output: int
    source: Address
    nbytes: int | Int


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel: its symbol, the sizes that it takes, and the bytes of the workspace it needs."""

    symbol: str
    sizes: tuple[Int, ...]
    workspace: Int

    @staticmethod
    def of(artifact: Artifact, sizes: Mapping[str, Int]) -> Member:
        """`sizes` are those of the kernel, with their leading #."""
        form = artifact.entries[0].open
        if form is None:
            return Member(symbol_of(artifact), (), of(artifact.workspace_nbytes))
        own = tuple(sizes[n] for n in form.names)
        return Member(symbol_of(artifact), own, form.workspace.substitute(dict(sizes)))


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of one of several kernels with the same arguments. `own` has the sizes by which
    `choice` tells the number of the kernel, by their names in it.
    """

    addresses: tuple[Address, ...]
    members: tuple[Member, ...]
    choice: Choice = 0
    own: Mapping[str, Int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArenaArray:
    """It lies behind all arrays in `below`, which are earlier ones: those that live at the same
    time.
    """

    nbytes: Int
    below: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a constant along each dimension, which is copied to an array of the arena
    before anything is called.
    """

    weights: int  # offset
    shape: tuple[Int, ...]
    whole: tuple[int, ...]
    itemsize: int
    number: int  # in the arena


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """What a library with open sizes runs. A caller passes the sizes in the order of `names`, each
    within its `limits`. `derived` are sizes that follow from earlier ones. Everything else is an
    expression of all these.
    """

    names: tuple[str, ...]  # with a leading #
    limits: tuple[tuple[int, int], ...]
    calls: tuple[OpenCall, ...]
    derived: Mapping[str, Int] = field(default_factory=dict)
    arena: tuple[ArenaArray, ...] = ()
    parts: tuple[Part, ...] = ()
    lengths: tuple[tuple[Int, str], ...] = ()  # at least 0, of the arrays with these names


LARGEST = 1 << 40  # of a size; expressions of larger ones may overflow


class Weights:
    """Arrays one behind the other. Equal ones are kept once."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []  # flat, of bytes
        self.nbytes = 0
        self._offsets: dict[bytes, int] = {}

    def add(self, array: Array) -> int:
        """The offset at which its contents lie."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = hashlib.blake2b(flat.data, digest_size=32).digest()
        if key not in self._offsets:
            self._offsets[key] = self.nbytes
            self.arrays.append(flat)
            self.nbytes += -(-len(flat) // ALIGNMENT) * ALIGNMENT
        return self._offsets[key]


@dataclass(frozen=True)
class Library:
    """`name` is part of the names of files and functions."""

    name: str
    title: str  # what it computes, in words: "model resnet50"
    target: Target
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    calls: tuple[Call, ...]
    artifacts: tuple[Artifact, ...]  # of the calls, each kernel once
    weights: Weights
    copies: tuple[Copy, ...] = ()  # after all calls
    arena_nbytes: int = 0
    open: OpenPlan | None = None  # instead of `calls` and the arena

    @property
    def workspace_nbytes(self) -> int:
        return max((a.workspace_nbytes for a in self.artifacts), default=0)

    @property
    def uses_tiles(self) -> bool:
        """Whether some kernel may use the tile registers of AMX: one without its source may."""
        tiles = self.target.machine.tiles
        if tiles is None:
            return False
        unknown = tiles.feature in self.target.features
        return any(f"@{tiles.calls}" in a.source if a.source else unknown for a in self.artifacts)

    @property
    def uses_threads(self) -> bool:
        return any(a.uses_threads for a in self.artifacts)


def symbol_of(artifact: Artifact) -> str:
    """A name of a kernel that no other one has. Symbols of kernels for CPUs have a digest of their
    code already.
    """
    if artifact.target.kind == "cpu":
        return artifact.symbol
    code = hashlib.sha256(artifact.code).hexdigest()
    return f"{artifact.symbol}_{digest(repr(artifact.entries), code)}"


# A single kernel as an exported Library: its inputs are those that no weights are given for.
def kernel_library(
    artifact: Artifact, name: str, weights: Mapping[str, Any], others: Sequence[Artifact] = (),
    choice: Choice = 0,
) -> Library:  # fmt: skip
    """`weights` are arrays by the names of inputs. They go to the weights file, packed as the
    kernel wants them, and a caller does not pass them. With open sizes, there may be `others` that
    compute the same and take the same layouts, of which the sizes choose one.
    """
    names = [p.name for p in artifact.inputs]
    sizes = artifact.entries[0].open
    shapes = [()] * len(artifact.parameters) if sizes is None else sizes.shapes
    if unknown := [n for n in weights if n not in names]:
        raise ArgumentError(
            f"{artifact.name!r} has no input {unknown[0]!r} to take weights for; it has "
            f"{', '.join(names) or 'none'}"
        )
    held = Weights()
    inputs: list[Port] = []
    outputs: list[Port] = []
    addresses = []
    for p, extents in zip(artifact.parameters, shapes, strict=True):
        if p.output:
            addresses.append(Address("output", number=len(outputs)))
            outputs.append(_port(p, extents))
        elif p.name in weights:
            if -1 in p.shape:
                raise ArgumentError(
                    f"{p.name} of {artifact.name!r} has open sizes, so weights= cannot hold it"
                )
            addresses.append(Address("weights", held.add(_as_read(artifact, p, weights[p.name]))))
        else:
            addresses.append(Address("input", number=len(inputs)))
            inputs.append(_port(p, extents))
    members = (artifact, *others)
    calls: tuple[Call, ...] = (Call(symbol_of(artifact), tuple(addresses)),)
    plan = None
    if sizes is not None:
        own = {n: var(n) for n in sizes.names}
        call = OpenCall(
            tuple(addresses), tuple(Member.of(a, own) for a in members), choice,
            {n.removeprefix("#"): e for n, e in own.items()},
        )  # fmt: skip
        plan, calls = OpenPlan(sizes.names, ((0, LARGEST),) * len(own), (call,)), ()
    return Library(
        name, f"kernel {artifact.name}", artifact.target, tuple(inputs), tuple(outputs), calls,
        members, held, open=plan,
    )  # fmt: skip


def _port(p: Parameter, extents: tuple[Int, ...]) -> Port:
    note = "" if p.packed is None else "Packed as kernel.pack does; or export it among weights="
    return Port(p.name, p.shape, p.dtype, note, extents)


def _as_read(artifact: Artifact, p: Parameter, value: Any) -> Array:
    a = convert(value, p)
    if p.packed is not None and a.dtype == p.dtype.numpy and a.shape != p.shape:
        a = packed(p.packed, a, repr(artifact.name))
    if a.dtype != p.dtype.numpy or a.shape != p.shape:
        reject(a, p, value)
    return a
