"""TorchProgram: a functional ATen graph as a Program. All that has kernels and can be computed from
what is known becomes the graph of a stage; then PyTorch runs what it waits for; and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from operator import getitem
from typing import Any

import torch
from torch import fx

from tilesmith.base.dataclass import dataclass
from tilesmith.frontends.shared.wishes import checks_of
from tilesmith.frontends.torch.assertions import EFFECTS
from tilesmith.frontends.torch.call import NotCovered, Type
from tilesmith.frontends.torch.host import host_step
from tilesmith.frontends.torch.importing import Importing, shown
from tilesmith.frontends.torch.operators import IMPORTERS
from tilesmith.frontends.torch.tensors import (
    UNKNOWN,
    Results,
    attribute,
    propagated,
    traced,
    type_of,
)
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.program import Cursor, Feeds, Signature, Stage

# Nodes that compute nothing: checks of what PyTorch has traced already; and writes to inputs at the
# end of a graph, which whoever calls it does.
_SKIPPED = ("aten._assert_tensor_metadata", "aten.sym_constrain", "aten.copy_.default")


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A node that PyTorch runs."""

    op: str
    why: str


@dataclass(frozen=True)
class _Rest:
    """Where a program goes on: the nodes that are left, and what is known."""

    nodes: tuple[fx.Node, ...]
    results: Results
    known: Mapping[str, Array] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()  # results of PyTorch that no kernel can read


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
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of inputs, if known
    uncovered: dict[str, Uncovered] = field(default_factory=dict)  # found while stages are made
    seen: Results = field(default_factory=dict)  # what PyTorch says of nodes, likewise
    symbols: Mapping[str, str] = field(default_factory=dict)  # placeholders that are open sizes

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
        given = {s.name for s in self.inputs}
        found = []
        for n in reversed(self.module.graph.nodes):
            is_needed = n.name in needed or str(n.target) in EFFECTS
            if not is_needed or n.name in given or n.op != "call_function":
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
        given = {n: Type(v.shape, v.dtype, self.strides.get(n)) for n, v in types.items()}
        return propagated(self.module, {**self.held, **self.numbers_at(types), **given})

    def numbers_at(self, types: Mapping[str, Value]) -> Mapping[str, Any]:
        """The placeholders that are numbers, for inputs of these types."""
        if not self.symbols:
            return self.numbers
        sizes = {
            d: n
            for s in self.inputs
            if s.name in types
            for d, n in zip(s.dims or (), types[s.name].shape, strict=True)
        }
        return {**self.numbers, **{n: sizes[d] for n, d in self.symbols.items()}}

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
            self.seen.update(rest.results)
        return _Import(self, rest, cursor, types).run()


class _Import:
    """The import of one stage."""

    def __init__(
        self, program: TorchProgram, rest: _Rest, cursor: Cursor, types: Mapping[str, Value]
    ) -> None:
        self.program, self.rest, self.types = program, rest, types
        self.first = cursor.state is None
        self.builder = GraphBuilder(program.name)
        self.nodes = Importing(
            program.module, self.builder, rest.results, program.held, program.numbers_at(types),
            rest.known, rest.outside,
        )  # fmt: skip
        self.inputs: dict[str, Value] = {}
        for name in cursor.reads:
            v = types[name]
            self.inputs[name] = self.nodes.env[name] = self.builder.input(name, v.shape, v.dtype)

    def run(self) -> Stage:
        left: list[fx.Node] = []
        failed: dict[str, Uncovered] = {}
        for node in self.rest.nodes:
            if not all(self.nodes.is_there(n) for n in node.all_input_nodes):
                left.append(node)
                continue
            try:
                self.nodes.env[node.name] = self.nodes.imported(node)
            except NotCovered as why:
                failed[node.name] = Uncovered(str(node.target), str(why))
                left.append(node)
        hosted = self.hosted(left, failed)
        self.program.uncovered.update(failed)
        return self.end([n for n in left if n not in hosted], hosted)

    # what PyTorch runs
    def hosted(self, left: Sequence[fx.Node], failed: dict[str, Uncovered]) -> list[fx.Node]:
        """The nodes that failed, and those behind them that have no kernel either."""
        there: set[str] = set()
        found = []
        for node in left:
            inputs = node.all_input_nodes
            if not all(self.nodes.is_there(n) or n.name in there for n in inputs):
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
                return f"there are no kernels for {shown(v)}"
        return ""

    # the end of a stage
    def end(self, left: Sequence[fx.Node], hosted: Sequence[fx.Node]) -> Stage:
        """What is computed and still wanted becomes an output of the graph; constants travel on."""
        made = {n.name for n in hosted}
        later = {n.name for node in left for n in node.all_input_nodes}
        wanted = later | {n.name for node in hosted for n in node.all_input_nodes}
        outputs: dict[str, Value] = {}
        known: dict[str, Array] = dict(self.rest.known)
        for name in sorted(wanted & self.nodes.env.keys()):
            v = self.nodes.env[name]
            if not isinstance(v, Value) or name in self.inputs:
                continue
            a = self.builder.array(v)
            if a is None:
                outputs[name] = v
            elif name not in self.program.held:
                known[name] = a
        public_names: list[tuple[str, str]] = []
        for public, name in self.program.returned:
            if name in made:
                public_names.append((public, name))
            elif self._is_new(name):
                outputs[public] = self.nodes.value(self.program.by_name[name])
        graph = self.builder.finish(outputs, checks_of(self.nodes.wishes, self.inputs, outputs))
        if not left and not hosted:
            return Stage(graph, None, None)
        host = None
        if hosted:
            held = {n: t for n, t in self.program.held.items() if n in wanted}
            numbers = {
                n.name: r for n, r in self.rest.results.items()
                if n.name in wanted and isinstance(r, int | float | bool)
            }  # fmt: skip
            numbers |= {n: x for n, x in self.program.numbers.items() if n in wanted}
            host = host_step(
                self.program.module, hosted, later, public_names, held, numbers, known,
                {n: self.program.uncovered[n].why for n in made if n in self.program.uncovered},
            )  # fmt: skip
        reads = tuple(
            n for n in sorted(later)
            if (n in self.inputs or n in outputs or n in made) and n not in known
            and self._can_be_read(n)
        )  # fmt: skip
        outside = self.rest.outside | {n for n in made if not self._can_be_read(n)}
        rest = _Rest(tuple(left), self.rest.results, known, outside)
        return Stage(graph, host, Cursor(reads, state=rest))

    def _is_new(self, name: str) -> bool:
        """Whether an output becomes known in this stage. Inputs and constants do in the first."""
        if name in self.inputs:
            return self.first and name in {s.name for s in self.program.inputs}
        if name in self.nodes.env:
            return not (name in self.rest.known or name in self.program.held) or self.first
        return self.first and name in self.program.held

    def _can_be_read(self, name: str) -> bool:
        result = self.rest.results.get(self.program.by_name[name])
        return type_of(result) is not None


def uncovered(program: TorchProgram) -> tuple[Uncovered, ...]:
    """What PyTorch runs, each operator once."""
    return tuple({u.op: u for u in program.uncovered.values()}.values())
