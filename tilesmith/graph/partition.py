"""Partition: a Graph in, the groups of nodes out that become one kernel each.

The rule:
1. A reshape is an alias: the same bytes under another shape. So is a slice of contiguous memory.
   A join is the place that its parts are written into. They belong to no group.
2. A view (transpose, slice, pad, expand) is an index expression. It is repeated in every group
   that reads it, and becomes a kernel of its own only where its result itself is wanted.
3. Every other node starts a group. A group has at most one node that reduces.
4. Element-wise nodes join the groups whose results they read one to one, where nobody outside
   reads those results: bias, residual and activation end up behind the convolution before them.
   So does a transpose, as the order in which the group stores its result.
5. A group of element-wise nodes joins the reduction that alone reads its result, if that reads each
   element a few times at most: the mask in front of a softmax.

6. A group has at most MAX_NODES nodes; a longer chain becomes several groups.

So nothing heavy is computed twice, and a group never waits for itself: only its last node is read
from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError
from tilesmith.base.given import checks_given
from tilesmith.graph.graph import Graph, Node
from tilesmith.graph.kinds import Kind, Work, work_of
from tilesmith.ops.transform import transpose

# How often a reduction may read an element that is computed again at each read (rule 5).
_MAX_RECOMPUTED = 1.5
# Nodes of a group. A chain that is cut after so many stores and loads one more array, which takes
# hardly any of the time that so many operators take. Deriving the schedules of a group takes time
# with the square of its size.
MAX_NODES = 24
_IN_PLACE = (Kind.ALIAS, Kind.JOIN)

Partition = Callable[[Graph], tuple["Group", ...]]


@checks_given(error=GraphError)
@dataclass(frozen=True)
class Group:
    """Nodes of one kernel, in order, the views it reads through included. `inputs` are read from
    memory, `outputs` written. `parts` are the groups that it was joined from, if it was.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[Group, ...] = ()

    @property
    def name(self) -> str:
        """The names of its operators, joined."""
        return "_".join(dict.fromkeys(n.op for n in self.nodes))[:60]


@checks_given(error=GraphError)
def partition(graph: Graph) -> tuple[Group, ...]:
    """In the order in which they run."""
    return _Partition(graph).groups()


class _Partition:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.work: dict[str, Work] = {n.name: work_of(graph, n) for n in graph.nodes}
        self.members: dict[str, list[Node]] = {}  # by the name of the group's first node
        self.group: dict[str, str] = {}  # of a node
        self.anchored: set[str] = set()  # groups with a reduction
        self._positions = {n.name: k for k, n in enumerate(graph.nodes)}

    def kind(self, node: Node) -> Kind:
        return self.work[node.name].kind

    def groups(self) -> tuple[Group, ...]:
        for node in self.graph.nodes:
            kind = self.kind(node)
            if kind in _IN_PLACE or (kind is Kind.VIEW and not self._stores(node)):
                continue
            self._start(node)
            if kind in (Kind.ELEMENTWISE, Kind.VIEW):
                self._join_producers(node)
            else:
                self._take_prologues(node)
        ordered = sorted(self.members.values(), key=lambda m: self._position(m[-1]))
        made = [self._finish(m) for m in ordered]
        return tuple(_in_order(self.graph, [*made, *self._copies(made)]))

    def _stores(self, node: Node) -> bool:
        """Whether a transpose is wanted in memory and can be the order in which a group stores its
        result: that is read by nobody else, and is made by the last node of a group.
        """
        if node.function is not transpose or not self._is_wanted(node.outputs[0]):
            return False
        return self._private(node.inputs[0], node) is not None

    def _is_wanted(self, value: str) -> bool:
        """Whether a view must lie in memory: it is an output, read under another shape, or
        part of a join.
        """
        if value in self.graph.returned:
            return True
        readers = self.graph.consumers.get(value, ())
        return any(self.kind(n) in _IN_PLACE for n in readers)

    def _position(self, node: Node) -> int:
        return self._positions[node.name]

    def _start(self, node: Node) -> None:
        self.group[node.name] = node.name
        self.members[node.name] = [node]
        if self.kind(node) in (Kind.REDUCTION, Kind.HEAVY):
            self.anchored.add(node.name)

    def _private(self, value: str, reader: Node) -> Node | None:
        """Who makes a value that only `reader` and nodes of its group read, if that is a member of
        a group.
        """
        maker = self.graph.producer.get(value)
        if maker is None or maker.name not in self.group:
            return None
        own = self.group.get(reader.name, reader.name)
        for x in maker.outputs:
            readers = self.graph.consumers.get(x, ())
            outside = any(self.group.get(n.name, n.name) != own for n in readers)
            if outside or x in self.graph.returned:
                return None
        return maker

    def _join_producers(self, node: Node) -> None:
        """Rule 4. Groups without a reduction come first: what they alone read besides this node
        may follow. Of those with a reduction the latest comes.
        """
        matched = self.work[node.name].matched
        if self.kind(node) is Kind.VIEW:
            matched = frozenset({0})
        inputs = [x for k, x in enumerate(node.inputs) if k in matched]
        for anchored in (False, True):
            makers = [m for x in inputs if (m := self._private(x, node)) is not None]
            for maker in sorted(makers, key=self._position, reverse=True):
                if (self.group[maker.name] in self.anchored) is anchored:
                    self._merge(self.group[maker.name], self.group[node.name])

    def _take_prologues(self, node: Node) -> None:
        """Rule 5."""
        work = self.work[node.name]
        if work.kind is Kind.HEAVY:
            return
        for k, x in enumerate(node.inputs):
            maker = self._private(x, node)
            if maker is None or work.reads[k] > _MAX_RECOMPUTED:
                continue
            if self.group[maker.name] not in self.anchored:
                self._merge(self.group[maker.name], self.group[node.name])

    def _merge(self, a: str, b: str) -> None:
        if a == b or (a in self.anchored and b in self.anchored):
            return
        if len(self.members[a]) + len(self.members[b]) > MAX_NODES:
            return
        nodes = sorted(self.members[a] + self.members.pop(b), key=self._position)
        self.members[a] = nodes
        for n in nodes:
            self.group[n.name] = a
        if b in self.anchored:
            self.anchored.add(a)

    def _finish(self, members: list[Node]) -> Group:
        inside = {n.name for n in members}
        nodes = {n.name: n for n in members}
        inputs: dict[str, None] = {}

        def read(value: str) -> None:
            maker = self.graph.producer.get(value)
            if maker is not None and maker.name in inside:
                return
            if maker is not None and self.kind(maker) is Kind.VIEW and maker.name not in self.group:
                nodes[maker.name] = maker
                for x in maker.inputs:
                    read(x)
            else:
                inputs[value] = None

        for n in members:
            for x in n.inputs:
                read(x)
        ordered = tuple(sorted(nodes.values(), key=self._position))
        return Group(ordered, tuple(inputs), tuple(self._seen_outside(members, inside)))

    def _seen_outside(self, members: list[Node], inside: set[str]) -> Iterable[str]:
        for n in members:
            for x in n.outputs:
                readers = self.graph.consumers.get(x, ())
                if x in self.graph.returned or any(r.name not in inside for r in readers):
                    yield x

    def _copies(self, made: list[Group]) -> list[Group]:
        """Kernels for views whose results are wanted themselves: as outputs, or under an alias."""
        wanted = {x for g in made for x in g.inputs} | self.graph.returned
        out: list[Group] = []
        stack = list(wanted)
        seen: set[str] = set()
        while stack:
            x = stack.pop()
            maker = self.graph.producer.get(x)
            if maker is None or x in seen:
                continue
            seen.add(x)
            if self.kind(maker) in _IN_PLACE:
                stack += maker.inputs
            elif self.kind(maker) is Kind.VIEW and maker.name not in self.group:
                group = self._finish([maker])
                out.append(Group(group.nodes, group.inputs, (x,)))
                stack += group.inputs
        return out


def _in_order(graph: Graph, groups: list[Group]) -> Iterable[Group]:
    """Producers first. What a group reads may be made under an alias, or in parts."""
    maker = {x: g for g in groups for x in g.outputs}

    def sources(group: Group) -> Iterable[Group]:
        stack, seen = list(group.inputs[::-1]), set[str]()
        while stack:
            x = stack.pop()
            if x in maker:
                yield maker[x]
            elif x in graph.producer and x not in seen:
                seen.add(x)
                stack += graph.producer[x].inputs[::-1]

    done: set[int] = set()
    for root in groups:
        stack = [(root, False)]
        while stack:
            group, finished = stack.pop()
            if id(group) in done:
                continue
            if finished:
                done.add(id(group))
                yield group
                continue
            stack.append((group, True))
            stack += [(g, False) for g in reversed([*sources(group)])]
