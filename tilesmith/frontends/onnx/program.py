"""OnnxProgram: an ONNX graph as a Program. Its nodes are imported one by one, in order, until one
needs the contents of a value or has to run on the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DTYPES
from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.frontends.onnx.call import Call, Importer, NeedsContents, OnHost, RunOnHost
from tilesmith.frontends.onnx.control import loop_step, spliced
from tilesmith.frontends.onnx.functions import expanded
from tilesmith.frontends.onnx.host import numpy_step, sequence_step
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode, reads_of
from tilesmith.frontends.onnx.operators import importer_of
from tilesmith.frontends.onnx.signature import imported
from tilesmith.frontends.shared.wishes import Wish, checks_of
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Value
from tilesmith.graph.program import Cursor, Feeds, HostStep, Signature, Stage
from tilesmith.ops.quantize import dequantize

Nodes = tuple[OnnxNode, ...]

# Nodes that functions and branches put in, in one stage: functions that call each other twice
# would else become more than any memory holds.
_MAX_PUT_IN = 100_000

# Operators whose results are new in every run.
_RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}


@dataclass(frozen=True, eq=False, repr=False)
class OnnxProgram:
    """`outer` names the values of an enclosing graph that a body reads; they are inputs too."""

    graph: OnnxGraph
    outer: tuple[Signature, ...] = ()

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        return f"<OnnxProgram {self.name}: ({inputs}) -> {', '.join(self.outputs)}>"

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def inputs(self) -> tuple[Signature, ...]:
        return (*self.graph.inputs, *self.outer)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.graph.outputs

    @cached_property
    def start(self) -> Cursor:
        """Reads the inputs as they are declared, also those that no node reads: callers give them
        all.
        """
        cursor = self._cursor(self.graph.nodes, {})
        declared = tuple(s.name for s in self.inputs)
        return replace(cursor, reads=tuple(dict.fromkeys((*declared, *cursor.reads))))

    def stage(self, cursor: Cursor, types: Mapping[str, Value], arrays: Feeds) -> Stage:
        return _Import(self, cursor, types, arrays).run()

    def _cursor(self, nodes: Nodes, constants: Feeds) -> Cursor:
        wanted = dict.fromkeys(x for n in nodes for x in reads_of(n))
        wanted.update(dict.fromkeys(self.outputs))
        made = {"", *constants, *self.graph.initializers, *(x for n in nodes for x in n.outputs)}
        used = {x: a for x, a in constants.items() if x in wanted}
        return Cursor(tuple(x for x in wanted if x not in made), frozenset(), used, nodes)


@contextmanager
def _about(node: OnnxNode) -> Iterator[None]:
    """Whatever a model holds, the user is told which node it is."""
    try:
        yield
    except (NeedsContents, RunOnHost):
        raise
    except TilesmithError as error:
        if str(error).startswith(str(node)):
            raise
        raise GraphError(f"{node}: {error}") from error.__cause__
    except Exception as error:
        raise GraphError(f"{node} cannot be read: {type(error).__name__}: {error}") from error


class _Import:
    """The import of one stage."""

    def __init__(
        self, program: OnnxProgram, cursor: Cursor, types: Mapping[str, Value], arrays: Feeds
    ) -> None:
        self.program, self.cursor = program, cursor
        # A pass turns what is quantised into integer kernels; float weights would hide it.
        self.builder = GraphBuilder(program.name, unfolded=(dequantize,))
        self.env: dict[str, Value] = {}
        self.inputs = set()
        self.wishes: list[Wish] = []
        for name in cursor.reads:
            if name in cursor.contents:
                self.env[name] = self.builder.constant(arrays[name], name)
            else:
                v = types[name]
                self.env[name] = self.builder.input(name, v.shape, v.dtype)
                self.inputs.add(name)
        for name, a in cursor.constants.items():
            self.env[name] = self.builder.constant(a, name)

    def run(self) -> Stage:
        nodes = deque(self.cursor.state)
        put_in = 0
        while nodes:
            node = nodes.popleft()
            body: Nodes | None = None
            try:
                with _about(node):
                    body = spliced(node, self)
                    if body is None:
                        if (step := loop_step(node, self._body, self.type_of)) is not None:
                            return self._end(tuple(nodes), step)
                        part = sequence_step(node, nodes, self.program.outputs)
                        if part is not None:
                            return self._end(tuple(nodes)[part[1] :], part[0])
                    importer = importer_of(node, self.program.graph)
                    if body is None and importer is None:
                        body = self._function(node)
                    if body is None:
                        self._import(node, importer or OnHost("no kernel is known for it"))
            except NeedsContents as need:
                if need.value in self.cursor.contents:
                    raise GraphError(
                        f"{node} asks twice for the contents of {need.value!r}"
                    ) from None
                return self._end((node, *nodes), None, need.value)
            except RunOnHost as why:
                with _about(node):
                    body = None if importer is None else self._function(node)
                    if body is None and not self._fold(step := numpy_step(node, why)):
                        return self._end(tuple(nodes), step)
            if body is not None:
                put_in += len(body)
                if put_in > _MAX_PUT_IN:
                    raise GraphError(
                        f"{node}: the functions and branches that are called have more than "
                        f"{_MAX_PUT_IN} nodes together"
                    )
                nodes.extendleft(reversed(body))
        return self._end((), None)

    def _function(self, node: OnnxNode) -> Nodes | None:
        return expanded(node, self.program.graph, self.type_of)

    def _import(self, node: OnnxNode, importer: Importer) -> None:
        inputs = [self._value(x) if x else None for x in node.inputs]
        call = Call(node, inputs, self.builder)
        results: Any = imported(importer, call)
        self.wishes += (w for w in call.wishes if w.value.name in self.inputs)
        several: Sequence[Value | None] = (
            results if isinstance(results, tuple | list) else (results,)
        )
        for name, v in zip(node.outputs, several, strict=False):
            if name and v is None:
                raise GraphError(f"{node} has no output {name!r}")
            if name and v is not None:
                self.env[name] = v
        if missing := [x for x in node.outputs[len(several) :] if x]:
            raise GraphError(f"{node} has no output {missing[0]!r}")

    def _fold(self, step: HostStep) -> bool:
        """Computes a step of the host whose inputs are all constants, where that can be."""
        arrays = [self.known(x) if x else None for x in step.inputs]
        missing = [x for x, a in zip(step.inputs, arrays, strict=True) if x and a is None]
        if missing or not any(step.inputs) or step.op in _RANDOM:
            return False
        results = [*step.function(arrays, ())]
        made = [(n, np.asarray(a)) for n, a in zip(step.outputs, results, strict=False) if n]
        if any(a.dtype.name not in DTYPES for _, a in made):
            return False
        for name, a in made:
            self.env[name] = self.builder.constant(a, name)
        return True

    def _value(self, name: str) -> Value:
        if name not in self.env:
            a = self.program.graph.initializers.get(name)
            if a is None:
                raise GraphError(f"nothing makes the value {name!r}")
            self.env[name] = self.builder.constant(a, name)
        return self.env[name]

    # what importers of control flow ask
    def type_of(self, name: str) -> Value:
        return self._value(name)

    def known(self, name: str) -> Array | None:
        return self.builder.array(self._value(name))

    def contents(self, name: str) -> Array:
        a = self.known(name)
        if a is None:
            raise NeedsContents(name)
        return a

    def _body(self, graph: OnnxGraph, outer: tuple[Signature, ...]) -> OnnxProgram:
        own = self.program.graph
        known = replace(graph, functions=own.functions, operators=own.operators)
        return OnnxProgram(known, outer)

    def _end(self, nodes: Nodes, host: HostStep | None, need: str = "") -> Stage:
        """The stage up to here. What is computed and still wanted becomes an output of its graph;
        constants travel with the cursor.
        """
        wanted = {x for n in nodes for x in reads_of(n)} | set(self.program.outputs)
        if host is not None:
            wanted |= {x for x in host.inputs if x}
        last = not nodes and host is None
        outputs: dict[str, Value] = {}
        constants = {}
        for name in self.program.outputs if last else sorted(wanted & self.env.keys()):
            v = self._value(name)
            a = self.builder.array(v)
            if last:
                outputs[name] = v
            elif a is not None and name not in self.program.graph.initializers:
                constants[name] = a
            elif a is None and name not in self.inputs:
                outputs[name] = v
        graph = self.builder.finish(outputs, checks_of(self.wishes, self.inputs, outputs))
        if last:
            return Stage(graph, None, None)
        cursor = self.program._cursor(nodes, constants)
        contents = (self.cursor.contents | ({need} if need else set())) & set(cursor.reads)
        if host is not None:  # its inputs may be constants of this stage
            host = replace(host, constants=self._constants_of(host))
        return Stage(graph, host, replace(cursor, contents=frozenset(contents)))

    def _constants_of(self, host: HostStep) -> dict[str, Any]:
        found = {}
        for x in host.inputs:
            if x and (a := self.builder.array(self._value(x))) is not None:
                found[x] = a
        return found
