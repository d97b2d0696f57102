"""Weights of transposed convolutions whose extents the stride divides."""

from __future__ import annotations

from tilesmith.frontends.shared.building import Building
from tilesmith.graph.graph import Value
from tilesmith.ops.transform import pad

Pairs = tuple[tuple[int, int], ...]


def whole_phases(
    call: Building, w: Value, stride: tuple[int, ...], padding: Pairs
) -> tuple[Value, Pairs]:
    """Weights with zeros around them, so that the stride divides their extent and the padding, and
    what they add to the output cut off again. Then the operator is a few small convolutions, not
    one over an input with zeros between its elements.
    """
    more = []
    for n, s, (before, _) in zip(w.shape[2:], stride, padding, strict=True):
        front = 0 if s == 2 else -before % s  # of a stride of 2 the operator takes any padding
        more.append((front, -(n + front) % s))
    if not any(map(any, more)):
        return w, padding
    wider: Value = call.add(pad, w, widths=((0, 0), (0, 0), *more))
    cut = zip(padding, more, strict=True)
    return wider, tuple((p[0] + m[0], p[1] + m[1]) for p, m in cut)
