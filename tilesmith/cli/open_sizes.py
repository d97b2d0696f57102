"""Open sizes on the command line: tokens:1..512 is a size with its range, tokens:1..512@16,128x4
one with the values to tune for, of which 128 weighs four times as much.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilesmith.base.errors import ArgumentError, ExpressionError
from tilesmith.expr.dsl import size
from tilesmith.expr.ints import Int
from tilesmith.expr.sizes import OpenInt, OpenSize
from tilesmith.ir.function import Function, instantiate

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,15})\.\.([0-9]{1,15})(?:@(.+))?", re.ASCII)
_SAMPLE = re.compile(r"([0-9]{1,15})(?:x([0-9]{1,6}(?:\.[0-9]{0,6})?))?", re.ASCII)
HOW = "an open size is NAME:LOW..HIGH, as tokens:1..512, with samples tokens:1..512@16,128x4"


def is_open(word: str) -> bool:
    """Whether a word is meant to be an open size."""
    return ":" in word or ".." in word


def open_size_of(word: str, what: str) -> OpenInt:
    """The size; `what` begins an error."""
    name, _, text = word.rpartition(":")
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{what} is {word[:40]!r}; {HOW}")
    return _size(name, text, f"{what} is {word[:40]!r}", what)


def open_dimension_of(word: str, what: str) -> tuple[str, OpenSize]:
    """The name of a dimension of a model, which may be anything, and its size."""
    name, colon, text = word.rpartition(":")
    if not name or not colon:
        raise ArgumentError(f"{what}: {HOW}")
    try:
        (size,) = _size(name if _NAME.fullmatch(name) else "n", text, what, what).declared
    except ExpressionError as error:
        raise ArgumentError(f"{what}: {error}") from None
    return name, OpenSize(name, size.range, size.samples)


def _size(name: str, text: str, unclear: str, what: str) -> OpenInt:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ArgumentError(f"{unclear}; {HOW}")
    low, high, samples = found.groups()
    weights: dict[int, float] = {}
    for text in samples.split(",") if samples else ():
        one = _SAMPLE.fullmatch(text)
        if one is None:
            raise ArgumentError(f"{what} has the sample {text[:40]!r}; {HOW}")
        weights[int(one.group(1))] = float(one.group(2) or 1)
    made = size(name, range=(int(low), int(high)), samples=weights or None)
    assert isinstance(made, OpenInt)
    return made


def ends_of(shape: Sequence[int | Int], high: bool) -> tuple[int, ...]:
    """The sizes at one end of their ranges."""
    out = []
    for s in shape:
        if isinstance(s, OpenInt):
            ((one),) = s.declared
            out.append(one.limits[high])
        else:
            assert isinstance(s, int)
            out.append(s)
    return tuple(out)


def largest(func: Function) -> Function:
    """The Function at the upper ends of its sizes."""
    if not func.sizes:
        return func
    return instantiate(func, {s.name: s.limits[1] for s in func.declared})
