"""Candidates of the operator suite for GPUs, in small shapes with odd extents; and many of them as
one program, because a compiler takes longer to start than to compile a small kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.c.backends import emit_artifact
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.ir.function import Function
from tilesmith.runtime.devices.open import open_device
from tilesmith.space.ansor import ansor_rules
from tilesmith.space.derive import Rule
from tilesmith.space.sets import default_rules
from tilesmith.space.spaces import SketchSpace, structured
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Task

# Small, odd, and with divisors to choose from.
SHAPES: dict[str, tuple[int, ...]] = {
    "matmul": (27, 35, 15), "conv1d": (21, 6, 9, 3, 2, 1), "conv2d": (9, 6, 9, 3, 2, 1),
    "conv3d": (5, 3, 6, 3, 1, 1, 3), "group-conv2d": (6, 6, 9, 3, 1, 1, 3),
    "dilated-conv2d": (9, 3, 6, 3, 1, 2), "depthwise-conv2d": (9, 9, 3, 1, 1),
    "conv2d-transpose": (3, 6, 9, 4, 2, 1), "capsule-conv2d": (5, 3, 3, 3, 2, 1, 2),
    "norm": (9, 146), "softmax": (5, 290), "conv2d-bn-relu": (6, 3, 9, 3, 1, 1),
    "transpose-batch-matmul": (9, 3, 15),
}  # fmt: skip
RULES: dict[str, Callable[[Target], tuple[Rule, ...]]] = {
    "ansor": ansor_rules,
    "default": default_rules,
}


def candidates(
    func: Function, target: Target, rules: str, count: int, rng: np.random.Generator
) -> Iterator[Function]:
    """So many different random candidates, or all if there are fewer: of as many sketches and
    structural choices as possible, one after the other.
    """
    task = Task(func, target)
    traces = [t for s in SketchSpace(RULES[rules](target)).sketches(task) for t in structured(s)]
    variants: list[Variant] = []
    for k in rng.permutation(len(traces)):
        if len(variants) == count:
            break
        try:
            variants.append(lower(task, traces[k]))
        except ScheduleError:
            continue
    drawn = [rng.permutation(np.unique(v.sample(rng, 2 * count), axis=0)) for v in variants]
    turns = (
        (v, rows[turn])
        for turn in range(count)
        for v, rows in zip(variants, drawn, strict=True)
        if turn < len(rows)
    )
    for v, row in islice(turns, count):
        yield v.function(row)


def emitted(lowered: Sequence[Function], target: Target, dialect: Dialect) -> list[Artifact]:
    """The text of each Function in launch form. Nothing is compiled."""
    return [
        emit_artifact(replace(f, name=f"{f.name}_{k}"), target, dialect, (), False)
        for k, f in enumerate(lowered)
    ]


def as_one(parts: Sequence[Artifact]) -> Artifact:
    """The texts of what `emitted` gave as one program, with an entry for each."""
    # Helpers, which several of them have, come once.
    texts = dict.fromkeys(t for p in parts for t in p.source.strip().split("\n\n"))
    source = "\n\n".join(texts) + "\n"
    entries = tuple(e for p in parts for e in p.entries)
    return replace(parts[0], entries=entries, source=source, code=source.encode())


def run_entries(artifact: Artifact, arrays: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """The results of each entry on its input arrays, on the artifact's device. Results are filled
    with NaN before.
    """
    device = open_device(artifact.target)
    module = device.load(artifact)
    for k, (entry, given) in enumerate(zip(artifact.entries, arrays, strict=True)):
        results = [np.empty(p.shape, p.dtype.numpy) for p in entry.parameters if p.output]
        memory = [device.allocate(p.nbytes) for p in entry.parameters]
        for m, a in zip(memory, given, strict=False):
            device.write(m, np.ascontiguousarray(a))
        for m in memory[len(given) :]:
            device.fill(m, 0xFF)
        scratch = device.allocate(entry.workspace_nbytes) if entry.workspace_nbytes else None
        pointers = [m.at(0, p.nbytes) for m, p in zip(memory, entry.parameters, strict=True)]
        device.run((device.call(module, k, pointers, scratch),))
        device.synchronize()
        for m, a in zip(memory[len(given) :], results, strict=True):
            device.read(m, a)
        yield results[0] if len(results) == 1 else tuple(results)
