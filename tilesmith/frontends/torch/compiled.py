"""CompiledGraph: a functional ATen graph in, a callable out that takes and returns tensors. It is
built at the first call with new shapes and kept, up to a bound.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError
from tilesmith.frontends.torch.aliases import (
    between,
    chain,
    computed,
    is_given,
    replayed,
    restrided,
    strides_of,
)
from tilesmith.frontends.torch.export import tell_uncovered
from tilesmith.frontends.torch.opened import (
    OpenRun,
    counted_nodes,
    open_signatures,
    order_of,
    symbols_of,
)
from tilesmith.frontends.torch.program import TorchProgram
from tilesmith.frontends.torch.strided import OutsideError
from tilesmith.frontends.torch.tensors import (
    array_of,
    attribute,
    is_number,
    is_settled,
    type_of,
)
from tilesmith.graph.graph import Value
from tilesmith.graph.model import Model
from tilesmith.graph.program import Feeds, OpenGraph, Program, Signature, closed
from tilesmith.runtime.arrays import torch_tensor

# A parameter that changed this often is read at each call, as other inputs are.
_MAX_CHANGES = 2


@dataclass(frozen=True, slots=True)
class Building:
    """How graphs become models. `build` is told whether it is the first one of a module's graph,
    which may be tuned, and the inputs of the call; `max_shapes` bounds how many shapes are
    compiled one by one.
    """

    build: Callable[[OpenGraph, bool, Feeds], Model]
    max_shapes: int
    # A model for all sizes, of a program with open ones and the sizes of the call; None if there is
    # none.
    build_open: Callable[[Program, Mapping[str, int]], Model | None] | None = None


@dataclass(frozen=True, slots=True)
class _Held:
    """A parameter that is a constant of the model, as it was then."""

    position: int
    tensor: torch.Tensor
    version: int
    address: int

    def is_same(self, t: torch.Tensor) -> bool:
        return t is self.tensor and t._version == self.version and t.data_ptr() == self.address


@dataclass(frozen=True, slots=True)
class _Run:
    """A model for some shapes: which arguments it takes, the numbers that nodes give, and the
    strides that eager gives to its results.
    """

    model: Model
    inputs: tuple[fx.Node, ...]
    numbers: Mapping[fx.Node, Any]
    strides: Mapping[str, tuple[int, ...]]

    def __call__(self, tensors: Mapping[fx.Node, Any]) -> dict[str, torch.Tensor]:
        arrays = self.model({n.name: array_of(tensors[n]) for n in self.inputs})
        return {
            name: restrided(torch_tensor(a), self.strides.get(name)) for name, a in arrays.items()
        }


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
        self._attributes = {
            n: attribute(module, str(n.target)) for n in nodes if n.op == "get_attr"
        }  # fmt: skip
        self._writes = [n for n in nodes if n.target is torch.ops.aten.copy_.default]
        self._written = {n.args[0] for n in self._writes}
        (output,) = (n for n in nodes if n.op == "output")
        self._outputs = list(output.args[0])
        # What else changes something PyTorch runs, and with it the rest.
        self._changing = [
            n for n in nodes if isinstance(n.target, torch._ops.OpOverload)
            and n.target._schema.is_mutable and (n not in self._writes or not is_given(n.args[0]))
        ]  # fmt: skip
        # What lies elsewhere in the memory of an argument only PyTorch can read.
        self._strided = [
            n for n in nodes
            if n.target is torch.ops.aten.as_strided.default and is_given(chain(n)[0])
        ]  # fmt: skip
        sources = [n.args[1] for n in self._writes]
        wanted = [x for x in (*self._outputs, *sources) if isinstance(x, fx.Node)]
        self._bases = computed([x for x in wanted if not is_number(x)])
        self._views = [v for x, base in self._bases.items() for v in between(base, x)]
        self._before = [v for x in self._strided for v in chain(x)[1:]]
        self._settled = is_settled(module.graph)
        self._held: list[_Held] | None = None
        self._changes: dict[int, int] = {}
        self._open: list[int] = []  # positions of arguments that are no constants
        self._runs: dict[Any, _Run | None] = {}
        self._for_all: OpenRun | None = None  # what runs all sizes
        self._cannot_open = self._settled or building.build_open is None or bool(self._strided)
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._built = 0

    def __call__(self, args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        run = self._run(given)
        if run is None:
            with torch.no_grad():
                return list(self.module(*given))
        if isinstance(run, OpenRun):
            numbers = run.numbers(dict(zip(self._placeholders, given, strict=True)))
        else:
            numbers = dict(run.numbers)
        tensors = self._given(given, numbers)
        try:
            results = run(tensors)
        except GraphError as error:
            if isinstance(error.__cause__, RuntimeError | IndexError | ValueError | TypeError):
                raise error.__cause__ from None  # of PyTorch, as in eager
            raise
        tensors |= {
            base: results[base.name] for base in self._bases.values() if base.name in results
        }
        replayed(self._views, tensors)
        sources = [self._source(n, tensors) for n in self._writes]
        for node, source in zip(self._writes, sources, strict=True):
            tensors[node.args[0]].copy_(source)
        return [tensors[x] if isinstance(x, fx.Node) else x for x in self._outputs]

    def _given(self, given: Sequence[Any], numbers: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
        """The arguments, and the views of them that a model takes."""
        tensors = {**self._attributes, **numbers}
        tensors |= dict(zip(self._placeholders, given, strict=True))
        replayed(self._before, tensors)
        return tensors

    def _source(self, write: fx.Node, tensors: Mapping[fx.Node, Any]) -> Any:
        """What is written, as it was before all writes."""
        node = write.args[1]
        if not isinstance(node, fx.Node):
            return node
        return tensors[node].clone() if chain(node)[0] in self._written else tensors[node]

    def _run(self, given: list[Any]) -> _Run | OpenRun | None:
        """The model for these shapes; None if PyTorch has to run all of it."""
        if self._changing:
            self._tell(
                "changes", f"{self._changing[0].target} has no kernel; PyTorch runs the graph"
            )
            return None
        if self._held is None or not all(h.is_same(given[h.position]) for h in self._held):
            with self._lock:
                self._hold(given)
        if not self._cannot_open and (opened := self._run_open(given)) is not None:
            return opened
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

    def _run_open(self, given: Sequence[Any]) -> OpenRun | None:
        """The model for all sizes, if it takes these arguments."""
        by_node = dict(zip(self._placeholders, given, strict=True))
        with self._lock:
            if self._for_all is None and not self._cannot_open:
                self._for_all = self._make_open(by_node)
                self._cannot_open = self._for_all is None
        opened = self._for_all
        return opened if opened is not None and opened.fits(by_node) else None

    def _make_open(self, given: Mapping[fx.Node, Any]) -> OpenRun | None:
        build = self.building.build_open
        assert self._held is not None
        assert build is not None
        loose = [self._placeholders[k] for k in self._open]
        inputs = [n for n in loose if isinstance(given[n], torch.Tensor)]
        numbers = {n: given[n] for n in loose if n not in inputs}
        signatures = open_signatures(inputs)
        symbols = None if signatures is None else symbols_of(numbers, signatures)
        nodes = [*self.module.graph.nodes]
        read = [*self._views, *self._writes, *(x for x in self._outputs if isinstance(x, fx.Node))]
        counted = counted_nodes(nodes, read, {*self._placeholders, *self._attributes})
        if signatures is None or symbols is None or counted is None:
            return None
        if not all(given[n].is_contiguous() for n in inputs):
            return None
        bases = dict.fromkeys(b for b in self._bases.values() if not is_given(b))
        fixed = {n: v for n, v in numbers.items() if n.name not in symbols}
        program = TorchProgram(
            "torch_graph", self.module, signatures, tuple((b.name, b.name) for b in bases),
            {self._placeholders[h.position].name: h.tensor for h in self._held},
            {n.name: v for n, v in fixed.items()}, settled=False, symbols=symbols,
        )  # fmt: skip
        types = {n.name: Value(n.name, tuple(given[n].shape), s.dtype)
                 for n, s in zip(inputs, signatures, strict=True)}  # fmt: skip
        results = program.results(types)
        orders = {}
        for name, strides in strides_of(results, bases).items():
            order = order_of(results[program.by_name[name]].shape, strides)
            if order is None:
                return None
            orders[name] = order
        sizes = {
            str(d): n for s in signatures for d, n in zip(s.dims or (), types[s.name].shape,
                                                          strict=True) if isinstance(d, str)
        }  # fmt: skip
        model = build(program, sizes) if sizes else None
        if model is None:
            return None
        self._built += 1
        return OpenRun(model, tuple(inputs), orders, counted, fixed)

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
            if id(t) not in self._parameters or node in self._written or not few:
                continue
            if not t.is_inference():  # PyTorch does not count how often such a one is written
                held.append(_Held(k, t, t._version, t.data_ptr()))
        fixed = {h.position for h in held}
        self._open = [k for k in range(len(given)) if k not in fixed]
        self._runs = {}
        self._for_all = None
        self._held = held

    def _make(self, given: Sequence[Any]) -> _Run | None:
        assert self._held is not None
        numbers: dict[fx.Node, Any] = {}
        inputs: list[fx.Node] = []
        for k in self._open:
            if isinstance(given[k], torch.Tensor):
                inputs.append(self._placeholders[k])
            else:
                numbers[self._placeholders[k]] = given[k]
        tensors = self._given(given, numbers)
        inputs += self._strided
        signatures = []
        for n in inputs:
            kind = type_of(tensors[n])
            if kind is None:
                what = f"{tensors[n].dtype} on {tensors[n].device}"
                self._tell("input", f"an input of {what} has no kernels; PyTorch runs it")
                return None
            signatures.append(Signature(n.name, kind.dtype, kind.shape))
        bases = dict.fromkeys(b for b in self._bases.values() if not is_given(b))
        program = TorchProgram(
            "torch_graph", self.module, tuple(signatures), tuple((b.name, b.name) for b in bases),
            {self._placeholders[h.position].name: h.tensor for h in self._held},
            {n.name: x for n, x in numbers.items()}, self._settled,
            {n.name: tuple(tensors[n].stride()) for n in inputs},
        )  # fmt: skip
        try:
            source = closed(program)
            feeds = {n.name: array_of(tensors[n]) for n in inputs}
            model = self.building.build(source, self._built == 0, feeds)
        except OutsideError as error:
            self._tell("outside", f"{error}; PyTorch runs the graph")
            return None
        self._built += 1
        if program.uncovered and "uncovered" not in self._told:
            self._told.add("uncovered")
            tell_uncovered(program, stacklevel=6)
        return _Run(
            model, tuple(inputs), {n: r for n, r in program.seen.items() if is_number(n)},
            strides_of(program.seen, bases),
        )  # fmt: skip

    def _tell(self, topic: str, what: str) -> None:
        """Each topic once."""
        if topic not in self._told:
            self._told.add(topic)
            warnings.warn(what, stacklevel=6)

    def _tell_bound(self) -> None:
        self._tell(
            "bound",
            f"a graph was compiled for {len(self._runs)} shapes; PyTorch runs it for further ones. "
            'Pad to fewer shapes, or raise options={"max_shapes": ...}',
        )


def _shape(x: Any) -> Any:
    """What of an argument a model depends on, if sizes are open."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.shape if x.is_contiguous() else (x.shape, x.stride())
