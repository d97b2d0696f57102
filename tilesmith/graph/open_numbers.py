"""OpenNumbers: what graphs of one model at several sizes have in common. Their nodes must be the
same, and whole numbers that differ become expressions of the sizes. Shapes follow from the
operators themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import TilesmithError
from tilesmith.expr.dsl import placeholder
from tilesmith.expr.ints import of, product, var
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.checks import Check
from tilesmith.graph.graph import Array, Graph, Node, Settings
from tilesmith.graph.open_plan import OpenPlan, Shape, size_names, sizes_text
from tilesmith.graph.open_sizes import OpenSizes
from tilesmith.graph.partition import Group
from tilesmith.graph.program import Signature
from tilesmith.graph.size_fit import CannotOpen, SizeFit, opened, value_at


@dataclass(frozen=True)
class Instance:
    """A model that was imported at certain sizes (with their leading #), and its groups."""

    sizes: dict[str, int]
    graph: Graph
    groups: tuple[Group, ...]


class OpenNumbers:
    """Of instances, of which the last one has the largest sizes. Raises CannotOpen with the reason
    if they differ in more than numbers.
    """

    def __init__(
        self, inputs: Sequence[Signature], sizes: Sequence[OpenSize], instances: Sequence[Instance]
    ) -> None:
        self.inputs, self.instances = inputs, instances
        self.sizes = OpenSizes(sizes, [dict(i.sizes) for i in instances])
        self.points = self.sizes.points
        self.fit = SizeFit(self.points, self.sizes.base)
        self.graphs = [i.graph for i in instances]
        self.graph = self.graphs[-1]
        self.shapes: dict[str, Shape] = {}
        self.settings: dict[str, Settings] = {}
        self._results: dict[Any, list[tuple[Shape, DType]]] = {}  # a network repeats its nodes
        self._require_same_nodes()
        self.cut = self._constants()
        self._propagate()

    def plan(self) -> OpenPlan:
        """Without kernels."""
        return OpenPlan(
            tuple(self.inputs), self.declared, self.sizes.derived, self.graph, self.shapes,
            (), {}, (), self.checks, self.cut, dict(self.instances[-1].sizes), self.settings,
        )  # fmt: skip

    @property
    def declared(self) -> tuple[OpenSize, ...]:
        """The sizes of the inputs."""
        return tuple(self.sizes.declared[n] for n in self.sizes.base)

    @property
    def checks(self) -> tuple[Check, ...]:
        for g in self.graphs[:-1]:
            if g.checks != self.graph.checks:
                raise CannotOpen("what is checked of its values depends on the sizes")
        return self.graph.checks

    def _require_same_nodes(self) -> None:
        for other in self.instances[:-1]:
            reason = difference(self.graph, other.graph)
            if reason is None:
                every = [
                    [(g.name, *(n.name for n in g.nodes)) for x in i.groups for g in (x, *x.parts)]
                    for i in (self.instances[-1], other)
                ]
                if every[0] != every[1]:
                    reason = "other operators are joined to kernels"
            if reason is not None:
                raise CannotOpen(
                    f"at {sizes_text(other.sizes)} its graph differs from that at "
                    f"{sizes_text(self.instances[-1].sizes)}: {reason}"
                )

    def _constants(self) -> frozenset[str]:
        """The shapes of constants; returns those that are parts of larger ones."""
        cut = []
        for x, whole in self.graph.constants.items():
            arrays = [g.constants[x] for g in self.graphs]
            if all(a.shape == whole.shape for a in arrays):
                if not all(is_same_array(a, whole) for a in arrays[:-1]):
                    raise CannotOpen(f"the numbers of {x!r} depend on the sizes")
                self.shapes[x] = tuple(map(of, whole.shape))
                continue
            for a in arrays[:-1]:
                fits = a.ndim == whole.ndim and all(
                    n <= m for n, m in zip(a.shape, whole.shape, strict=True)
                )
                if not fits or not is_same_array(a, whole[tuple(map(slice, a.shape))]):
                    raise CannotOpen(f"{x!r}, which is computed of sizes only, depends on them")
            shapes = [a.shape for a in arrays]
            made = opened(self.fit, shapes, (), f"the shape of {x!r}")
            self.shapes[x] = tuple(map(of, made))
            cut.append(x)
        return frozenset(cut)

    def _propagate(self) -> None:
        """The shape of every value."""
        names = size_names(self.inputs)
        for s in self.inputs:
            if s.name in self.graph.values:
                assert s.dims is not None
                self.shapes[s.name] = tuple(
                    var(names[d]) if isinstance(d, str) else of(d) for d in s.dims
                )
        others = [{n.name: n for n in g.nodes} for g in self.graphs]
        for node in self.graph.nodes:
            given = [self.shapes[x] for x in node.inputs]
            near = [e for shape in given for e in shape if e.const is None]
            near += [p for shape in given if (p := product(shape)).const is None]
            versions = [nodes[node.name].settings for nodes in others]
            what = f"{node.op} {node.name!r}"
            made = {}
            for key in dict(node.settings):
                some = [dict(v)[key] for v in versions]
                made[key] = opened(self.fit, some, near, f"{key} of {what}")
            self.settings[node.name] = Settings(made.items())
            for x, (shape, kind) in zip(node.outputs, self._stages(node, given), strict=True):
                self.shapes[x] = tuple(map(self.sizes.extent, shape))
                wanted = [g.values[x].shape for g in self.graphs]
                got = [tuple(value_at(e, p) for e in self.shapes[x]) for p in self.points]
                if wanted != got or kind != self.graph.values[x].dtype:
                    raise CannotOpen(
                        f"{what} makes {list(wanted[0])} at {sizes_text(self.points[0])}, and "
                        f"{list(got[0])} by its open shape"
                    )

    def _stages(self, node: Node, shapes: Sequence[Shape]) -> list[tuple[Shape, DType]]:
        """The shapes and types of its results."""
        types = [self.graph.values[x].dtype for x in node.inputs]
        node = replace(node, settings=self.settings[node.name])
        key = node.function, node.settings, tuple(shapes), tuple(types)
        if key not in self._results:
            tensors = [
                placeholder(shape, kind, name=f"x{k}")
                for k, (shape, kind) in enumerate(zip(shapes, types, strict=True))
            ]
            try:
                results = node.define(*tensors)
            except TilesmithError as error:
                raise CannotOpen(
                    f"{node.op} {node.name!r} cannot be stated with open sizes: {error}"
                ) from None
            self._results[key] = [(t.shape_ints, t.dtype) for t in results]
        return self._results[key]


def difference(a: Graph, b: Graph) -> str | None:
    """What two graphs differ in beside numbers."""
    if a.inputs != b.inputs or a.outputs != b.outputs:
        return "it has other inputs or outputs"
    for x, y in zip(a.nodes, b.nodes, strict=False):
        if (x.name, x.function, x.inputs, x.outputs) != (y.name, y.function, y.inputs, y.outputs):
            return f"{y.op} {y.name!r} instead of {x.op} {x.name!r}"
        if [k for k, _ in x.settings] != [k for k, _ in y.settings]:
            return f"{x.op} {x.name!r} has other settings"
    if len(a.nodes) != len(b.nodes):
        return f"it has {len(b.nodes)} nodes instead of {len(a.nodes)}"
    if set(a.constants) != set(b.constants):
        return "it has other constants"
    for name, v in a.values.items():
        if name not in b.values or v.dtype != b.values[name].dtype:
            return f"{name!r} has another type"
    return None


def is_same_array(a: Array, b: Array) -> bool:
    if a is b:
        return True
    where = (a.__array_interface__["data"][0], a.strides, a.shape, a.dtype)
    if where == (b.__array_interface__["data"][0], b.strides, b.shape, b.dtype):
        return True
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
