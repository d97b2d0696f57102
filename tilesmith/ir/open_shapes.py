"""The values of open sizes, from the shapes of the arrays that a Function is called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilesmith.base.errors import ArgumentError
from tilesmith.expr.ints import Int, Opaque, evaluate_int, of
from tilesmith.ir.function import Function, determine_extents, instantiate


class _Length(NamedTuple):
    """Dimension number `dimension` of an input, whose length must be `extent`."""

    name: str
    dimension: int
    extent: Int
    length: int


def with_shapes_of(func: Function, arrays: Sequence[Any]) -> Function:
    """The Function with the sizes of these inputs; itself if no size is open."""
    if all(e.const is not None for b in func.params for e in b.shape):
        return func
    names, dims = [b.name for b in func.inputs], [b.given_shape for b in func.inputs]
    if len(arrays) != len(names):
        raise ArgumentError(
            f"{func.name!r} takes {len(names)} arrays ({', '.join(names)}) and got {len(arrays)}"
        )
    sizes = sizes_of(func.name, names, dims, [np.shape(a) for a in arrays])
    return instantiate(determine_extents(func), sizes)


def sizes_of(
    func: str,
    names: Sequence[str],
    dims: Sequence[Sequence[Int]],
    shapes: Sequence[Sequence[int]],
) -> dict[str, int]:
    """The open sizes by name. Raises an ArgumentError where two lengths contradict each other: it
    names both arrays.
    """
    values: dict[str, int] = {}
    where: dict[str, str] = {}
    left: list[_Length] = []
    for name, extents, shape in zip(names, dims, shapes, strict=False):
        if len(extents) != len(shape):
            wanted = ", ".join(map(_plain, extents))
            raise ArgumentError(
                f"{name} of {func!r} got an array of shape {tuple(shape)}; its shape must be "
                f"({wanted})"
            )
        left += (
            _Length(name, d, e, n) for d, (e, n) in enumerate(zip(extents, shape, strict=True))
        )
    while left:
        rest = []
        for x in left:
            unknown = [n for n in x.extent.names if n not in values]
            if not unknown:
                _require_equal(func, x, values, where)
            elif len(unknown) == 1 and (v := _solved(x, unknown[0], values)) is not None:
                values[unknown[0]] = v
                where[unknown[0]] = f"dimension {x.dimension} of {x.name} is {x.length}"
            else:
                rest.append(x)
        if len(rest) == len(left):
            x = rest[0]
            raise ArgumentError(
                f"{func!r} got an array for {x.name} whose dimension {x.dimension} is {x.length}; "
                f"it is {_plain(x.extent)}, which has that value for no size"
            )
        left = rest
    return {n.removeprefix("#"): v for n, v in values.items()}


def _require_equal(
    func: str, x: _Length, values: Mapping[str, int], where: Mapping[str, str]
) -> None:
    wanted = evaluate_int(x.extent, values, _no_data)
    if wanted == x.length:
        return
    have = f"dimension {x.dimension} of {x.name} is {x.length}"
    if not x.extent.names:
        raise ArgumentError(f"{func!r}: {have}; it must be {wanted}")
    known = [f"{n.removeprefix('#')} = {values[n]}: {where[n]}" for n in sorted(x.extent.names)]
    raise ArgumentError(
        f"{func!r} got arrays that contradict each other: {have}; it must be "
        f"{_plain(x.extent)}, which is {wanted} ({'; '.join(known)})"
    )


def _solved(x: _Length, name: str, values: Mapping[str, int]) -> int | None:
    """The value of a size for which a dimension has its length, if it is linear in the size."""
    known = x.extent.substitute({n: of(v) for n, v in values.items()})
    if not known.plain or any(m.count(name) > 1 for m in known.terms):
        return None
    step, rest = known.coefficient(name).const, x.length - known.terms.get((), 0)
    return rest // step if step and rest % step == 0 and rest // step >= 0 else None


def _plain(e: Int) -> str:
    return str(e).replace("#", "")


def _no_data(a: Opaque) -> int:
    raise AssertionError(a)
