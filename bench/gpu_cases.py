"""The operator suite for GPUs: batch 1, channels first. It needs what `import tilesmith` needs."""

from __future__ import annotations

import re

import tilesmith as ts
from tilesmith.cli.operators import numbers, operator
from tilesmith.report.compare import Case
from tilesmith.report.suite import SUITE
from tilesmith.runtime.devices.open import target_of


def cases_of(ops: str = "", shapes: str = "") -> list[Case]:
    """Of the named operators, as GMM,C2D (all by default), the shapes of these numbers from 1."""
    picked = [int(n) for n in shapes.split(",")] if shapes else range(1, 100)
    return [
        case_of(op, shape)
        for op in (ops.split(",") if ops else SUITE)
        for k, shape in enumerate(SUITE[op].shapes, 1)
        if k in picked
    ]


def case_of(op: str, shape: tuple[int, ...]) -> Case:
    name = SUITE[op].operator
    plain = operator(name, shape)
    return Case(op, name, tuple(shape), 1, numbers(name, shape), plain, {None: plain})


def device(text: str) -> ts.Target:
    """cuda, opencl, cuda:1 ..."""
    found = re.fullmatch(r"(cuda|opencl)(?::([0-9]+))?", text)
    if found is None:
        raise SystemExit(f"--target {text!r}: write cuda, opencl, or cuda:1 for the second GPU")
    return target_of(found.group(1), int(found.group(2) or 0))
