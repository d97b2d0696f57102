"""Linear addresses: the strides of a shape, and the offset of an element."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilesmith.expr.ints import ONE, ZERO, Int, IntLike, of


def row_major(shape: Sequence[Int], align: tuple[int, int, int] | None = None) -> tuple[Int, ...]:
    """The strides in elements; that of the last dimension is 1.

    `align` is (dimension, multiple, offset): the stride of that dimension is padded to `offset`
    modulo `multiple`, if it is a number.
    """
    out: list[Int] = []
    step = ONE
    for d in reversed(range(len(shape))):
        if align is not None and align[0] == d and (n := step.const) is not None:
            _, multiple, offset = align
            step = of(n + (offset - n) % multiple)
        out.append(step)
        if d:  # the first dimension has no outer stride
            step = step * shape[d]
    return tuple(reversed(out))


def linear(index: Iterable[Int], strides: Iterable[IntLike]) -> Int:
    """The offset of an element, in elements."""
    total = ZERO
    for p, stride in zip(index, strides, strict=True):
        total = total + p * stride
    return total


def step_along(name: str, index: Iterable[Int], strides: Iterable[IntLike]) -> Int:
    """The elements by which one step of the variable moves; it must not occur in a division."""
    return linear((p.coefficient(name) for p in index), strides)
