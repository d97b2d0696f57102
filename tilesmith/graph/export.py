"""A compiled model as an exported Library: an Executor in, its calls with all addresses out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tilesmith.base.errors import GraphError
from tilesmith.base.target import cpu
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.open_plan import OpenPlace
from tilesmith.graph.plan import Place
from tilesmith.graph.program import Program, first_stage
from tilesmith.runtime.export.library import (
    Address,
    Call,
    Copy,
    Library,
    Port,
    Weights,
    symbol_of,
)

P = TypeVar("P", Place, OpenPlace)


def model_library(model: str, executor: Executor, name: str) -> Library:
    plan = executor.plan
    graph = plan.graph
    weights = Weights()
    outputs = {n: k for k, (n, _) in enumerate(graph.outputs)}
    address = addresses(
        graph,
        lambda p: Address("arena", p.offset),
        lambda p: Address("weights", weights.add(graph.constants[p.name]) + p.offset),
    )
    calls = []
    for k, (step, kernel) in enumerate(zip(plan.steps, executor.kernels, strict=True)):
        where = arguments(step.places, executor.constants(k), address, weights)
        calls.append(Call(symbol_of(kernel.artifact), where))
    artifacts = {symbol_of(k.artifact): k.artifact for k in executor.kernels}
    returned = [Port(n, graph.values[v].shape, graph.values[v].dtype) for n, v in graph.outputs]
    copies = (
        Copy(outputs[n], address(place), returned[outputs[n]].nbytes) for n, place in plan.copies
    )
    return Library(
        name=name,
        title=f"model {model}",
        target=next((a.target for a in artifacts.values()), cpu()),
        inputs=tuple(_port(graph.values[x]) for x in graph.inputs),
        outputs=tuple(returned),
        calls=tuple(calls),
        artifacts=tuple(artifacts.values()),
        weights=weights,
        copies=tuple(copies),
        arena_nbytes=plan.arena.nbytes,
    )


def addresses(
    graph: Graph, arena: Callable[[P], Address], constant: Callable[[P], Address]
) -> Callable[[P], Address]:
    """Where an array lies in the library; `arena` and `constant` know it of those kinds."""
    inputs = {x: k for k, x in enumerate(graph.inputs)}
    outputs = {n: k for k, (n, _) in enumerate(graph.outputs)}

    def address(place: P) -> Address:
        match place.kind:
            case "arena":
                return arena(place)
            case "constant":
                return constant(place)
            case "input":
                return Address("input", place.offset, inputs[place.name])
            case "output":
                return Address("output", place.offset, outputs[place.name])
        return Address("none")

    return address


def arguments(
    places: Sequence[P], held: Mapping[int, Array], address: Callable[[P], Address],
    weights: Weights,
) -> tuple[Address, ...]:  # fmt: skip
    """Those of a kernel; `held` are weights as it reads them, by the positions of parameters."""
    return tuple(
        Address("weights", weights.add(held[k])) if k in held else address(p)
        for k, p in enumerate(places)
    )


def _port(v: Value) -> Port:
    return Port(v.name, v.shape, v.dtype)


def cannot_export(program: Program, done: str = "exported") -> GraphError:
    """Why a model that runs in stages cannot be exported or saved."""
    if given := [s for s in program.inputs if s.is_open]:
        names = dict.fromkeys(d for s in given for d in s.dims or () if isinstance(d, str))
        dims = ", ".join(f'"{n}": 1' for n in names) or '"batch": 1'
        options = " ".join(f"--dim {n}=1" for n in names) or "--dim batch=1"
        ranges = ", ".join(f'"{n}": (1, 512)' for n in names) or '"batch": (1, 512)'
        opened = " ".join(f"--sizes {n}:1..512" for n in names) or "--sizes batch:1..512"
        return GraphError(
            f"{program.name} cannot be {done} while the sizes of {', '.join(map(str, given))} "
            f"are open; give {'it' if len(names) == 1 else 'them'}, as in "
            f"ts.load_onnx(path, dims={{{dims}}}) or {options}; or compile it once for all "
            f"lengths, as in ts.compile_model(..., sizes={{{ranges}}}) or {opened}"
        )
    stage = first_stage(program)
    if stage is not None and stage.host is not None:
        host = stage.host
        return GraphError(
            f"{program.name} cannot be {done}: its node {host.op} {host.name!r} runs on the host "
            f"in Python ({host.reason}); take it out of the model"
        )
    after = program.start if stage is None or stage.cursor is None else stage.cursor
    read = ", ".join(sorted(after.contents))
    return GraphError(
        f"{program.name} cannot be {done}: it runs in stages, because the contents of {read} "
        "decide what it computes; make them constants of the model"
    )
