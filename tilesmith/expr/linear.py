"""Several indices as one number and back: the strides of a shape, and the place of an element."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilesmith.expr.ints import ONE, ZERO, Int, IntLike, of


def row_major(shape: Sequence[Int], align: tuple[int, int, int] | None = None) -> tuple[Int, ...]:
    """How many elements one step along each dimension moves by; the last one is dense.

    `align` is (dimension, multiple, offset): the stride of that dimension is padded until it is
    = offset (mod multiple), where it is a number.
    """
    out: list[Int] = []
    step = ONE
    for d in reversed(range(len(shape))):
        if align is not None and align[0] == d and (n := step.const) is not None:
            _, multiple, offset = align
            step = of(n + (offset - n) % multiple)
        out.append(step)
        if d:  # nothing lies outside of the first dimension
            step = step * shape[d]
    return tuple(reversed(out))


def linear(index: Iterable[Int], strides: Iterable[IntLike]) -> Int:
    """The place of an element, in elements."""
    total = ZERO
    for p, stride in zip(index, strides, strict=True):
        total = total + p * stride
    return total


def step_along(name: str, index: Iterable[Int], strides: Iterable[IntLike]) -> Int:
    """How many elements one step of the variable moves by; it stands in no division."""
    return linear((p.coefficient(name) for p in index), strides)
