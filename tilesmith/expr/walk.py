"""Traversals of expressions, as graphs whose nodes share operands: each distinct node is visited
once.

A node that is used twice is one object, so nodes are distinguished by identity, and the time is
linear in the number of nodes. Nothing here recurses, because an expression may be deeper than
Python's stack. `below` gives the operands of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

N = TypeVar("N")
T = TypeVar("T")
Below = Callable[[N], Sequence[N]]


def preorder(root: N, below: Below[N]) -> Iterator[N]:
    """Each distinct node, before its operands."""
    stack, seen = [root], set()
    while stack:
        x = stack.pop()
        if id(x) not in seen:
            seen.add(id(x))
            yield x
            stack.extend(reversed(below(x)))


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


def count_paths(root: N, below: Below[N]) -> dict[int, int]:
    """How often each node would occur in the tree without sharing, by id."""
    order = postorder(root, below)
    paths = dict.fromkeys(map(id, order), 0)
    paths[id(root)] = 1
    for x in reversed(order):
        for y in below(x):
            paths[id(y)] += paths[id(x)]
    return paths


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
