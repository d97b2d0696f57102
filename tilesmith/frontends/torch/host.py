"""What PyTorch runs between two compiled graphs: nodes in, a HostStep out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import fx

from tilesmith.frontends.torch.tensors import array_of, attribute, is_number
from tilesmith.graph.graph import Array
from tilesmith.graph.program import HostStep, Runner
from tilesmith.runtime.arrays import torch_tensor


class _Nodes:
    """The nodes as a function of arrays."""

    def __init__(
        self, module: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[str],
        results: Sequence[str], fixed: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.nodes, self.inputs, self.results, self.fixed = nodes, inputs, results, dict(fixed)
        for node in nodes:
            for n in node.all_input_nodes:
                if n.op == "get_attr":
                    self.fixed[n.name] = attribute(module, str(n.target))
        self.scalars = {n.name for node in nodes for n in node.all_input_nodes if is_number(n)}

    def __call__(self, arrays: Sequence[Array | None], bodies: Sequence[Runner]) -> Sequence[Any]:
        env: dict[str, Any] = dict(self.fixed)
        for name, a in zip(self.inputs, arrays, strict=True):
            assert a is not None
            env[name] = a.item() if name in self.scalars else torch_tensor(a)
        with torch.no_grad():
            for node in self.nodes:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: env[n.name])
                env[node.name] = node.target(*args, **kwargs)
        return [_as_array(env[name]) for name in self.results]


def _as_array(v: Any) -> Array:
    return array_of(v) if isinstance(v, torch.Tensor) else np.asarray(v)


def _operators(nodes: Sequence[fx.Node]) -> list[str]:
    names = [_operator(n) for n in nodes if n.target is not getitem]
    return list(dict.fromkeys(names)) or ["getitem"]


def _operator(node: fx.Node) -> str:
    if str(node.target) == "with_effects":  # behind a token
        return str(node.args[1])
    return str(node.target)


def host_step(
    module: fx.GraphModule, nodes: Sequence[fx.Node], later: set[str],
    shown: Sequence[tuple[str, str]], held: Mapping[str, torch.Tensor],
    numbers: Mapping[str, Any], known: Mapping[str, Array], reasons: Mapping[str, str],
) -> HostStep:  # fmt: skip
    """`later` names what other nodes read; `shown` are outputs of the model, by the caller's names
    and the nodes'.
    """
    made = {n.name for n in nodes}
    fixed: dict[str, Any] = {**held, **numbers, **{n: torch_tensor(a) for n, a in known.items()}}
    inputs = tuple(
        dict.fromkeys(
            n.name for node in nodes for n in node.all_input_nodes
            if n.name not in made and n.name not in fixed and n.op != "get_attr"
        )
    )  # fmt: skip
    kept = [n.name for n in nodes if n.name in later]
    results = [*kept, *(name for _, name in shown)]
    return HostStep(
        nodes[0].name, ", ".join(_operators(nodes)), inputs,
        (*kept, *(public for public, _ in shown)),
        _Nodes(module, nodes, inputs, results, fixed),
        reason="; ".join(dict.fromkeys(reasons.values())),
    )  # fmt: skip
