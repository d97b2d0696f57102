"""Program: a model as it was written, whose sizes may become known only when it is called.

It runs in stages. A stage is imported once the shapes of its inputs are known, and is then a Graph
of static shapes. It ends where the model ends; or in front of a node whose meaning depends on the
contents of a value, as Reshape depends on its shape; or at a node that runs on the host. Most
models have one stage. `closed` makes a Graph of a Program that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.graph.graph import Array, Graph, Value

Feeds = Mapping[str, Array]
Runner = Callable[[Feeds], dict[str, Array]]  # runs a body: arrays by name in, arrays by name out


@dataclass(frozen=True, slots=True)
class Signature:
    """An input as the model declares it. An open dimension is a name; one that the model does not
    name is called after the input and its place, as "x.0".
    """

    name: str
    dtype: DType
    dims: tuple[int | str, ...] | None  # None: of any rank

    @property
    def is_open(self) -> bool:
        return self.dims is None or any(isinstance(d, str) for d in self.dims)

    def __str__(self) -> str:
        dims = "..." if self.dims is None else ", ".join(map(str, self.dims))
        return f"{self.name}: {self.dtype}[{dims}]"


@dataclass(frozen=True)
class HostStep:
    """A node between two compiled graphs. `function` takes the input arrays (None where an input is
    left out) and a runner for each of `bodies`, and returns the output arrays.
    """

    name: str
    op: str
    inputs: tuple[str, ...]  # "" where an optional input is left out
    outputs: tuple[str, ...]  # "" where nobody reads an output
    function: Callable[[Sequence[Array | None], Sequence[Runner]], Sequence[Any]]
    bodies: tuple[Program, ...] = ()  # of control flow, which are compiled
    reason: str = ""  # why it has no kernel
    constants: Mapping[str, Array] = field(default_factory=dict)  # inputs that are known already


@dataclass(frozen=True)
class Stage:
    """`graph` is computed first, then `host` runs, then the model goes on at `cursor`, if any."""

    graph: Graph
    host: HostStep | None
    cursor: Cursor | None


@dataclass(frozen=True)
class Cursor:
    """Where a model goes on: what the next stage reads, which of that it must know the contents
    of, and what is known already.
    """

    reads: tuple[str, ...]  # values that must be there, by their names in the model
    contents: frozenset[str] = frozenset()  # those of them whose arrays the import depends on
    constants: Mapping[str, Array] = field(default_factory=dict)  # known from earlier stages
    state: Any = None  # the importer's own: the nodes that are left


@runtime_checkable
class KnownStages(Protocol):
    """A program that can tell its graphs before it runs, where the sizes of its inputs are known:
    no contents decide what comes next.
    """

    def graphs(self) -> Sequence[Graph]: ...


@runtime_checkable
class Program(Protocol):
    """What a front end makes of a model."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> tuple[Signature, ...]: ...

    @property
    def outputs(self) -> tuple[str, ...]: ...

    @property
    def start(self) -> Cursor: ...

    def stage(self, cursor: Cursor, types: Mapping[str, Value], arrays: Feeds) -> Stage:
        """The stage at a cursor, for inputs of these types; `arrays` has those that
        `cursor.contents` names.
        """
        ...


OpenGraph = Graph | Program


def first_stage(program: Program) -> Stage | None:
    """The first stage, if all inputs have known shapes and their contents are not needed."""
    if any(s.is_open for s in program.inputs) or program.start.contents:
        return None
    types = {s.name: Value(s.name, s.dims, s.dtype) for s in program.inputs}  # type: ignore[arg-type]
    return program.stage(program.start, types, {})


def closed(program: Program) -> OpenGraph:
    """The program as one Graph, where that is possible."""
    stage = first_stage(program)
    if stage is None or stage.cursor is not None:
        return program
    return stage.graph
