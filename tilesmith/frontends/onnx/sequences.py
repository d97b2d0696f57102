"""Sequences of tensors: the nodes from the first that makes one to the last that reads one run on
the host as one step. So no sequence ever stands between two kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.host import host_part
from tilesmith.frontends.onnx.model import OnnxNode
from tilesmith.frontends.onnx.scope import reads_of
from tilesmith.graph.program import HostStep

_MAKE = {
    "SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SplitToSequence",
}  # fmt: skip
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
