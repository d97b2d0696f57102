"""An Executor as plain data: a description of JSON values, machine code and weights. And back: an
Executor from those, without compiling anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import dtype
from tilesmith.base.errors import GraphError
from tilesmith.base.target import Target
from tilesmith.expr.ints import Int
from tilesmith.graph.checks import Check
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.memory import Arena
from tilesmith.graph.open_plan import OpenPlace, OpenStep
from tilesmith.graph.partition import Group
from tilesmith.graph.plan import Place, Plan, Step
from tilesmith.graph.profile import node_names
from tilesmith.graph.saved_kernels import SavedKernels, loaded_kernels
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.serialize import function_to_json
from tilesmith.runtime.export.library import Weights
from tilesmith.runtime.kernel import Kernel


@dataclass(frozen=True)
class SavedPlan:
    description: Mapping[str, Any]
    kernels: tuple[bytes, ...]  # object files, each once
    weights: Weights


def saved_plan(name: str, executor: Executor) -> SavedPlan:
    plan, kernels = executor.plan, executor.kernels
    graph = plan.graph
    weights = Weights()
    code = SavedKernels(kernels)
    returned = {p.name for _, p in plan.copies if p.kind == "constant"}
    description = {
        **code.described(name),
        "inputs": [value_to_json(graph.values[x]) for x in graph.inputs],
        "outputs": [[n, *value_to_json(graph.values[v])] for n, v in graph.outputs],
        "checks": [asdict(c) for c in graph.checks],
        **described_steps(plan.steps, kernels, executor.constants, code, weights),
        "arena": [plan.arena.nbytes, plan.arena.lower_bound],
        "copies": [[n, place_to_json(p)] for n, p in plan.copies],
        "constants": [constant_to_json(x, a, weights) for x, a in graph.constants.items()
                      if x in returned],
    }  # fmt: skip
    return SavedPlan(description, code.objects, weights)


def described_steps(
    steps: Sequence[Step | OpenStep], kernels: Sequence[Kernel],
    held: Callable[[int], Mapping[int, Array]], code: SavedKernels, weights: Weights,
) -> dict[str, Any]:  # fmt: skip
    """The functions, each once, and the steps with the weights that they hold."""
    functions = {step.func.digest: function_to_json(step.func) for step in steps}
    numbers = {key: k for k, key in enumerate(functions)}
    described = [
        {
            "kernel": code.number(kernels[k]),
            "function": numbers[step.func.digest],
            "nodes": node_names(step),
            "places": [place_to_json(p) for p in step.places],
            "weights": {p: weights.add(a) for p, a in held(k).items()},
        }
        | ({"sizes": _texts(step.sizes)} if isinstance(step, OpenStep) else {})
        for k, step in enumerate(steps)
    ]
    return {"functions": [*functions.values()], "steps": described}


def _texts(sizes: Mapping[str, Int]) -> dict[str, str]:
    return {n: str(e) for n, e in sizes.items()}


def value_to_json(v: Value) -> list[Any]:
    return [v.name, v.shape, v.dtype.name]


def place_to_json(p: Place | OpenPlace) -> list[Any]:
    return [p.kind, p.name, p.offset if isinstance(p, Place) else str(p.offset)]


def constant_to_json(name: str, a: Array, weights: Weights) -> list[Any]:
    return [name, a.shape, dtype(a.dtype).name, weights.add(a)]


def target_of(description: Mapping[str, Any]) -> Target:
    return Target.from_json(json.dumps(description["target"]))


def loaded_executor(
    d: Mapping[str, Any],
    codes: Sequence[bytes],
    weights: Array,
    target: Target,
    threads: int | None = None,
    affinity: frozenset[int] | None = None,
) -> Executor:
    """What `saved_plan` described. Anything else raises a TilesmithError, ValueError, TypeError,
    LookupError or AttributeError.
    """
    kernels = loaded_kernels(d, codes, target, threads)
    functions = [function_from_json(text) for text in d["functions"]]
    steps, held = [], []
    for s in d["steps"]:
        func = functions[s["function"]]
        places = tuple(map(_place, s["places"]))
        steps.append(Step(Group((), (), ()), func, func, places, tuple(map(str, s["nodes"]))))
        wanted = kernels[s["kernel"]].artifact.parameters
        held.append(
            {
                int(p): mapped_array(weights, at, wanted[int(p)].shape, wanted[int(p)].dtype.numpy)
                for p, at in s["weights"].items()
            }
        )
    constants = loaded_constants(
        steps, held
    ) | {  # those that are returned are as the model states them, not packed
        name: mapped_array(weights, at, tuple(shape), dtype(kind).numpy)
        for name, shape, kind, at in d["constants"]
    }
    values = [loaded_value(*v) for v in (*d["inputs"], *(o[1:] for o in d["outputs"]))]
    graph = Graph(
        name=str(d["name"]),
        inputs=tuple(str(name) for name, _, _ in d["inputs"]),
        outputs=tuple((str(name), str(value)) for name, value, _, _ in d["outputs"]),
        nodes=(),
        values={v.name: v for v in values},
        constants=constants,
        checks=tuple(map(loaded_check, d["checks"])),
    )
    arena, lower_bound = map(int, d["arena"])
    copies = tuple((str(name), _place(place)) for name, place in d["copies"])
    plan = Plan(graph, tuple(steps), Arena({}, arena, lower_bound), copies)
    for name in {p.name for _, p in copies if p.kind == "constant"} - constants.keys():
        raise GraphError(f"the constant {name!r} is missing")
    return Executor(plan, [kernels[s["kernel"]] for s in d["steps"]], None, held, affinity)


def loaded_constants(
    steps: Sequence[Step | OpenStep], held: Sequence[Mapping[int, Array]]
) -> dict[str, Array]:
    """As the kernels read them."""
    return {
        step.places[p].name: a
        for step, own in zip(steps, held, strict=True)
        for p, a in own.items()
    }


def _place(data: Any) -> Place:
    kind, name, offset = data
    return Place(str(kind), str(name), int(offset))


def loaded_value(name: str, shape: Iterable[int], kind: str) -> Value:
    return Value(str(name), tuple(map(int, shape)), dtype(kind))


def loaded_check(data: Mapping[str, Any]) -> Check:
    bounds: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Check(**bounds)


def mapped_array(raw: Array, at: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    if prod(shape) == 0:
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, raw, at)
