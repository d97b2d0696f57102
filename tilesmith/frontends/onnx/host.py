"""Operators that run on the host, by the onnx package's reference implementation.

Of sequences of tensors, the nodes from the first that makes one to the last that reads one are one
step. So no sequence ever stands between two kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.frontends.onnx.call import RunOnHost
from tilesmith.frontends.onnx.model import OnnxNode, message_of, reads_of
from tilesmith.graph.graph import Array
from tilesmith.graph.program import HostStep, Runner


def _array(node: OnnxNode, result: Any) -> Array:
    if result is None or isinstance(result, list | tuple | dict):
        raise GraphError(f"{node} gave a {type(result).__name__}; values must be tensors")
    return np.asarray(result)


@contextmanager
def _of(node: OnnxNode) -> Iterator[None]:
    """Whatever NumPy or the package raises is an error of the model, or of what it is given."""
    try:
        yield
    except TilesmithError:
        raise
    except Exception as error:
        raise GraphError(f"{node} failed on the host: {type(error).__name__}: {error}") from error


# Attributes that reference operators read and do not heed, with the value that means nothing.
_UNHEEDED = {("ai.onnx.ml", "TreeEnsemble"): ("post_transform", 0)}


def _check_heeded(node: OnnxNode) -> None:
    name, plain = _UNHEEDED.get((node.domain, node.op), ("", None))
    if name and node.attributes.get(name, plain) != plain:
        raise GraphError(
            f"{node} has {name}={node.attributes[name]!r}, which the onnx package does not heed; "
            f"it must be {plain}"
        )


def host_step(node: OnnxNode, reason: str) -> HostStep:
    """Raises where the package has no implementation either."""
    return host_part((node,), node.inputs, node.outputs, reason)


def host_part(
    nodes: tuple[OnnxNode, ...], inputs: tuple[str, ...], outputs: tuple[str, ...], reason: str
) -> HostStep:
    """Several nodes as one step, which is called by the first of them."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    node = nodes[0]
    for n in nodes:
        _check_heeded(n)
    opsets = {(n.domain, n.version) for n in nodes}
    model = helper.make_model(
        helper.make_graph(
            [message_of(n) for n in nodes], "host",
            [helper.make_value_info(x, helper.make_tensor_type_proto(1, None))
             for x in dict.fromkeys(inputs) if x],
            [helper.make_value_info(x, helper.make_tensor_type_proto(1, None))
             for x in outputs if x],
        ),
        opset_imports=[helper.make_opsetid(*o) for o in sorted(opsets)],
    )  # fmt: skip
    try:
        evaluator = ReferenceEvaluator(model)
    except Exception as error:
        raise GraphError(
            f"{node} has no kernel ({reason}), and the onnx package cannot run it either: {error}"
        ) from None

    def run(arrays: Sequence[Array | None], runners: Sequence[Runner]) -> list[Any]:
        feeds = {x: a for x, a in zip(inputs, arrays, strict=True) if x and a is not None}
        with _of(node):
            results = iter([_array(node, a) for a in evaluator.run(None, feeds)])
        return [next(results) if x else None for x in outputs]

    return HostStep(node.name, node.op, inputs, outputs, run, reason=reason)


def numpy_step(node: OnnxNode, why: RunOnHost) -> HostStep:
    """By the function that an importer names, or else by the reference operator."""
    function = why.function
    if function is None:
        return host_step(node, str(why))

    def run(arrays: Sequence[Array | None], runners: Sequence[Runner]) -> list[Any]:
        with _of(node):
            return [*function(arrays)]

    return HostStep(node.name, node.op, node.inputs, node.outputs, run, reason=str(why))


_MAKE = {"SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SplitToSequence"}
_READ = {"SequenceAt", "SequenceLength", "ConcatFromSequence"}


def sequence_step(
    node: OnnxNode, behind: Iterable[OnnxNode], wanted: Sequence[str]
) -> tuple[HostStep, int] | None:
    """The step that begins with this node, and how many of the nodes behind it are part of it;
    None if the node makes no sequence. `wanted` are the outputs of the whole model.
    """
    if node.domain or node.op not in _MAKE:
        return None
    rest = tuple(behind)
    held = {x for x in node.outputs if x}  # the sequences
    count = 0
    for k, n in enumerate(rest):
        if not n.domain and n.op in _MAKE:
            count = k + 1
            held.update(x for x in n.outputs if x)
        elif used := [x for x in reads_of(n) if x in held]:
            count = k + 1
            if not n.domain and n.op == "Identity":
                held.update(n.outputs)
            elif n.domain or n.op not in _READ:
                raise GraphError(f"{n} reads {used[0]!r}, a sequence, which only {_names()} can")
    if kept := [x for x in wanted if x in held]:
        raise GraphError(f"the output {kept[0]!r} is a sequence; it must be a tensor")
    nodes = (node, *rest[:count])
    made = dict.fromkeys(x for n in nodes for x in n.outputs if x)
    inputs = dict.fromkeys(x for n in nodes for x in reads_of(n) if x not in made)
    later = {x for n in rest[count:] for x in reads_of(n)} | set(wanted)
    outputs = tuple(x for x in made if x in later)
    return host_part(nodes, tuple(inputs), outputs, "sequences stay on the host"), count


def _names() -> str:
    return ", ".join(sorted(_READ | _MAKE))
