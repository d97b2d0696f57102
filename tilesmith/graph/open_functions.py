"""The Functions of an open model: each group of nodes stated anew with open sizes. It must be the
Function of every instance when the numbers of that instance are put in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilesmith.base.dtype import dtype
from tilesmith.base.errors import ArgumentError, TilesmithError
from tilesmith.expr.ints import Int, of, product, var
from tilesmith.expr.sizes import OpenInt, OpenSize
from tilesmith.graph.graph import Settings
from tilesmith.graph.group_function import Input, group_function, identifier, numbered, stated
from tilesmith.graph.open_numbers import OpenNumbers
from tilesmith.graph.open_plan import OpenPlace, sizes_text
from tilesmith.graph.partition import Group
from tilesmith.graph.size_fit import CannotOpen, ints_in, value_at
from tilesmith.ir.function import Function, instantiate
from tilesmith.ir.open_shapes import sizes_of


class OpenFunctions:
    """`function(groups)` is that of one group, which each instance has in its own sizes."""

    def __init__(self, numbers: OpenNumbers) -> None:
        self.instances, self.graph = numbers.instances, numbers.graph
        self.shapes, self.settings, self.cut = numbers.shapes, numbers.settings, numbers.cut
        self.sizes, self.points = numbers.sizes, numbers.sizes.points
        self._functions: dict[Any, tuple[Function, dict[str, Int], list[OpenPlace]]] = {}

    def function(self, groups: Sequence[Group]) -> tuple[Function, dict[str, Int], list[OpenPlace]]:
        """The Function of a group, its sizes, and the places of inputs that tell it sizes."""
        group = groups[-1]
        rename, how = self._group_sizes(group)
        declared = frozenset(
            replace(self.sizes.declared_of(e, n), name=n.removeprefix("#")) for n, e in how.items()
        )

        def put(e: Int) -> Int:
            made = rename(e)
            return made if made.const is not None else OpenInt(made, declared)

        settings = {n.name: _mapped(self.settings[n.name], put) for n in group.nodes}
        values = [self.graph.values[x] for x in group.inputs]
        inputs = [
            (tuple(map(put, self.shapes[v.name])), v.dtype, self.graph.is_constant(v.name))
            for v in values
        ]
        wanted = [group_function(i.graph, g) for i, g in zip(self.instances, groups, strict=True)]
        cut = tuple(v.name in self.cut for v in values)
        key = tuple(inputs), numbered(group, settings), tuple(map(id, wanted)), cut
        if key not in self._functions:
            opened = self._opened(group, inputs, cut, settings, how, wanted, declared)
            self._functions[key] = opened
        return self._functions[key]

    def _opened(
        self, group: Group, inputs: list[Input], cut: Sequence[bool],
        settings: Mapping[str, Settings], how: dict[str, Int], wanted: Sequence[Function],
        declared: frozenset[OpenSize],
    ) -> tuple[Function, dict[str, Int], list[OpenPlace]]:  # fmt: skip
        func = self._stated(group, inputs, settings, how)
        self._require_equal(wanted, group, func, how)
        further: list[OpenPlace] = []
        # What is cut for each length is packed for none.
        loose = [(e, t, c and not parts) for (e, t, c), parts in zip(inputs, cut, strict=True)]
        if loose != inputs:
            inputs = loose
            func = self._stated(group, inputs, settings, how)
        if not _tells_sizes(func, how, self.points[-1]):
            extents = tuple(OpenInt(var(n), declared) for n in how)
            inputs.append((extents, dtype("uint8"), False))
            func = self._stated(group, inputs, settings, how)
            further.append(OpenPlace("none", "", of(0)))
        return func, how, further

    def _stated(
        self, group: Group, inputs: Sequence[Any], settings: Mapping[str, Settings],
        how: Mapping[str, Int],
    ) -> Function:  # fmt: skip
        nodes, outputs = numbered(group, settings, len(inputs) - len(group.inputs))
        try:
            return stated(identifier(group.name), inputs, nodes, outputs)
        except TilesmithError as error:
            raise CannotOpen(f"{group.name} cannot be stated with open sizes: {error}") from None

    def _require_equal(
        self, every: Sequence[Function], group: Group, func: Function, how: Mapping[str, Int]
    ) -> None:
        """The open Function is that of each instance, at its sizes."""
        for wanted, instance, point in zip(every, self.instances, self.points, strict=True):
            sizes = {n: value_at(e, point) for n, e in how.items()}
            got = instantiate(func, {n: v for n, v in sizes.items() if n in func.sizes})
            if got.digest != wanted.digest:
                raise CannotOpen(
                    f"{group.name} is another function at {sizes_text(instance.sizes)} than its "
                    "open form says"
                )

    def _group_sizes(self, group: Group) -> tuple[Any, dict[str, Int]]:
        """How extents are written in the Function of a group, and its sizes as expressions of
        those of the model: as few and as simple ones as say everything.
        """
        every = [e for x in group.inputs for e in self.shapes[x] if e.const is None]
        every += [e for n in group.nodes for e in ints_in(self.settings[n.name])]
        every = [e for e in every if e.const is None]
        names = list(dict.fromkeys(n for e in every for n in sorted(e.names)))
        expanded: dict[str, Int] = {}
        while (name := self.sizes.dependent(names)) is not None:
            step = {name: self.sizes.derived[name]}
            expanded = {k: v.substitute(step) for k, v in expanded.items()} | step
            names.remove(name)
            names += [n for n in sorted(step[name].names) if n not in names]
        every = [e.substitute(expanded) for e in every]
        monomials = list(dict.fromkeys(m for e in every for m in e.terms if m))
        used = [a for m in monomials for a in set(m)]
        if all(isinstance(a, str) for a in used) and len(used) == len(set(used)):
            # Each name occurs in one product only: the product is the size.
            products = {m: self._product_name(m) for m in monomials}

            def rename(e: Int) -> Int:
                e = e.substitute(expanded)
                out = of(e.terms.get((), 0))
                for m, c in e.terms.items():
                    if m:
                        out = out + var(products[m]) * c
                return out

            how = {name: product(var(str(a)) for a in m) for m, name in products.items()}
            return rename, how
        return (lambda e: e.substitute(expanded)), {n: var(n) for n in names}

    def _product_name(self, monomial: tuple[Any, ...]) -> str:
        if len(monomial) == 1:
            return str(monomial[0])
        return "#" + ".".join(n.removeprefix("#") for n in monomial)


def _mapped(value: Any, put: Any) -> Any:
    if isinstance(value, Int):
        return put(value)
    if isinstance(value, tuple):
        parts = [_mapped(part, put) for part in value]
        return Settings(parts) if isinstance(value, Settings) else tuple(parts)
    return value


def _tells_sizes(func: Function, how: Mapping[str, Int], point: Mapping[str, int]) -> bool:
    """Whether the shapes of its inputs determine all sizes."""
    sizes = {n: value_at(e, point) for n, e in how.items()}
    shapes = [[value_at(e, sizes) for e in b.shape] for b in func.inputs]
    try:
        found = sizes_of(
            func.name, [b.name for b in func.inputs], [b.shape for b in func.inputs], shapes
        )
    except ArgumentError:
        return False
    return {f"#{n}" for n in found} >= set(how)
