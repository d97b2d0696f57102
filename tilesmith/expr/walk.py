"""Traversals of expressions, as graphs whose nodes share operands: each distinct node is visited
once.

A node that is used twice is one object, so nodes are distinguished by identity, and the time is
linear in the number of nodes. Nothing here recurses, because an expression may be deeper than
Python's stack. `below` gives the operands of a node. The text of expressions is made by such walks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol, TypeVar

from tilesmith.base.dtype import DType
from tilesmith.base.identity import digest

N = TypeVar("N")
T = TypeVar("T")
Below = Callable[[N], Sequence[N]]


def preorder(root: N, below: Below[N]) -> Iterator[N]:
    """Each distinct node, before its operands."""
    stack, seen = [root], set()
    while stack:
        x = stack.pop()
        k = id(x)
        if k not in seen:
            seen.add(k)
            yield x
            if inner := below(x):  # half of the nodes are leaves
                stack += inner[::-1]


def postorder(root: N, below: Below[N]) -> list[N]:
    """Each distinct node, after its operands."""
    out: list[N] = []
    begun: set[int] = set()
    done: set[int] = set()
    stack = [root]
    while stack:
        x = stack[-1]
        k = id(x)
        if k not in begun:
            begun.add(k)
            inner = below(x)
            if inner:
                stack.extend([y for y in reversed(inner) if id(y) not in begun])
                continue
        stack.pop()
        if k not in done:
            done.add(k)
            out.append(x)
    return out


def fold(root: N, below: Below[N], f: Callable[[N, list[T]], T]) -> T:
    """f(node, results of the nodes below it), once for each distinct node."""
    values: dict[int, T] = {}
    for x in postorder(root, below):
        values[id(x)] = f(x, [values[id(y)] for y in below(x)])
    return values[id(root)]


def run_deep(steps: Generator[N, T, T], start: Callable[[N], T | Generator[N, T, T]]) -> T:
    """A recursive function without recursion: a generator that yields a node where it would call
    itself, and is sent the result. `start` returns a node's result if it is known, else its
    generator.
    """
    stack = [steps]
    value: T | None = None
    while True:
        try:
            node = stack[-1].send(value)  # type: ignore[arg-type]
        except StopIteration as done:
            stack.pop()
            value = done.value
            if not stack:
                return value
        else:
            following = start(node)
            if isinstance(following, Generator):
                stack.append(following)
                value = None
            else:
                value = following


# The text of expressions. Works on any graph of nodes that know their operands and their own
# text, so the nodes themselves can use it for `repr`.
Text = tuple[str, str]  # with and without the parentheses around it

# Expressions whose text would be longer name the parts that are used several times.
_LONG_TEXT = 2000


class Printable(Protocol):
    """A node of an expression."""

    @property
    def dtype(self) -> DType: ...

    def operands(self) -> Sequence[Printable]: ...

    def text(self, inner: Sequence[Text]) -> Text:
        """The text of this node, from those of its operands."""
        ...


def show(e: Printable) -> str:
    """The expression as one would write it."""
    parts, text = show_parts(e)
    return f"{text} with {', '.join(f'{n} = {t}' for n, t in parts)}" if parts else text


def brief(e: Printable) -> str:
    """The same within 80 characters, for messages. Names are shown without the numbers that make
    them unique while a computation is being stated.
    """
    text = re.sub(r"@\d+", "", show(e))
    return text if len(text) <= 80 else f"{text[:77]}..."


def show_parts(e: Printable, prefix: str = "v") -> tuple[list[tuple[str, str]], str]:
    """The names of shared parts with their text, and the text of the whole. Short expressions are
    written out.
    """
    shared: dict[int, str] = {}
    if fold(e, _operands, _length) > _LONG_TEXT:
        uses: dict[int, int] = {}
        for x in preorder(e, _operands):
            for y in x.operands():
                uses[id(y)] = uses.get(id(y), 0) + 1
        order = [x for x in postorder(e, _operands) if uses.get(id(x), 0) > 1 and x.operands()]
        shared = {id(x): f"{prefix}{k}" for k, x in enumerate(order)}
    parts: list[tuple[str, str]] = []

    def name(x: Printable, inner: list[Text]) -> Text:
        text, bare = x.text(inner)
        if id(x) not in shared:
            return text, bare
        parts.append((shared[id(x)], bare))
        return shared[id(x)], shared[id(x)]

    return parts, fold(e, _operands, name)[0]


def text_or_digest(e: Printable) -> str:
    """The text of a short expression, a hash of a long one: equal for equal expressions, whatever
    they share.
    """
    if fold(e, _operands, _length) <= _LONG_TEXT:
        return show(e)

    def mark(x: Printable, inner: list[str]) -> str:
        own = x.text([("", "")] * 3)[0]
        return digest(f"{type(x).__name__} {x.dtype.name} {own} {' '.join(inner)}")

    return f"value_{fold(e, _operands, mark)}"


def strip(text: str) -> str:
    """Without the outermost pair of parentheses, if one pair encloses everything."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]


def _operands(e: Printable) -> Sequence[Printable]:
    return e.operands()


def _length(e: Printable, inner: list[int]) -> int:
    return sum(inner) + (6 if inner else len(e.text([])[0]))
