"""TorchProgram: a functional ATen graph as a Program. All that has kernels and can be computed from
what is known becomes the graph of a stage; then PyTorch runs what it waits for; and so on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import getitem
from typing import Any

import torch
from torch import fx

from tilesmith.base.errors import TilesmithError
from tilesmith.frontends.torch.call import Call, NotCovered, Type
from tilesmith.frontends.torch.host import host_step
from tilesmith.frontends.torch.operators import IMPORTERS
from tilesmith.frontends.torch.shapes import UNKNOWN, Results, attribute, propagated, traced
from tilesmith.frontends.torch.tensors import array_of, dtype_of, type_of
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.program import Cursor, Feeds, Signature, Stage

# Arguments that say where a result lies, which kernels decide by themselves.
_PLACES = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
# Nodes that compute nothing: checks of what PyTorch has traced already; and writes to inputs at the
# end of a graph, which whoever calls it does.
_SKIPPED = (
    "aten._assert", "aten.sym_constrain", "aten._functional_assert", "aten.copy_.default",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A node that PyTorch runs."""

    op: str
    why: str


@dataclass(frozen=True)
class _Rest:
    """Where a program goes on: the nodes that are left, and constants that were computed."""

    nodes: tuple[fx.Node, ...]
    results: Results
    known: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class TorchProgram:
    """`held` has the tensors of placeholders and attributes that are constants, by node; `numbers`
    the placeholders that are numbers. An output is the name of a caller for a node.
    """

    name: str
    module: fx.GraphModule
    inputs: tuple[Signature, ...]
    returned: tuple[tuple[str, str], ...]
    held: Mapping[str, torch.Tensor]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = True  # whether the trace has all shapes
    uncovered: dict[str, Uncovered] = field(default_factory=dict)  # found while stages are made
    scalars: dict[str, Any] = field(default_factory=dict)  # nodes that compute with sizes, likewise

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        return f"<TorchProgram {self.name}: ({inputs}) -> {', '.join(self.outputs)}>"

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.returned)

    @cached_property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Those that an output needs, in order."""
        needed = {name for _, name in self.returned}
        found = []
        for n in reversed(self.module.graph.nodes):
            if n.name not in needed or n.op != "call_function":
                continue
            if not str(n.target).startswith(_SKIPPED):
                found.append(n)
                needed.update(x.name for x in n.all_input_nodes)
        return tuple(reversed(found))

    @cached_property
    def by_name(self) -> Mapping[str, fx.Node]:
        return {n.name: n for n in self.module.graph.nodes}

    @cached_property
    def start(self) -> Cursor:
        return Cursor(tuple(s.name for s in self.inputs))

    def results(self, types: Mapping[str, Value]) -> Results:
        if self.settled:
            found = traced(self.module.graph)
            for n in self.module.graph.nodes:
                if n.op == "get_attr":
                    found[n] = attribute(self.module, str(n.target))
            return found
        given = {n: Type(v.shape, v.dtype) for n, v in types.items()}
        return propagated(self.module, {**self.held, **self.numbers, **given})

    def graphs(self) -> tuple[Graph, ...]:
        """Those of all stages, where no size is open."""
        types = {s.name: Value(s.name, s.dims, s.dtype) for s in self.inputs}  # type: ignore[arg-type]
        cursor: Cursor | None = self.start
        found = []
        while cursor is not None:
            results = cursor.state.results if cursor.state is not None else {}
            known = {n.name: r for n, r in results.items() if n.name in cursor.reads}
            for name, r in known.items():
                kind = type_of(r)
                if kind is not None:
                    types[name] = Value(name, kind.shape, kind.dtype)
            stage = self.stage(cursor, types, {})
            found.append(stage.graph)
            cursor = stage.cursor
        return tuple(found)

    def stage(self, cursor: Cursor, types: Mapping[str, Value], arrays: Feeds) -> Stage:
        rest = cursor.state
        if rest is None:
            rest = _Rest(self.nodes, self.results(types))
            for n, r in rest.results.items():
                if isinstance(r, int | float | bool):
                    self.scalars[n.name] = r
        return _Import(self, rest, cursor, types).run()


class _Import:
    """The import of one stage."""

    def __init__(
        self, program: TorchProgram, rest: _Rest, cursor: Cursor, types: Mapping[str, Value]
    ) -> None:
        self.program, self.rest, self.types = program, rest, types
        self.first = cursor.state is None
        self.builder = GraphBuilder(program.name)
        self.bases: dict[str, Value] = {}
        self.env: dict[str, Any] = {}  # by the names of nodes: values, or tuples of them
        self.inputs: dict[str, Value] = {}
        for name in cursor.reads:
            v = types[name]
            self.inputs[name] = self.env[name] = self.builder.input(name, v.shape, v.dtype)

    def run(self) -> Stage:
        left: list[fx.Node] = []
        failed: dict[str, Uncovered] = {}
        for node in self.rest.nodes:
            if not all(self.is_there(n) for n in node.all_input_nodes):
                left.append(node)
                continue
            try:
                self.env[node.name] = self.imported(node)
            except NotCovered as why:
                failed[node.name] = Uncovered(str(node.target), str(why))
                left.append(node)
        hosted = self.hosted(left, failed)
        self.program.uncovered.update(failed)
        return self.end([n for n in left if n not in hosted], hosted)

    # values
    def is_there(self, node: fx.Node) -> bool:
        return (
            node.name in self.env or node.name in self.rest.known or node.op == "get_attr"
            or node.name in self.program.held or node.name in self.program.numbers
            or isinstance(self.rest.results.get(node), int | float | bool)
        )  # fmt: skip

    def value(self, node: fx.Node) -> Any:
        """A node's result: a value, several, or a number."""
        found = self.env.get(node.name)
        if found is not None:
            return found
        result = self.rest.results.get(node, UNKNOWN)
        if isinstance(result, int | float | bool):
            return result
        array = self.rest.known.get(node.name)
        if array is None:
            tensor = self.program.held.get(node.name)
            if tensor is None and node.op == "get_attr":
                tensor = attribute(self.program.module, str(node.target))
            if not isinstance(tensor, torch.Tensor) or type_of(tensor) is None:
                raise NotCovered(f"there are no kernels for {_shown(tensor)}")
            array = array_of(tensor)
        self.env[node.name] = self.builder.constant(array, node.name)
        return self.env[node.name]

    def imported(self, node: fx.Node) -> Any:
        result = self.rest.results.get(node, UNKNOWN)
        if node.target is getitem:
            whole, k = self.env.get(node.args[0].name), node.args[1]
            if not isinstance(whole, tuple) or whole[k] is None:
                raise NotCovered("it is not computed here")
            return whole[k]
        if isinstance(result, int | float | bool) or result is None:
            return result
        if result is UNKNOWN:
            raise NotCovered("the size of its result depends on what it reads")
        importer = IMPORTERS.get(str(node.target))
        if importer is None:
            raise NotCovered("no kernel is known for it")
        several = result if isinstance(result, tuple | list) else (result,)
        types = [type_of(r) for r in several]
        for r, t in zip(several, types, strict=True):
            if isinstance(r, torch.Tensor) and t is None:
                raise NotCovered(f"there are no kernels for {_shown(r)}")
        call = Call(
            f"{node.target} {node.name}", node.name, self.builder, types, _wanted(node), self.bases
        )
        made = self._called(importer, call, node)
        if not isinstance(result, tuple | list):
            _check(call, made, types[0])
            return made
        for k, (v, t) in enumerate(zip(made, types, strict=False)):
            if v is None and call.wants(k):
                raise NotCovered(f"its result {k} is read")
            _check(call, v, t)
        return tuple(made)

    def _called(self, importer: Callable[..., Any], call: Call, node: fx.Node) -> Any:
        args = [self.argument(a) for a in node.args]
        kwargs = {k: self.argument(a) for k, a in node.kwargs.items() if k not in _PLACES}
        try:
            inspect.signature(importer).bind(call, *args, **kwargs)
        except TypeError as error:
            raise NotCovered(f"its arguments have no kernel: {error}") from None
        try:
            return importer(call, *args, **kwargs)
        except TilesmithError as error:
            raise NotCovered(str(error)) from error

    def argument(self, a: Any) -> Any:
        match a:
            case fx.Node():
                return self.value(a)
            case list() | tuple():
                return tuple(self.argument(x) for x in a)
            case torch.dtype():
                kind = dtype_of(a)
                if kind is None:
                    raise NotCovered(f"there are no kernels for {a}")
                return kind
        return a

    # what PyTorch runs
    def hosted(self, left: Sequence[fx.Node], failed: dict[str, Uncovered]) -> list[fx.Node]:
        """The nodes that failed, and those behind them that have no kernel either."""
        there: set[str] = set()
        found = []
        for node in left:
            inputs = node.all_input_nodes
            if not all(self.is_there(n) or n.name in there for n in inputs):
                continue
            why = self._never(node, there)
            if node.name in failed or why:
                if why and node.name not in failed and node.target is not getitem:
                    failed[node.name] = Uncovered(str(node.target), why)
                there.add(node.name)
                found.append(node)
        return found

    def _never(self, node: fx.Node, there: set[str]) -> str:
        """Why a node has no kernel whatever its inputs are; "" where it may have one."""
        if node.target is getitem:
            return "a part" if node.args[0].name in there else ""
        result = self.rest.results.get(node, UNKNOWN)
        if result is UNKNOWN:
            return "the size of its result depends on what it reads"
        if str(node.target) not in IMPORTERS:
            return "no kernel is known for it"
        for n in (node, *node.all_input_nodes):
            v = self.rest.results.get(n)
            if isinstance(v, torch.Tensor) and type_of(v) is None:
                return f"there are no kernels for {_shown(v)}"
        return ""

    # the end of a stage
    def end(self, left: Sequence[fx.Node], hosted: Sequence[fx.Node]) -> Stage:
        """What is computed and still wanted becomes an output of the graph; constants travel on."""
        made = {n.name for n in hosted}
        later = {n.name for node in left for n in node.all_input_nodes}
        wanted = later | {n.name for node in hosted for n in node.all_input_nodes}
        outputs: dict[str, Value] = {}
        known: dict[str, Array] = dict(self.rest.known)
        for name in sorted(wanted & self.env.keys()):
            v = self.env[name]
            if not isinstance(v, Value) or name in self.inputs:
                continue
            a = self.builder.array(v)
            if a is None:
                outputs[name] = v
            elif name not in self.program.held:
                known[name] = a
        shown: list[tuple[str, str]] = []
        for public, name in self.program.returned:
            if name in made:
                shown.append((public, name))
            elif self._is_new(name):
                outputs[public] = self.value(self.program.by_name[name])
        graph = self.builder.finish(outputs)
        if not left and not hosted:
            return Stage(graph, None, None)
        host = None
        if hosted:
            held = {n: t for n, t in self.program.held.items() if n in wanted}
            numbers = {
                n.name: r for n, r in self.rest.results.items()
                if n.name in wanted and isinstance(r, int | float | bool)
            }  # fmt: skip
            host = host_step(
                self.program.module, hosted, later, shown, held, numbers, known,
                {n: self.program.uncovered[n].why for n in made if n in self.program.uncovered},
            )  # fmt: skip
        reads = tuple(
            n for n in sorted(later)
            if (n in self.inputs or n in outputs or n in made) and n not in known
            and self._can_be_read(n)
        )  # fmt: skip
        return Stage(graph, host, Cursor(reads, state=_Rest(tuple(left), self.rest.results, known)))

    def _is_new(self, name: str) -> bool:
        """Whether an output becomes known in this stage. Inputs and constants do in the first."""
        if name in self.inputs:
            return self.first and name in {s.name for s in self.program.inputs}
        if name in self.env:
            return not (name in self.rest.known or name in self.program.held) or self.first
        return self.first and name in self.program.held

    def _can_be_read(self, name: str) -> bool:
        result = self.rest.results.get(self.program.by_name[name])
        return type_of(result) is not None


def _check(call: Call, made: Any, wanted: Type | None) -> None:
    """An importer that computes something else is a bug, which must not stay unseen."""
    if made is None or wanted is None:
        return
    if made.shape != wanted.shape or made.dtype is not wanted.dtype:
        raise AssertionError(
            f"{call.origin}: imported as {made.dtype}{list(made.shape)}, but PyTorch says "
            f"{wanted.dtype}{list(wanted.shape)}"
        )


def _wanted(node: fx.Node) -> frozenset[int]:
    """Which results of a node are read."""
    parts = [u for u in node.users if u.target is getitem and u.args[0] is node]
    if len(parts) < len(node.users):
        return frozenset(range(64))
    return frozenset(int(u.args[1]) for u in parts if u.users)


def _shown(t: Any) -> str:
    if isinstance(t, torch.Tensor):
        return f"{t.dtype} on {t.device}".replace("torch.", "")
    return type(t).__name__


def uncovered(program: TorchProgram) -> tuple[Uncovered, ...]:
    """What PyTorch runs, each operator once."""
    return tuple({u.op: u for u in program.uncovered.values()}.values())
