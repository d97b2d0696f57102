"""Which builds share the structures of their drafts: tasks of one form (ir/forms.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilesmith.ir.forms import form_of
from tilesmith.tune.build_request import BuildRequest


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
        alike.sort(key=lambda r: (r.task.func.flops, r.task.func_digest))
        first = alike[len(alike) // 2].task
        like.update({r.task: first for r in alike if r.task != first})
    return [replace(r, like=like.get(r.task)) for r in requests]
