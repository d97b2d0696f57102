"""From the name of an operator and its sizes to a Function. Sizes are checked first."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from math import prod

from tilesmith.base.errors import ArgumentError, VerifyError
from tilesmith.base.suggest import did_you_mean
from tilesmith.cli.open_sizes import ends_of, is_open, largest, open_size_of
from tilesmith.cli.operator_table import OPERATORS, Operator
from tilesmith.expr.ints import Int
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import Buffer

_WEIGHTS = ("W", "bias", "scale", "shift")  # inputs that `prepared` makes constant
_LARGEST = 10**15  # a larger size is a typing mistake
_ADDRESSABLE = 1 << 47  # bytes that a process can address


def usage(name: str) -> str:
    """The name and its sizes in order, as in `conv3d H CI CO K S P [D=16] [N=1]`."""
    return " ".join(
        [name, *(p.name if p.default is p.empty else f"[{p.name}={p.default}]" for p in _of(name))]
    )


def require_operator(name: str) -> Operator:
    if name not in OPERATORS:
        raise ArgumentError(
            f"unknown operator {name!r}{did_you_mean(name, OPERATORS)}; "
            f"operators are {', '.join(OPERATORS)}"
        )
    return OPERATORS[name]


def _of(name: str) -> list[inspect.Parameter]:
    """The sizes that an operator takes."""
    parameters = inspect.signature(require_operator(name).make).parameters.values()
    return [p for p in parameters if p.kind is not p.KEYWORD_ONLY]


def layouts(name: str) -> tuple[str, ...]:
    """The layouts that `operator` takes for this name; empty if it has only one."""
    parameters = inspect.signature(require_operator(name).make).parameters
    return ("NCHW", "NHWC") if "layout" in parameters else ()


def open_sizes_of(name: str, words: Sequence[str]) -> tuple[int | Int, ...]:
    """Checks and parses the sizes as typed, of which some may be open: tokens:1..512."""
    if not any(map(is_open, words)):
        return sizes_of(name, words)
    parameters = _of(name)
    shape: list[int | Int] = []
    for k, word in enumerate(words):
        which = f"{name}: {parameters[k].name if k < len(parameters) else 'a size too many'}"
        shape.append(open_size_of(word, which) if is_open(word) else sizes_of_word(name, k, word))
    for high in (False, True):
        numbers(name, ends_of(shape, high))
    return tuple(shape)


def sizes_of_word(name: str, k: int, word: str) -> int:
    """One size as typed, without a check of its range."""
    parameters = _of(name)
    if not re.fullmatch(r"[+-]?[0-9]+", word) or len(word) > 40:
        which = f"{parameters[k].name} is " if k < len(parameters) else ""
        raise ArgumentError(
            f"{name}: {which}{_short(word)}; sizes are whole numbers, given as {usage(name)}"
        )
    return int(word)


def sizes_of(name: str, words: Sequence[str]) -> tuple[int, ...]:
    """Checks and parses the sizes as typed."""
    sizes = tuple(sizes_of_word(name, k, word) for k, word in enumerate(words))
    numbers(name, sizes)
    return sizes


def _short(word: str) -> str:
    return repr(word if len(word) <= 40 else f"{word[:30]}...")


def numbers(name: str, shape: Sequence[int]) -> dict[str, int]:
    """The sizes by name, including the defaults of those that were left out."""
    parameters = _of(name)
    least = sum(p.default is p.empty for p in parameters)
    if not least <= len(shape) <= len(parameters):
        got = " ".join(map(str, shape)) or "none"
        raise ArgumentError(f"{name} takes the sizes {usage(name)}; got {got}")
    for p, n in zip(parameters, shape, strict=False):
        smallest = 0 if p.name == "P" else 1
        if n < smallest:
            raise ArgumentError(f"{name}: {p.name} is {n}; it must be at least {smallest}")
        if n > _LARGEST:
            raise ArgumentError(f"{name}: {p.name} is {n}; it must be at most {_LARGEST}")
    defaults = {p.name: int(p.default) for p in parameters if p.default is not p.empty}
    return defaults | {p.name: n for p, n in zip(parameters, shape, strict=False)}


def with_batch(name: str, shape: Sequence[int], batch: int) -> tuple[int, ...]:
    """The sizes with the batch, which is the last one, set."""
    if batch == 1:
        return tuple(shape)
    last = _of(name)[-1]
    if last.default != 1:
        raise ArgumentError(f"{name} has no batch size; its sizes are {usage(name)}")
    values = numbers(name, shape) | {last.name: batch}
    return tuple(values[p.name] for p in _of(name))


def operator(
    name: str, shape: Sequence[int | Int], layout: str | None = None, prepared: bool = False,
    dtype: str = "float32",
) -> Function:  # fmt: skip
    """The Function of a named operator, of which sizes may be open. With `prepared`, its weights
    are constant, so a kernel may want them packed ahead of time. `dtype` is that of its inputs.
    """
    numbers(name, ends_of(shape, high=True))
    if layout is not None and layout not in layouts(name):
        right = f"its layouts are {', '.join(layouts(name))}" if layouts(name) else "leave it out"
        raise ArgumentError(f"{name} has no layout {str(layout)!r}; {right}")
    chosen = {} if layout is None else {"layout": layout}
    said = (str(s).removeprefix("#") for s in shape)
    words = "_".join([name.replace("-", "_"), *said, *chosen.values()])
    if dtype != "float32":
        words += f"_{dtype}"
    try:
        tensors = OPERATORS[name].tensors(shape, dtype, **chosen)
    except (TypeError, AttributeError, VerifyError):
        if all(isinstance(s, int) for s in shape):
            raise
        raise ArgumentError(
            f"{name}: one of its open sizes must be a number; {usage(name)}"
        ) from None
    constants = [t for t in tensors if prepared and t.name in _WEIGHTS]
    func = function(tensors, name=words, constants=constants)
    for b in largest(func).params:
        if nbytes(b) > _ADDRESSABLE:
            raise ArgumentError(
                f"{words}: {b.name} would take {nbytes(b):.1e} bytes, more than a process can "
                "address; are the sizes right?"
            )
    return func


def nbytes(b: Buffer) -> int:
    return prod(n.number for n in b.shape) * b.dtype.bits // 8
