"""The form of a computation: what Functions have in common that differ in sizes alone, so that the
structure of a good schedule for one of them is a good one for the others.
"""

from __future__ import annotations

import re

from tilesmith.base.identity import digest
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Iter, walk
from tilesmith.ir.printer import show_statement

_WINDOW = 16  # a reduced axis that is not longer is a window, whose length changes the structure
_STEP = 4  # a number in an index that is not larger is a stride or padding rather than a size
_NUMBER = re.compile(r"(?<![\w.#])\d+(?![\w.])")


def form_of(func: Function) -> str:
    """Equal for functions whose reductions differ in sizes only. What is computed of each element
    of their results may differ: it is fused behind the reduction in the same way.
    """
    blocks = [b for _, b in walk(func.body)]
    reductions = [b for b in blocks if b.combiner is not None]
    parts = [f"{b.name}({' '.join(map(_axis, b.iters))})" for b in blocks]
    parts += [_statement(func, b) for b in reductions or blocks]
    return "; ".join(parts)


def digest_of_form(func: Function) -> str:
    return digest(form_of(func))


def extents_of(func: Function) -> list[int]:
    """The extents of all loops, in which Functions of one form differ. Open ones are 0."""
    return [i.extent.const or 0 for _, b in walk(func.body) for i in b.iters]


def _axis(i: Iter) -> str:
    n = i.extent.const
    exact = n is not None and (n <= 1 or (i.kind == "R" and n <= _WINDOW))
    return f"{i.name}:{i.kind}{n if exact else ''}"


def _statement(func: Function, b: Block) -> str:
    text = _NUMBER.sub(lambda m: m[0] if int(m[0]) <= _STEP else "N", show_statement(b))
    used = dict.fromkeys([*(w.buffer for w in b.writes), *(x.buffer for x in b.loads)])
    buffers = [func.all_buffers[name] for name in used]
    return f"{text} of " + " ".join(f"{x.scope} {x.dtype.name}" for x in buffers)
