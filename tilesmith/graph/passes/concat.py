"""Concatenations whose parts are written straight into their places.

A part can be, if a kernel of this graph makes it and it lies nowhere else: it is no output, and
part of nothing else. Others are copied, which is worth it as long as that is little of the whole.
What stays a concatenation is a kernel that reads its inputs, together with whoever reads it.
"""

from __future__ import annotations

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.join import copy, join
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.regions import shown_by
from tilesmith.graph.strides import row_major, strides_within
from tilesmith.ops.transform import concatenate

_MAX_COPIED = 0.25  # of the bytes of the result


def join_in_place(graph: Graph) -> Graph:
    found = _Joins(graph)

    def rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
        if node.name not in found.copied:
            return None
        parts = []
        for k, v in enumerate(inputs):
            again = k in found.copied[node.name]
            parts.append(e.add(copy, v, into=f"{node.name} {k}") if again else v)
        return e.add(join, *parts, axis=node.setting("axis", 0))

    return edited(graph, rule) if found.copied else graph


class _Joins:
    """Which concatenations become joins, by name, and which of their parts are copied."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.copied: dict[str, frozenset[int]] = {}
        self.placed: set[str] = set()
        for node in graph.nodes:
            if node.function is concatenate and len(node.inputs) > 1:
                self._decide(node)

    def _decide(self, node: Node) -> None:
        graph = self.graph
        whole = graph.values[node.outputs[0]]
        parts = [graph.values[x] for x in node.inputs]
        if any(v.size == 0 or graph.is_constant(v.name) for v in parts):
            return
        copied, held = set[int](), set[str]()
        for k, v in enumerate(parts):
            inner = strides_within(v.shape, row_major(whole.shape))
            own = v.name if inner is not None else shown_by(graph, v.name)
            # A part may become one of something else by another concatenation of this result.
            is_strided = inner is not None or self._is_part(whole.name)
            if own in held or not self._is_free(own, is_strided):
                copied.add(k)
            else:
                held.add(own)
        if sum(parts[k].nbytes for k in copied) > _MAX_COPIED * whole.nbytes:
            return
        self.copied[node.name] = frozenset(k for k in copied if not self._is_made_here(k, node))
        self.placed |= held

    def _is_part(self, value: str) -> bool:
        return any(n.function is concatenate for n in self.graph.consumers.get(value, ()))

    def _kind(self, value: str) -> Kind | None:
        maker = self.graph.producer.get(value)
        return None if maker is None else work_of(self.graph, maker).kind

    def _is_made_here(self, k: int, node: Node) -> bool:
        """Whether a part is a view for this node alone: then the kernel that copies it into memory
        writes it here.
        """
        x, graph = node.inputs[k], self.graph
        alone = len(graph.consumers[x]) == 1 and node.inputs.count(x) == 1
        return self._kind(x) is Kind.VIEW and alone and x not in graph.returned

    def _is_free(self, value: str, is_strided: bool) -> bool:
        graph = self.graph
        if value in graph.returned or value in self.placed or value in graph.inputs:
            return False
        kind = self._kind(value)
        if kind is None or kind in (Kind.ALIAS, Kind.VIEW):
            return False
        readers = [work_of(graph, n).kind for n in graph.consumers.get(value, ())]
        if Kind.ALIAS in readers:
            # Under another shape it must be contiguous, and may be an output.
            return not is_strided and not self._is_returned(value)
        return True

    def _is_returned(self, value: str) -> bool:
        return any(shown_by(self.graph, x) == value for x in self.graph.returned)
