"""A model that was compiled once for all of its sizes as plain data, and back: what `saved_plan` is
for models of fixed sizes. Shapes and places are the texts of expressions of the sizes.

A loaded model has no importer that could tell what it computes at sizes that nothing was compared
at, so it refuses these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import dtype
from tilesmith.base.errors import ArgumentError, GraphError
from tilesmith.base.target import Target
from tilesmith.expr.ints import Int, parse_int
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.open_executor import OpenExecutor
from tilesmith.graph.open_plan import OpenLifetime, OpenPlace, OpenPlan, OpenStep, Shape, sizes_text
from tilesmith.graph.open_run import OpenRun
from tilesmith.graph.partition import Group
from tilesmith.graph.program import Cursor, Feeds, Signature, Stage
from tilesmith.graph.saved_kernels import SavedKernels, loaded_kernels
from tilesmith.graph.saved_plan import (
    SavedPlan,
    constant_to_json,
    described_steps,
    loaded_check,
    loaded_constants,
    loaded_value,
    mapped_array,
    place_to_json,
    value_to_json,
)
from tilesmith.ir.deserialize import function_from_json
from tilesmith.runtime.export.library import Weights


@dataclass(frozen=True)
class SavedProgram:
    """The inputs and outputs of a model whose importer is not there."""

    name: str
    inputs: tuple[Signature, ...]
    outputs: tuple[str, ...]
    start: Cursor

    def stage(self, cursor: Cursor, types: Mapping[str, Value], arrays: Feeds) -> Stage:
        raise GraphError(f"{self.name} is a saved model, which compiles nothing")


def saved_open_plan(name: str, run: OpenRun) -> SavedPlan:
    executor = run.executor
    plan, kernels, graph = executor.plan, executor.kernels, executor.plan.graph
    weights, code = Weights(), SavedKernels(kernels)
    returned = {p.name for _, p in plan.copies if p.kind == "constant"}
    values = dict.fromkeys([*graph.inputs, *(v for _, v in graph.outputs)])
    shapes = {*values, *plan.cut, *plan.open_extents.values()}
    description = {
        **code.described(name),
        "inputs": [[s.name, s.dtype.name, s.dims] for s in plan.inputs],
        "outputs": graph.outputs,
        "values": [value_to_json(graph.values[x]) for x in values],
        "sizes": [[s.name, s.range, s.samples] for s in plan.sizes],
        "derived": {n: str(e) for n, e in plan.derived.items()},
        "trusted": run.trusted,
        "largest": plan.largest,
        "shapes": {x: list(map(str, e)) for x, e in plan.shapes.items() if x in shapes},
        "checks": [asdict(c) for c in plan.checks],
        **described_steps(plan.steps, kernels, executor.held.__getitem__, code, weights),
        "lifetimes": [[x, str(t.nbytes), t.first, t.last] for x, t in plan.lifetimes.items()],
        "copies": [[n, place_to_json(p)] for n, p in plan.copies],
        "cut": sorted(plan.cut),
        "constants": [constant_to_json(x, a, weights) for x, a in graph.constants.items()
                      if x in returned | plan.cut],
    }  # fmt: skip
    return SavedPlan(description, code.objects, weights)


def loaded_open_run(
    d: Mapping[str, Any],
    codes: Sequence[bytes],
    weights: Array,
    target: Target,
    threads: int | None = None,
    affinity: frozenset[int] | None = None,
) -> OpenRun:
    """What `saved_open_plan` described. Anything else raises a TilesmithError, ValueError,
    TypeError, LookupError or AttributeError.
    """
    every = loaded_kernels(d, codes, target, threads)
    kernels = [every[s["kernel"]] for s in d["steps"]]
    functions = [function_from_json(text) for text in d["functions"]]
    steps, held = [], []
    for s, kernel in zip(d["steps"], kernels, strict=True):
        places, nodes = tuple(map(_place, s["places"])), tuple(map(str, s["nodes"]))
        func = functions[s["function"]]
        steps.append(OpenStep(Group((), (), ()), func, places, _expressions(s["sizes"]), nodes))
        wanted = kernel.artifact.parameters
        held.append(
            {
                int(p): mapped_array(weights, at, wanted[int(p)].shape, wanted[int(p)].dtype.numpy)
                for p, at in s["weights"].items()
            }
        )
    inputs = tuple(_signature(*s) for s in d["inputs"])
    values = [loaded_value(*v) for v in d["values"]]
    checks = tuple(map(loaded_check, d["checks"]))
    graph = Graph(
        name=str(d["name"]),
        inputs=tuple(s.name for s in inputs),
        outputs=tuple((str(name), str(value)) for name, value in d["outputs"]),
        nodes=(),
        values={v.name: v for v in values},
        constants=loaded_constants(steps, held) | {
            name: mapped_array(weights, at, tuple(shape), dtype(kind).numpy)
            for name, shape, kind, at in d["constants"]
        },
        checks=checks,
    )  # fmt: skip
    plan = OpenPlan(
        inputs,
        tuple(_size(*s) for s in d["sizes"]),
        _expressions(d["derived"]),
        graph,
        {str(x): _integers(e) for x, e in d["shapes"].items()},
        tuple(steps),
        {str(x): OpenLifetime(parse_int(n), int(a), int(b)) for x, n, a, b in d["lifetimes"]},
        tuple((str(name), _place(place)) for name, place in d["copies"]),
        checks,
        frozenset(map(str, d["cut"])),
        {str(n): int(v) for n, v in d["largest"].items()},
    )
    read = {p.name for _, p in plan.copies if p.kind == "constant"} | plan.cut
    for name in read - graph.constants.keys():
        raise GraphError(f"the constant {name!r} is missing")
    executor = OpenExecutor(plan, kernels, None, affinity, held)
    trusted = {n: (int(d["trusted"][n][0]), int(d["trusted"][n][1])) for n in plan.largest}

    def refuse(sizes: Mapping[str, int]) -> NoReturn:
        name = next(n for n, v in sizes.items() if not trusted[n][0] <= v <= trusted[n][1])
        low, high = trusted[name]
        raise ArgumentError(
            f"{graph.name} is a saved model for {name.removeprefix('#')} from {low} to {high}, and "
            f"is given {sizes_text(sizes)}; compile it with another range to run it there"
        )

    program = SavedProgram(graph.name, inputs, graph.shown_outputs, Cursor(graph.inputs))
    smallest = {n: low for n, (low, _) in trusted.items()}
    return OpenRun(program, executor, refuse, compiles_nothing, smallest)


def compiles_nothing(graph: Graph) -> Executor:
    raise GraphError(f"{graph.name} is a saved model, which compiles nothing")


def _expressions(data: Mapping[str, str]) -> dict[str, Int]:
    return {str(n): parse_int(str(e)) for n, e in data.items()}


def _integers(data: Iterable[str]) -> Shape:
    return tuple(parse_int(str(e)) for e in data)


def _place(data: Any) -> OpenPlace:
    kind, name, offset = data
    return OpenPlace(str(kind), str(name), parse_int(str(offset)))


def _signature(name: str, kind: str, dims: Iterable[int | str]) -> Signature:
    return Signature(
        str(name), dtype(kind), tuple(d if isinstance(d, str) else int(d) for d in dims)
    )


def _size(name: str, limits: Sequence[int] | None, samples: Iterable[Any]) -> OpenSize:
    return OpenSize(
        str(name),
        None if limits is None else (int(limits[0]), int(limits[1])),
        tuple((int(v), float(w)) for v, w in samples),
    )
