"""Views of values: another shape, a part, a repetition. What changes nothing adds no node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilesmith.frontends.shared.building import Building
from tilesmith.graph.graph import Value
from tilesmith.ops import transform, views

# A kernel that joins many tensors has to find the right one for each element.
_JOINED_AT_ONCE = 8


def shaped(call: Building, x: Value, shape: Sequence[int]) -> Value:
    """x under another shape; x itself where it has that one."""
    if x.shape == tuple(shape):
        return x
    return call.add(transform.reshape, x, shape=tuple(shape))


def sliced(call: Building, x: Value, parts: Mapping[int, tuple[int, int, int]]) -> Value:
    """x[start:stop:step] in some dimensions, as Python counts; x itself if nothing is left out."""
    whole = []
    for d, n in enumerate(x.shape):
        first, past, step = slice(*parts.get(d, (0, n, 1))).indices(n)
        count = len(range(first, past, step))
        if count > 1:
            # The element before the first cannot be named by its place.
            whole.append((first, past if past >= 0 else -n - 1, step))
        else:
            whole.append((first, first + 1, 1) if count else (0, 0, 1))
    if all(w == (0, n, 1) for w, n in zip(whole, x.shape, strict=True)):
        return x
    starts, stops, steps = zip(*whole, strict=True)
    return call.add(views.slice_, x, starts=starts, stops=stops, steps=steps)


def expanded(call: Building, x: Value, shape: tuple[int, ...]) -> Value:
    if shape == x.shape:
        return x
    return call.add(views.expand, x, shape=shape)


def joined(call: Building, values: list[Value], axis: int) -> Value:
    """The results of all steps behind each other."""
    while len(values) > 1:
        parts = [values[k : k + _JOINED_AT_ONCE] for k in range(0, len(values), _JOINED_AT_ONCE)]
        values = [
            p[0] if len(p) == 1 else call.add(transform.concatenate, *p, axis=axis) for p in parts
        ]
    return values[0]
