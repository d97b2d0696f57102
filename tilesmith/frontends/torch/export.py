"""ts.from_torch: a module and example inputs in, a Graph out, through torch.export."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    TensorArgument,
    TokenArgument,
)
from torch.utils import _pytree as pytree

from tilesmith.base.errors import GraphError
from tilesmith.frontends.torch.decompositions import export_table, without_onednn
from tilesmith.frontends.torch.program import TorchProgram, uncovered
from tilesmith.frontends.torch.tensors import dtype_of, is_settled
from tilesmith.graph.program import OpenGraph, Signature, closed

# Each step of a recurrent operator is some kernels of its own, which have to be built and called.
MAX_STEPS = 128
_RECURRENT = tuple(f"aten.{n}.input" for n in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def from_torch(
    module: Any,
    example_inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    name: str | None = None,
) -> OpenGraph:
    """A Graph of a module; where sizes stay open or PyTorch has to run a part, a Program. It has
    copies of the weights as they are now: later changes of the module do not reach it.
    """
    if not isinstance(module, nn.Module):
        raise GraphError(
            f"from_torch is given a {type(module).__name__}; it takes a torch.nn.Module. For "
            'functions there is torch.compile(function, backend="tilesmith")'
        )
    named = dict(kwargs or {})
    if isinstance(example_inputs, Mapping):
        example_inputs, named = (), {**example_inputs, **named}
    exported = _exported(module, _inputs(example_inputs), named, dynamic_shapes)
    program = _program(exported, name or type(module).__name__, module)
    program = _named(program, exported.graph, dynamic_shapes)
    source = closed(program)
    tell_uncovered(program)
    return source


def _inputs(given: Any) -> tuple[Any, ...]:
    if isinstance(given, torch.Tensor):
        return (given,)
    if not isinstance(given, Sequence):
        raise GraphError(
            f"from_torch is given {type(given).__name__} as example inputs; give a tuple of what "
            "the module is called with, or a dict of its arguments by name"
        )
    return tuple(given)


def _exported(
    module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    with torch.no_grad(), without_onednn():
        with _about(module):
            traced = torch.export.export(
                module, inputs, kwargs or None, dynamic_shapes=dynamic_shapes
            )
        long = _long_recurrences(traced.graph)
        table = {op: f for op, f in export_table().items() if op not in long}
        with _about(module):
            return traced.run_decompositions(table)


@contextmanager
def _about(module: nn.Module) -> Iterator[None]:
    """Turns an error of torch.export, of any type and length, into a GraphError of one line."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().split("\n", 1)[0]
        raise GraphError(
            f"torch.export cannot trace {type(module).__name__}: {type(error).__name__}: {first}"
        ) from error


def _long_recurrences(graph: torch.fx.Graph) -> set[Any]:
    """The recurrent operators over many steps, which are kept, so that PyTorch runs them."""
    found = set()
    for node in graph.nodes:
        if str(node.target) in _RECURRENT:
            steps = node.args[0].meta["val"].shape[1 if node.args[-1] else 0]
            if not isinstance(steps, int) or steps > MAX_STEPS:
                found.add(node.target)
    return found


def _program(exported: torch.export.ExportedProgram, name: str, module: nn.Module) -> TorchProgram:
    signature = exported.graph_signature
    held: dict[str, torch.Tensor] = {}
    tokens: dict[str, None] = {}  # they order operators that have effects
    inputs = []
    nodes = {n.name: n for n in exported.graph.nodes if n.op != "output"}
    for spec in signature.input_specs:
        match spec.arg, spec.kind:
            case ConstantArgument(), _:
                continue
            case TokenArgument(name=label), InputKind.TOKEN:
                tokens[label] = None
            case TensorArgument(name=label), InputKind.USER_INPUT:
                inputs.append(_signature(nodes[label]))
            case TensorArgument(name=label), InputKind.CONSTANT_TENSOR:
                held[label] = exported.constants[spec.target]
            case TensorArgument(name=label), InputKind.BUFFER if not spec.persistent:
                held[label] = exported.constants[spec.target]
            case TensorArgument(name=label), InputKind.PARAMETER | InputKind.BUFFER:
                held[label] = exported.state_dict[spec.target]
            case arg, kind:
                raise GraphError(f"{name}: an input {arg} of kind {kind.name} is not supported")
    returned = []
    names = iter(_output_names(exported, set(nodes)))
    for spec in signature.output_specs:
        if spec.kind is OutputKind.TOKEN:
            continue
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise GraphError(_says_state(name, spec, module))
        label = next(names)
        if isinstance(spec.arg, TensorArgument):
            returned.append((label, spec.arg.name))
    return TorchProgram(
        name, exported.graph_module, tuple(inputs), tuple(returned), _copies(held), tokens,
        settled=is_settled(exported.graph),
    )  # fmt: skip


def _copies(held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights as they are now, each once. A model packs some of them and reads others in place, so
    a later change of the module would reach a part of them only.
    """
    made: dict[int, torch.Tensor] = {}
    for t in held.values():
        if id(t) not in made:
            made[id(t)] = t.detach().clone()
    return {name: made[id(t)] for name, t in held.items()}


def _says_state(name: str, spec: Any, module: nn.Module) -> str:
    what = f"its {'buffer' if 'BUFFER' in spec.kind.name else 'input'} {spec.target!r}"
    hint = "call module.eval() first, " if module.training else ""
    return (
        f"{name} writes {what} when it is called, and a graph keeps no state; {hint}return it as "
        'an output, or use torch.compile(module, backend="tilesmith"), which writes it'
    )


def _signature(node: Any) -> Signature:
    value = node.meta["val"]
    kind = dtype_of(value.dtype)
    if kind is None:
        raise GraphError(f"input {node.name!r} is of {value.dtype}, for which there are no kernels")
    dims = tuple(n if isinstance(n, int) else str(n) for n in value.shape)
    return Signature(node.name, kind, dims)


def _named(program: TorchProgram, graph: torch.fx.Graph, dynamic_shapes: Any) -> TorchProgram:
    """With the names that the user gave to sizes, where they are given for tensors one by one."""
    wanted = [*dynamic_shapes.values()] if isinstance(dynamic_shapes, Mapping) else dynamic_shapes
    nodes = [n for n in graph.nodes if n.op == "placeholder" and n.name in _names_of(program)]
    if not isinstance(wanted, Sequence) or len(wanted) != len(nodes):
        return program
    found: dict[str, str] = {}
    for s, dims in zip(program.inputs, wanted, strict=True):
        given = dims if isinstance(dims, Mapping) else dict(enumerate(dims or ()))
        for d, dim in given.items():
            name, symbol = getattr(dim, "__name__", None), (s.dims or ())[d]
            if isinstance(name, str) and isinstance(symbol, str):
                found.setdefault(symbol, name)
    if len(set(found.values())) != len(found):
        return program
    inputs = (
        replace(s, dims=tuple(found.get(d, d) if isinstance(d, str) else d for d in s.dims or ()))
        for s in program.inputs
    )
    return replace(program, inputs=tuple(inputs))


def _names_of(program: TorchProgram) -> set[str]:
    return {s.name for s in program.inputs}


def _output_names(exported: torch.export.ExportedProgram, taken: set[str]) -> list[str]:
    """Where each output stands in what the module returns: "logits", "0", "past_1"."""
    spec = exported.call_spec.out_spec
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    names = []
    for path, _ in pytree.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", p)))) for p in path]
        name = "_".join(parts) or "output"
        if name.isdigit() or name[0].isdigit():
            name = f"output_{name}"
        while name in taken:
            name += "_out"
        taken.add(name)
        names.append(name)
    return names


def tell_uncovered(program: TorchProgram, stacklevel: int = 4) -> None:
    """One warning for all operators that PyTorch runs."""
    found = uncovered(program)
    if found:
        reasons = ", ".join(f"{u.op} ({u.why})" for u in found)
        warnings.warn(
            f"PyTorch runs {len(program.uncovered)} of the {len(program.nodes)} operators of "
            f"{program.name}: {reasons}",
            stacklevel=stacklevel,
        )
