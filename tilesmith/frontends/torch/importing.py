"""Importing: nodes of an ATen graph one by one in, values of a graph out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Set
from operator import getitem
from typing import Any

import torch
from torch import fx

from tilesmith.base.errors import TilesmithError
from tilesmith.frontends.shared.wishes import Wish
from tilesmith.frontends.torch.aliases import chain
from tilesmith.frontends.torch.call import Call, Memory, NotCovered, Type
from tilesmith.frontends.torch.operators import IMPORTERS
from tilesmith.frontends.torch.strided import OutsideError
from tilesmith.frontends.torch.tensors import (
    UNKNOWN,
    Results,
    array_of,
    attribute,
    dtype_of,
    type_of,
)
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Value

# Arguments that say where a result lies, which kernels decide by themselves.
_PLACES = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})


def module_path(node: fx.Node) -> str:
    """The module of the user's model that calls an operator, as `features.0.conv`; "" if none is
    known.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return re.sub(r"^[LG]\['\w+'\]\.?", "", path)  # how TorchDynamo names the model itself


class Importing:
    """`results` are what PyTorch says of nodes. `held` are constant tensors and `known` constant
    arrays, by the names of nodes. `outside` names results that no kernel can read.
    """

    def __init__(
        self, module: fx.GraphModule, builder: GraphBuilder, results: Results,
        held: Mapping[str, torch.Tensor], numbers: Mapping[str, Any], known: Mapping[str, Array],
        outside: Set[str],
    ) -> None:  # fmt: skip
        self.module, self.builder, self.results = module, builder, results
        self.held, self.numbers, self.known, self.outside = held, numbers, known, outside
        self.bases: dict[str, Value] = {}
        self.wishes: list[Wish] = []
        self.env: dict[str, Any] = {}  # by the names of nodes: values, or tuples of them

    def is_there(self, node: fx.Node) -> bool:
        return (
            node.name in self.env or node.name in self.known or node.op == "get_attr"
            or node.name in self.outside
            or node.name in self.held or node.name in self.numbers
            or isinstance(self.results.get(node), int | float | bool)
        )  # fmt: skip

    def value(self, node: fx.Node) -> Any:
        """A node's result: a value, several, or a number."""
        found = self.env.get(node.name)
        if found is not None:
            return found
        result = self.results.get(node, UNKNOWN)
        if isinstance(result, int | float | bool):
            return result
        array = self.known.get(node.name)
        if array is None:
            tensor = self.held.get(node.name)
            if tensor is None and node.op == "get_attr":
                tensor = attribute(self.module, str(node.target))
            if tensor is None:
                raise NotCovered(f"there are no kernels for {shown(result)}")
            if not isinstance(tensor, torch.Tensor) or type_of(tensor) is None:
                raise NotCovered(f"there are no kernels for {shown(tensor)}")
            array = array_of(tensor)
        self.env[node.name] = self.builder.constant(array, node.name)
        return self.env[node.name]

    def imported(self, node: fx.Node) -> Any:
        result = self.results.get(node, UNKNOWN)
        if node.target is getitem:
            whole, k = self.env.get(node.args[0].name), node.args[1]
            if not isinstance(whole, tuple) or whole[k] is None:
                raise NotCovered("it is not computed here")
            return whole[k]
        importer = IMPORTERS.get(str(node.target))
        if isinstance(result, int | float | bool) or (result is None and importer is None):
            return result
        if result is UNKNOWN:
            raise NotCovered("the size of its result depends on what it reads")
        if importer is None:
            raise NotCovered("no kernel is known for it")
        several = result if isinstance(result, tuple | list) else (result,)
        types = [type_of(r) for r in several]
        for r, t in zip(several, types, strict=True):
            if isinstance(r, torch.Tensor) and t is None:
                raise NotCovered(f"there are no kernels for {shown(r)}")
        call = Call(
            f"{node.target} {module_path(node) or node.name}", node.name, self.builder, types,
            _wanted(node), self.bases, lambda: self._memories(node),
        )  # fmt: skip
        made = self._called(importer, call, node)
        self.wishes += call.wishes
        if not isinstance(result, tuple | list):
            _check(call, made, types[0])
            return made
        for k, (v, t) in enumerate(zip(made, types, strict=False)):
            if v is None and call.wants(k):
                raise NotCovered(f"its result {k} is read")
            _check(call, v, t)
        return tuple(made)

    def _called(self, importer: Callable[..., Any], call: Call, node: fx.Node) -> Any:
        args = [self.argument(a) for a in node.args]
        kwargs = {k: self.argument(a) for k, a in node.kwargs.items() if k not in _PLACES}
        try:
            inspect.signature(importer).bind(call, *args, **kwargs)
        except TypeError as error:
            raise NotCovered(f"its arguments have no kernel: {error}") from None
        try:
            return importer(call, *args, **kwargs)
        except OutsideError:  # nor does PyTorch find what it reads, in an array
            raise
        except TilesmithError as error:
            raise NotCovered(str(error)) from error

    def _memories(self, node: fx.Node) -> list[Memory]:
        found = []
        for n in reversed(chain(node.args[0])):
            t = self.results.get(n)
            if isinstance(t, torch.Tensor) and self.is_there(n) and n.name not in self.outside:
                v = self.value(n)
                found.append(Memory(v, tuple(t.stride()), int(t.storage_offset())))
        return found

    def argument(self, a: Any) -> Any:
        match a:
            case fx.Node():
                return self.value(a)
            case list() | tuple():
                return tuple(self.argument(x) for x in a)
            case torch.dtype():
                kind = dtype_of(a)
                if kind is None:
                    raise NotCovered(f"there are no kernels for {a}")
                return kind
        return a


def _check(call: Call, made: Any, wanted: Type | None) -> None:
    """Raises if an importer gives another type than PyTorch states, which is a bug of ours."""
    if made is None or wanted is None:
        return
    if made.shape != wanted.shape or made.dtype is not wanted.dtype:
        raise AssertionError(
            f"{call.origin}: imported as {made.dtype}{list(made.shape)}, but PyTorch says "
            f"{wanted.dtype}{list(wanted.shape)}"
        )


def _wanted(node: fx.Node) -> frozenset[int]:
    """Which results of a node are read."""
    parts = [u for u in node.users if u.target is getitem and u.args[0] is node]
    if len(parts) < len(node.users):
        return frozenset(range(64))
    return frozenset(int(u.args[1]) for u in parts if u.users)


def shown(t: Any) -> str:
    if isinstance(t, torch.Tensor):
        return f"{t.dtype} on {t.device}".replace("torch.", "")
    return "a tensor whose size depends on contents" if t is UNKNOWN else type(t).__name__
