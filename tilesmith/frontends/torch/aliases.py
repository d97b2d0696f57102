"""Which results of an ATen graph are views of which: chains of view operators, and how eager lays
tensors out in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from tilesmith.frontends.torch.tensors import Results

# Views of a part of a tensor, whose elements never share memory; and those of all of it.
_PARTS = frozenset({"slice", "select", "split", "split_with_sizes", "unbind", "diagonal", "narrow"})
_WHOLE = frozenset({"view", "permute", "transpose", "t", "squeeze", "unsqueeze", "alias", "detach"})


def viewed(node: fx.Node) -> fx.Node | None:
    """The node whose memory a node's result is a view of; None if it has memory of its own."""
    if node.op != "call_function":
        return None
    if node.target is getitem:
        whole: fx.Node = node.args[0]
        return whole if viewed(whole) is not None else None
    if node.target is torch.ops.aten.copy_.default:  # gives what it wrote to
        return node.args[0]
    if isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        return node.args[0]
    return None


def chain(node: fx.Node) -> list[fx.Node]:
    """From the node that has the memory, over views of one another, to this one."""
    found = [node]
    while (base := viewed(found[-1])) is not None:
        found.append(base)
    return found[::-1]


def is_given(node: fx.Node) -> bool:
    """Whether a node's memory is the caller's or the module's."""
    return node.op in ("placeholder", "get_attr")


def computed(outputs: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each of these results the node of its chain that a model has to compute, from which views
    lead to it; a given one where nothing is left to compute.

    Results of one memory are views of one tensor, as in eager. Of a single one that is a part, no
    more than the part is computed.
    """
    chains = {node: chain(node) for node in dict.fromkeys(outputs)}
    sharing = Counter(c[0] for c in chains.values())
    return {
        node: c[0] if is_given(c[0]) or sharing[c[0]] > 1 else _last_part(c)
        for node, c in chains.items()
    }


def _last_part(views: Sequence[fx.Node]) -> fx.Node:
    found = views[0]
    for node in views[1:]:
        if node.target is getitem:
            found = node
            continue
        name = str(node.target).split(".")[1]
        if name in _PARTS and not isinstance(node.meta.get("val"), list | tuple):
            found = node
        elif name not in _WHOLE | _PARTS:
            break
    return found


def between(base: fx.Node, node: fx.Node) -> list[fx.Node]:
    """The views that lead from one to the other."""
    views = chain(node)
    return views[views.index(base) + 1 :]


def replayed(views: Iterable[fx.Node], tensors: dict[fx.Node, Any]) -> None:
    """PyTorch makes these views; `tensors` has what they are of, and takes them."""
    for node in views:
        if node.target is torch.ops.aten.copy_.default:
            tensors[node] = tensors[node.args[0]]
        elif node not in tensors:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), tensors.__getitem__)
            tensors[node] = node.target(*args, **kwargs)


def strides_of(results: Results, nodes: Iterable[fx.Node]) -> Mapping[str, tuple[int, ...]]:
    """Those that eager gives, where it is known."""
    found = {}
    for n in nodes:
        r = results.get(n)
        if isinstance(r, torch.Tensor) and r.layout is torch.strided:
            found[n.name] = tuple(r.stride())
    return found


def restrided(t: torch.Tensor, strides: Sequence[int] | None) -> torch.Tensor:
    """The tensor with these strides, without a copy where they say the same."""
    if strides is None or t.stride() == tuple(strides):
        return t
    pairs = zip(t.shape, t.stride(), strides, strict=True)
    if t.numel() == 0 or all(n == 1 or have == want for n, have, want in pairs):
        return t.as_strided(t.shape, strides)
    new = torch.empty_strided(t.shape, strides, dtype=t.dtype)
    return new.copy_(t)
