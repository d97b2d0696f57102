"""Plans of models that this user has compiled before. The passes and the partition of a model take
longer than all else of a start with kernels that were built before, so their result is kept beside
the kernels: everything but the weights, which are kept as kernels read them.

A kept plan is taken for the very same graph, weights included, as long as the records give the same
answers wherever the partition has asked them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith.base.identity import digest, identity, packed
from tilesmith.codegen.artifact import Parameter
from tilesmith.graph.executor import Executor, constant_key
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.plan import Plan
from tilesmith.runtime.checksum import checksum
from tilesmith.tune.cache import Cache
from tilesmith.tune.partition_choice import Decision, RecordedPartition

_SMALL = 1 << 12  # bytes of an array that lies in the file of the plan itself


class LaterConstants(Mapping[str, Array]):
    """The constants of a graph after its passes, which are run when one is asked for: a model whose
    weights are kept as its kernels read them seldom needs another.
    """

    def __init__(self, names: tuple[str, ...], make: Callable[[], Mapping[str, Array]]) -> None:
        self._names, self._make = dict.fromkeys(names), make
        self._made: Mapping[str, Array] | None = None

    @property
    def are_made(self) -> bool:
        return self._made is not None

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        if self._made is None:
            self._made = self._make()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class KeptWeight:
    """A constant as the kernel of a step reads it. It is a constant of the graph as it was given,
    or kept in a file of its own, or, where it is small, here.
    """

    layout: str  # what the parameter of the kernel says of it
    source: str = ""
    key: str = ""
    array: Array | None = None


@dataclass(frozen=True)
class KeptPlan:
    plan: Plan  # its graph has no constants
    constants: tuple[str, ...]
    decisions: tuple[Decision, ...]
    weights: Mapping[tuple[int, int], KeptWeight]  # by step and parameter
    keys: tuple[str, ...]  # of what is built for each step
    drafts: Mapping[str, str]  # where the cache has it, if there was no database


@dataclass(frozen=True)
class KnownWeights:
    """What an Executor asks for constants before it packs them itself."""

    of: Mapping[tuple[int, int], KeptWeight]
    graph: Graph  # as it was given
    cache: Cache

    def __call__(self, step: int, position: int, p: Parameter) -> Array | None:
        known = self.of.get((step, position))
        if known is None or known.layout != _layout(p):
            return None
        if known.source:
            array = self.graph.constants[known.source]
            return array if array.flags.c_contiguous and array.flags.aligned else None
        if known.array is not None:
            return known.array
        return self.cache.get_array(known.key, p.shape, p.dtype.numpy)


@dataclass(frozen=True)
class KeptPlans:
    """`made` runs the passes on a graph; `groups` decides; `code` stands for all code and settings
    that both depend on.
    """

    cache: Cache
    code: str
    made: Callable[[Graph], Graph]
    groups: RecordedPartition

    def key(self, graph: Graph) -> str | None:
        """None if the graph cannot be told from others."""
        try:
            nodes = [
                (identity(n.function), n.name, n.inputs, n.outputs, identity(n.settings), n.origin)
                for n in graph.nodes
            ]
            rest = identity((graph.checks, graph.precision))
        except ArgumentError:
            return None
        values = [str(v) for v in graph.values.values()]
        weights = [f"{x} {_contents(a)}" for x, a in graph.constants.items()]
        what = graph.name, graph.inputs, graph.outputs
        return digest(
            self.code, "plan", repr(what), repr(nodes), rest, *values, "weights", *weights
        )

    def get(self, key: str, graph: Graph) -> tuple[KeptPlan, KnownWeights] | None:
        data = self.cache.get(key)
        if data is None:
            return None
        try:
            kept = pickle.loads(data)  # like kernels, from a folder that only this user can write
        except Exception:  # damaged: whatever reading such bytes raises
            return None
        if not isinstance(kept, KeptPlan) or not self.groups.still_holds(kept.decisions):
            return None
        constants = LaterConstants(kept.constants, lambda: self.made(graph).constants)
        plan = replace(kept.plan, graph=replace(kept.plan.graph, constants=constants))
        return replace(kept, plan=plan), KnownWeights(kept.weights, graph, self.cache)

    def put(
        self, key: str, graph: Graph, executor: Executor, decisions: tuple[Decision, ...],
        keys: tuple[str, ...], drafts: Mapping[str, str],
    ) -> None:  # fmt: skip
        plan = executor.plan
        given = {id(a): x for x, a in graph.constants.items()}
        weights = {}
        for k, (step, kernel) in enumerate(zip(plan.steps, executor.kernels, strict=True)):
            for at, array in executor.constants(k).items():
                p = kernel.artifact.parameters[at]
                weights[k, at] = self._weight(
                    p, array, plan.graph.constants[step.group.inputs[at]], given
                )
        bare = replace(plan, graph=replace(plan.graph, constants={}))
        names = tuple(plan.graph.constants)
        data = packed(KeptPlan(bare, names, decisions, weights, keys, drafts))
        if data is not None:  # operators of a script cannot be read by another process
            self.cache.put(key, data)

    def _weight(
        self, p: Parameter, array: Array, stated: Array, given: Mapping[int, str]
    ) -> KeptWeight:
        layout = _layout(p)
        if array is stated and id(array) in given:
            return KeptWeight(layout, source=given[id(array)])
        if array.nbytes <= _SMALL:
            return KeptWeight(layout, array=np.array(array))
        key = constant_key(p, stated)
        if p.packed is None:  # those that are packed are kept already
            self.cache.put_array(key, array)
        return KeptWeight(layout, key=key)


def _layout(p: Parameter) -> str:
    return repr((p.packed, p.shape, p.dtype.name))


def _contents(a: Array) -> str:
    flat: Any = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    return f"{a.shape} {a.dtype} {checksum(flat.data).hex()}"
