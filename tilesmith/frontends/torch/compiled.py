"""CompiledGraph: a functional ATen graph in, a callable out that takes and returns tensors. It is
built at the first call with new shapes and kept, up to a bound.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tilesmith.frontends.torch.export import tell_uncovered
from tilesmith.frontends.torch.program import TorchProgram
from tilesmith.frontends.torch.shapes import is_settled
from tilesmith.frontends.torch.tensors import array_of, tensor_of, type_of
from tilesmith.graph.model import Model
from tilesmith.graph.program import Signature
from tilesmith.graph.source import OpenGraph, closed

# A parameter that changed this often is read at each call, as other inputs are.
_MAX_CHANGES = 2


@dataclass(frozen=True, slots=True)
class Building:
    """How graphs become models. `build` is told whether it is the first one of a module's graph,
    which may be tuned; `max_shapes` bounds how many shapes are compiled.
    """

    build: Callable[[OpenGraph, bool], Model]
    max_shapes: int


@dataclass(frozen=True, slots=True)
class _Held:
    """A parameter that is a constant of the model, as it was then."""

    position: int
    tensor: torch.Tensor
    version: int
    address: int

    def is_same(self, t: torch.Tensor) -> bool:
        return t is self.tensor and _version(t) == self.version and t.data_ptr() == self.address


def _version(t: torch.Tensor) -> int:
    """How often it was written; PyTorch does not count that for tensors of inference mode."""
    return -1 if t.is_inference() else int(t._version)


@dataclass(frozen=True, slots=True)
class _Run:
    """A model for some shapes, and which arguments it takes."""

    model: Model
    inputs: tuple[tuple[str, int], ...]
    scalars: Mapping[str, Any]  # outputs that are sizes

    def __call__(self, given: Sequence[Any]) -> dict[str, Any]:
        arrays = self.model({name: array_of(given[k]) for name, k in self.inputs})
        return {**self.scalars, **{name: tensor_of(a) for name, a in arrays.items()}}


class CompiledGraph:
    """Called with a list of the arguments, which it empties, as AOTAutograd has it."""

    _boxed_call = True

    def __init__(
        self, module: fx.GraphModule, parameters: Sequence[torch.Tensor], building: Building
    ) -> None:
        self.module, self.building = module, building
        self._parameters = {id(t): t for t in parameters}
        nodes = list(module.graph.nodes)
        self._placeholders = [n for n in nodes if n.op == "placeholder"]
        self._position = {n.name: k for k, n in enumerate(self._placeholders)}
        self._writes = [n for n in nodes if n.target is torch.ops.aten.copy_.default]
        self._written = {n.args[0].name for n in self._writes}
        (output,) = (n for n in nodes if n.op == "output")
        self._outputs = list(output.args[0])
        self._settled = is_settled(module.graph)
        self._held: list[_Held] | None = None
        self._changes: dict[int, int] = {}
        self._open: list[int] = []  # positions of arguments that are no constants
        self._runs: dict[Any, _Run | None] = {}
        self._lock = threading.Lock()
        self._told = False
        self._built = 0

    def __call__(self, args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        run = self._run(given)
        if run is None:
            with torch.no_grad():
                return list(self.module(*given))
        values = run(given)
        out = [self._result(x, values, given) for x in self._outputs]
        for node in self._writes:
            target = given[self._position[node.args[0].name]]
            target.copy_(self._result(node.args[1], values, given))
        return out

    def _result(self, x: Any, values: Mapping[str, Any], given: Sequence[Any]) -> Any:
        if not isinstance(x, fx.Node):
            return x
        if x.op == "placeholder":
            return given[self._position[x.name]]
        return values[x.name]

    def _run(self, given: list[Any]) -> _Run | None:
        """The model for these shapes; None if PyTorch has to run all of it."""
        if self._held is None or not all(h.is_same(given[h.position]) for h in self._held):
            with self._lock:
                self._hold(given)
        key = () if self._settled else tuple(_shape(given[k]) for k in self._open)
        try:
            return self._runs[key]
        except KeyError:
            pass
        with self._lock:
            if key not in self._runs:
                if len(self._runs) >= self.building.max_shapes:
                    self._tell_bound()
                    return None
                self._runs[key] = self._make(given)
            return self._runs[key]

    def _hold(self, given: Sequence[Any]) -> None:
        """Takes parameters as constants, as they are now. Those that the graph writes, or that
        were found changed before, are inputs.
        """
        for h in self._held or ():
            if not h.is_same(given[h.position]):
                self._changes[h.position] = self._changes.get(h.position, 0) + 1
                if given[h.position] is not h.tensor:
                    self._parameters[id(given[h.position])] = given[h.position]
        held = []
        for k, (node, t) in enumerate(zip(self._placeholders, given, strict=True)):
            few = self._changes.get(k, 0) < _MAX_CHANGES
            if id(t) in self._parameters and node.name not in self._written and few:
                held.append(_Held(k, t, _version(t), t.data_ptr()))
        fixed = {h.position for h in held}
        self._open = [k for k in range(len(given)) if k not in fixed]
        self._runs = {}
        self._held = held

    def _make(self, given: Sequence[Any]) -> _Run | None:
        assert self._held is not None
        inputs, numbers, signatures = [], {}, []
        for k in self._open:
            name, x = self._placeholders[k].name, given[k]
            if not isinstance(x, torch.Tensor):
                numbers[name] = x
                continue
            kind = type_of(x)
            if kind is None:
                self._tell(f"an input of {x.dtype} on {x.device} has no kernels; PyTorch runs it")
                return None
            inputs.append((name, k))
            signatures.append(Signature(name, kind.dtype, kind.shape))
        program = TorchProgram(
            "torch_graph", self.module, tuple(signatures), self._returned(),
            {self._placeholders[h.position].name: h.tensor for h in self._held}, numbers,
            self._settled,
        )  # fmt: skip
        source = closed(program)
        model = self.building.build(source, self._built == 0)
        self._built += 1
        if not self._told and program.uncovered:
            self._told = True
            tell_uncovered(program, stacklevel=6)
        sizes = {x.name for x in self._outputs if isinstance(x, fx.Node) and _is_number(x)}
        return _Run(model, tuple(inputs), {n: r for n, r in program.scalars.items() if n in sizes})

    def _returned(self) -> tuple[tuple[str, str], ...]:
        wanted = [*self._outputs, *(n.args[1] for n in self._writes)]
        names = dict.fromkeys(
            x.name for x in wanted if isinstance(x, fx.Node) and not _is_number(x)
        )
        return tuple((n, n) for n in names if n not in self._position)

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(what, stacklevel=6)

    def _tell_bound(self) -> None:
        self._tell(
            f"a graph was compiled for {len(self._runs)} shapes; PyTorch runs it for further ones. "
            'Pad to fewer shapes, or raise options={"max_shapes": ...}'
        )


def _is_number(x: fx.Node) -> bool:
    val = x.meta.get("val")
    return isinstance(val, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _shape(x: Any) -> Any:
    return x.shape if isinstance(x, torch.Tensor) else x
