"""Graphs with open sizes, as torch.compile(dynamic=True) makes them: compiled once. The sizes are
SymInts in what AOTAutograd traced; a call has them in its tensors and as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.frontends.torch.aliases import restrided
from tilesmith.frontends.torch.tensors import array_of, dtype_of, is_number
from tilesmith.graph.model import Model
from tilesmith.graph.program import Signature
from tilesmith.runtime.arrays import torch_tensor


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A model for all sizes. `orders` are those of the dimensions in the memory of results, the
    outermost first. `counted` are the nodes that give numbers, in order; `fixed` the arguments that
    are numbers and no sizes, as they were.
    """

    model: Model
    inputs: tuple[fx.Node, ...]
    orders: Mapping[str, tuple[int, ...]]
    counted: tuple[fx.Node, ...]
    fixed: Mapping[fx.Node, Any]

    def fits(self, given: Mapping[fx.Node, Any]) -> bool:
        """Whether the arguments of a call are like those that it was made for."""
        return all(given[n].is_contiguous() for n in self.inputs) and all(
            type(given[n]) is type(v) and given[n] == v for n, v in self.fixed.items()
        )

    def numbers(self, given: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
        """What nodes give that are numbers."""
        found: dict[fx.Node, Any] = {}
        for node in self.counted:
            args = fx.node.map_arg(node.args, lambda n: found[n] if n in found else given[n])
            found[node] = node.target(*args)
        return found

    def __call__(self, tensors: Mapping[fx.Node, Any]) -> dict[str, torch.Tensor]:
        arrays = self.model({n.name: array_of(tensors[n]) for n in self.inputs})
        results = {}
        for name, a in arrays.items():
            t = torch_tensor(a)
            order = self.orders.get(name)
            results[name] = t if order is None else restrided(t, _dense(t.shape, order))
        return results


def open_signatures(inputs: Sequence[fx.Node]) -> tuple[Signature, ...] | None:
    """The inputs as they were traced, with names for sizes; None if one is more than a size."""
    found = []
    for n in inputs:
        val = n.meta.get("val")
        kind = dtype_of(val.dtype) if isinstance(val, torch.Tensor) else None
        if kind is None or not val.is_contiguous():
            return None
        dims = tuple(d if isinstance(d, int) else str(d) for d in val.shape)
        if not all(isinstance(d, int) or d.isidentifier() for d in dims):
            return None
        found.append(Signature(n.name, dtype_named(kind), dims))
    return tuple(found)


def symbols_of(
    numbers: Mapping[fx.Node, Any], signatures: Sequence[Signature]
) -> dict[str, str] | None:
    """The arguments that are sizes, each with the name of its size; None if one is no size of an
    input.
    """
    dims = {d for s in signatures for d in s.dims or ()}
    found = {}
    for n in numbers:
        val = n.meta.get("val")
        if isinstance(val, torch.SymInt):
            if str(val) not in dims:
                return None
            found[n.name] = str(val)
    return found


def counted_nodes(
    nodes: Sequence[fx.Node], wanted: Sequence[fx.Node], given: set[fx.Node]
) -> tuple[fx.Node, ...] | None:
    """The number nodes that these need, in order; None if one follows from a computed tensor."""
    needed: set[fx.Node] = set()
    stack = [n for x in wanted for n in (x, *x.all_input_nodes) if is_number(n)]
    while stack:
        n = stack.pop()
        if n in needed or n in given:
            continue
        needed.add(n)
        if n.kwargs or not all(is_number(x) or x in given for x in n.all_input_nodes):
            return None
        stack += [x for x in n.all_input_nodes if is_number(x)]
    return tuple(n for n in nodes if n in needed)


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The order of dimensions in memory that is dense with these strides, if there is one."""
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], d)))
    return order if _dense(shape, order) == tuple(strides) else None


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, below = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = below
        below *= max(shape[d], 1)
    return tuple(strides)
