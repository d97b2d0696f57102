"""StagedRun: a Program and a way to compile graphs in, a callable out. Each stage is compiled at
the first call with its shapes and kept, up to a bound.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ArgumentError, GraphError, TilesmithError
from tilesmith.codegen.artifact import Parameter
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.program import Cursor, Feeds, HostStep, Program, Runner, Signature, Stage
from tilesmith.runtime.arrays import cast_advice, convert, without_gradient

MAX_STAGES = 32  # kept for one cursor: a caller with ever new shapes must not fill the memory

Compile = Callable[[Graph], Runner]


class CompiledStage:
    """A stage with its compiled graph, and the stages that follow it."""

    def __init__(self, stage: Stage, compile_graph: Compile) -> None:
        self.stage = stage
        self.run = compile_graph(stage.graph)
        host = stage.host
        bodies = host.bodies if host is not None else ()
        self.bodies: Sequence[Runner] = [StagedRun(b, compile_graph) for b in bodies]
        self.next = None if stage.cursor is None else _Stages(stage.cursor)


RunPart = Callable[[CompiledStage, Feeds], dict[str, Array]]


def _run_graph(done: CompiledStage, feeds: Feeds) -> dict[str, Array]:
    return done.run(feeds)


def _run_host(done: CompiledStage, live: Feeds) -> dict[str, Array]:
    assert done.stage.host is not None
    return run_host(done.stage.host, live, done.bodies)


class _Stages:
    """What has been compiled for a cursor, by the types and contents that it was compiled for."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.kept: OrderedDict[Any, CompiledStage] = OrderedDict()
        self.lock = threading.Lock()

    def key(self, live: Feeds) -> Any:
        key: list[Any] = []
        for name in self.cursor.reads:
            a = live[name]
            key += (a.shape, a.dtype)
            if name in self.cursor.contents:
                key.append(a.tobytes())
        return tuple(key)


class StagedRun:
    """Call it with arrays by name; it returns the outputs by name."""

    def __init__(self, program: Program, compile_graph: Compile) -> None:
        self.program, self._compile = program, compile_graph
        self._first = _Stages(program.start)

    def __call__(self, feeds: Feeds) -> dict[str, Array]:
        return self.run(feeds, _run_graph, _run_host)

    def run(self, feeds: Feeds, run_graph: RunPart, run_host: RunPart) -> dict[str, Array]:
        """With other ways to run a stage's graph and its host step: a profile times them."""
        # Numbers of NumPy, as a row of a vector is one, have no address that lasts.
        live = {n: np.asarray(a) for n, a in feeds.items()}
        stages: _Stages | None = self._first
        while stages is not None:
            live |= stages.cursor.constants
            done = self.compiled(stages, live)
            live |= run_graph(done, {n: live[n] for n in done.stage.graph.inputs})
            if done.stage.host is not None:
                live |= run_host(done, live)
            stages = done.next
        return {name: live[name] for name in self.program.outputs}

    def compiled(self, stages: _Stages, live: Feeds) -> CompiledStage:
        key = stages.key(live)
        with stages.lock:
            found = stages.kept.get(key)
            if found is not None:
                stages.kept.move_to_end(key)
                return found
            cursor = stages.cursor
            types = {n: _type(n, live[n]) for n in cursor.reads}
            arrays = {n: live[n].copy() for n in cursor.contents}
            stage = self.program.stage(cursor, types, arrays)
            found = stages.kept[key] = CompiledStage(stage, self._compile)
            while len(stages.kept) > MAX_STAGES:
                stages.kept.popitem(last=False)
            return found

    def known_stages(self) -> Iterator[CompiledStage]:
        """All that has been compiled so far, in the order of the model."""
        queue = [self._first]
        while queue:
            for done in queue.pop(0).kept.values():
                yield done
                if done.next is not None:
                    queue.append(done.next)


def _type(name: str, a: Array) -> Value:
    return Value(name, a.shape, dtype_named(a.dtype))


def run_host(step: HostStep, live: Feeds, bodies: Sequence[Runner]) -> dict[str, Array]:
    arrays = [(live[x] if x in live else step.constants[x]) if x else None for x in step.inputs]
    try:
        results = step.function(arrays, bodies)
    except TilesmithError:
        raise
    except Exception as error:  # of the package that runs it, which may raise anything
        raise GraphError(
            f"{step.op} {step.name!r} failed on the host: {type(error).__name__}: {error}"
        ) from error
    out = {}
    for name, a in zip(step.outputs, results, strict=False):
        if name:
            out[name] = np.asarray(a)
    return out


def named_feeds(inputs: Sequence[Signature], feeds: Any, model: str) -> dict[str, Any]:
    """What is given for each input, as it is."""
    if not hasattr(feeds, "keys"):
        raise ArgumentError(
            f"{model} takes its inputs by name, as a dict of arrays; it is given a "
            f"{type(feeds).__name__}. Its inputs are {_named(inputs)}"
        )
    names = [s.name for s in inputs]
    if unknown := [n for n in feeds if n not in names]:
        raise ArgumentError(f"{model} has no input {unknown[0]!r}; its inputs are {_named(inputs)}")
    if missing := [n for n in names if n not in feeds]:
        raise ArgumentError(f"{model} is not given {missing[0]!r}; its inputs are {_named(inputs)}")
    return dict(feeds)


def checked_feeds(inputs: Sequence[Signature], feeds: Any, model: str) -> dict[str, Array]:
    """The arrays for each input, checked against its signature."""
    feeds = named_feeds(inputs, feeds, model)
    out: dict[str, Array] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for s in inputs:
        try:
            a = _array(without_gradient(feeds[s.name], f"{model}: input {s}"), s)
        except ArgumentError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:  # as the object's own package says
            raise ArgumentError(
                f"{model}: input {s} is given a {type(feeds[s.name]).__name__} that is no array: "
                f"{error}"
            ) from error
        if a.dtype != s.dtype.numpy:
            how = cast_advice(feeds[s.name], s.dtype)
            raise ArgumentError(f"{model}: input {s} is given as {a.dtype}; pass {how}")
        if s.dims is not None:
            _check_shape(s, a, model, sizes)
        out[s.name] = a
    return out


def _array(value: Any, s: Signature) -> Array:
    if s.dtype.name == "bfloat16" and hasattr(value, "__dlpack__"):  # NumPy itself has none
        return convert(value, Parameter(s.name, tuple(value.shape), s.dtype, output=False))
    return np.asarray(value)


def _check_shape(s: Signature, a: Array, model: str, sizes: dict[str, tuple[int, str]]) -> None:
    assert s.dims is not None
    if a.ndim != len(s.dims):
        raise ArgumentError(
            f"{model}: input {s} has rank {len(s.dims)}; it is given shape {list(a.shape)}"
        )
    for d, (wanted, n) in enumerate(zip(s.dims, a.shape, strict=True)):
        if isinstance(wanted, int) and n != wanted:
            raise ArgumentError(
                f"{model}: input {s} is given shape {list(a.shape)}; dimension {d} must be {wanted}"
            )
        if isinstance(wanted, str):
            before, where = sizes.setdefault(wanted, (n, s.name))
            if before != n:
                raise ArgumentError(
                    f"{model}: dimension {wanted!r} is {before} in {where!r} and {n} in {s.name!r}"
                )


def _named(inputs: Sequence[Signature]) -> str:
    return ", ".join(map(str, inputs)) or "none"
