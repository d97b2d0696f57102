"""An Executor as plain data: a description of JSON values, machine code and weights. And back: an
Executor from those, without compiling anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any, NoReturn

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import dtype
from tilesmith.base.errors import BuildError, GraphError
from tilesmith.base.process import version
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact, entry_from_json, entry_to_json
from tilesmith.graph.checks import Check
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array, Graph, Value
from tilesmith.graph.memory import Arena
from tilesmith.graph.partition import Group
from tilesmith.graph.plan import Place, Plan, Step
from tilesmith.graph.profile import node_names
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.serialize import function_to_json
from tilesmith.runtime.export.library import Weights
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.task.task import CODEGEN_VERSION


@dataclass(frozen=True)
class SavedPlan:
    description: Mapping[str, Any]
    kernels: tuple[bytes, ...]  # object files, each once
    weights: Weights


def saved_plan(name: str, executor: Executor) -> SavedPlan:
    plan, kernels = executor.plan, executor.kernels
    graph = plan.graph
    weights = Weights()
    artifacts = {k.artifact.symbol: k for k in kernels}  # symbols have a digest of the code
    for k in artifacts.values():
        if k.artifact.checks:
            raise BuildError(f"{k.name!r} is built with checked=True, for debugging")
    functions = {step.func.digest: function_to_json(step.func) for step in plan.steps}
    numbers = {key: k for k, key in enumerate(functions)}
    positions = {symbol: k for k, symbol in enumerate(artifacts)}
    steps = [
        {
            "kernel": positions[kernels[k].artifact.symbol],
            "function": numbers[step.func.digest],
            "nodes": node_names(step),
            "places": [_place_to_json(p) for p in step.places],
            "weights": {p: weights.add(a) for p, a in executor.constants(k).items()},
        }
        for k, step in enumerate(plan.steps)
    ]
    returned = {p.name for _, p in plan.copies if p.kind == "constant"}
    target = next((k.artifact.target for k in kernels), cpu())
    description = {
        "tilesmith": version(),
        "codegen": CODEGEN_VERSION,
        "target": json.loads(target.to_json()),
        "name": name,
        "inputs": [_value_to_json(graph.values[x]) for x in graph.inputs],
        "outputs": [[n, *_value_to_json(graph.values[v])] for n, v in graph.outputs],
        "checks": [asdict(c) for c in graph.checks],
        "kernels": [_kernel_to_json(k) for k in artifacts.values()],
        "functions": [*functions.values()],
        "steps": steps,
        "arena": [plan.arena.nbytes, plan.arena.lower_bound],
        "copies": [[n, _place_to_json(p)] for n, p in plan.copies],
        "constants": [_constant_to_json(x, a, weights) for x, a in graph.constants.items()
                      if x in returned],
    }  # fmt: skip
    return SavedPlan(description, tuple(k.artifact.code for k in artifacts.values()), weights)


def _value_to_json(v: Value) -> list[Any]:
    return [v.name, v.shape, v.dtype.name]


def _place_to_json(p: Place) -> list[Any]:
    return [p.kind, p.name, p.offset]


def _constant_to_json(name: str, a: Array, weights: Weights) -> list[Any]:
    return [name, a.shape, dtype(a.dtype).name, weights.add(a)]


def _kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    a = kernel.artifact
    return {
        "name": a.name,
        "entries": [entry_to_json(e) for e in a.entries],
        "cpu": a.cpu,
        "features": a.features,
        "language": a.language,
        "origin": asdict(kernel.origin),
    }


class LoadedKernel(Kernel):
    """A kernel of a saved model, which has machine code only."""

    @property
    def source(self) -> str:
        self._refuse("source")

    @property
    def assembly(self) -> str:
        self._refuse("assembly")

    def _refuse(self, what: str) -> NoReturn:
        raise BuildError(
            f"{self.name!r} is of a saved model, which has machine code only; compile the model to "
            f"read its {what}"
        )


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
    kernels = [
        _kernel(k, code, target, threads) for k, code in zip(d["kernels"], codes, strict=True)
    ]
    functions = [function_from_json(text) for text in d["functions"]]
    steps, held = [], []
    for s in d["steps"]:
        func = functions[s["function"]]
        places = tuple(map(_place, s["places"]))
        steps.append(Step(Group((), (), ()), func, func, places, tuple(map(str, s["nodes"]))))
        wanted = kernels[s["kernel"]].artifact.parameters
        held.append(
            {
                int(p): _array(weights, at, wanted[int(p)].shape, wanted[int(p)].dtype.numpy)
                for p, at in s["weights"].items()
            }
        )
    constants = {
        step.places[p].name: a
        for step, own in zip(steps, held, strict=True)
        for p, a in own.items()
    }
    constants |= {  # those that are returned are as the model states them, not packed
        name: _array(weights, at, tuple(shape), dtype(kind).numpy)
        for name, shape, kind, at in d["constants"]
    }
    values = [_value(*v) for v in (*d["inputs"], *(o[1:] for o in d["outputs"]))]
    graph = Graph(
        name=str(d["name"]),
        inputs=tuple(str(name) for name, _, _ in d["inputs"]),
        outputs=tuple((str(name), str(value)) for name, value, _, _ in d["outputs"]),
        nodes=(),
        values={v.name: v for v in values},
        constants=constants,
        checks=tuple(map(_check, d["checks"])),
    )
    arena, lower_bound = map(int, d["arena"])
    copies = tuple((str(name), _place(place)) for name, place in d["copies"])
    plan = Plan(graph, tuple(steps), Arena({}, arena, lower_bound), copies)
    for name in {p.name for _, p in copies if p.kind == "constant"} - constants.keys():
        raise GraphError(f"the constant {name!r} is missing")
    return Executor(plan, [kernels[s["kernel"]] for s in d["steps"]], None, held, affinity)


def _kernel(d: Mapping[str, Any], code: bytes, target: Target, threads: int | None) -> Kernel:
    artifact = Artifact(
        str(d["name"]), target, tuple(map(entry_from_json, d["entries"])), "", code, str(d["cpu"]),
        str(d["features"]), str(d["language"]),
    )  # fmt: skip
    return LoadedKernel(artifact, Origin(**d["origin"]), threads=threads)


def _place(data: Any) -> Place:
    kind, name, offset = data
    return Place(str(kind), str(name), int(offset))


def _value(name: str, shape: Iterable[int], kind: str) -> Value:
    return Value(str(name), tuple(map(int, shape)), dtype(kind))


def _check(data: Mapping[str, Any]) -> Check:
    bounds: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Check(**bounds)


def _array(raw: Array, at: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
    if prod(shape) == 0:
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, raw, at)
