"""The form of a computation: what tasks have in common that differ in sizes alone, so that the
structure of a good schedule for one of them is a good one for the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Iter, walk
from tilesmith.ir.printer import show_statement
from tilesmith.tune.build_request import BuildRequest

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


def _axis(i: Iter) -> str:
    n = i.extent.const
    exact = n is not None and (n <= 1 or (i.kind == "R" and n <= _WINDOW))
    return f"{i.name}:{i.kind}{n if exact else ''}"


def _statement(func: Function, b: Block) -> str:
    text = _NUMBER.sub(lambda m: m[0] if int(m[0]) <= _STEP else "N", show_statement(b))
    used = dict.fromkeys([*(w.buffer for w in b.writes), *(x.buffer for x in b.loads)])
    buffers = [func.all_buffers[name] for name in used]
    return f"{text} of " + " ".join(f"{x.scope} {x.dtype.name}" for x in buffers)


def share_structures(requests: Sequence[BuildRequest]) -> list[BuildRequest]:
    """The requests, of which those for drafts of one form are like the one of them whose work is
    the median. GPUs are left out: there, sizes decide about structures, as of what is split over
    blocks.
    """
    forms: dict[str, list[BuildRequest]] = {}
    for r in requests:
        is_draft = r.drafts and not r.known and not r.familiar and not r.is_plain
        if is_draft and r.task.target.kind == "cpu":
            forms.setdefault(form_of(r.task.func), []).append(r)
    like = {}
    for alike in forms.values():
        alike.sort(key=lambda r: (r.task.func.flops, r.task.func.digest))
        first = alike[len(alike) // 2].task
        like.update({r.task: first for r in alike if r.task != first})
    return [replace(r, like=like.get(r.task)) for r in requests]
