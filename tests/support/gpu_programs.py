"""Checks of GPU programs without a GPU: lowers a scheduled Function with every pass verified, and
runs the result in the SIMT interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.base.errors import VerifyError
from tilesmith.base.target import Target
from tilesmith.codegen.pipeline import GPU_PASSES
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Stmt, Sync, rewrite, statements
from tilesmith.ir.pack import packed
from tilesmith.ir.simt import run_simt
from tilesmith.ir.verify import verify

# Another kind of GPU: few and small blocks, warps that a reduction does not fill evenly.
OPENCL = Target(
    "opencl", "", "", 8, num_multiprocessors=8, shared_nbytes=32 << 10, max_threads=96,
    warp_size=16, registers_per_block=16384, l2_nbytes=1 << 20,
)  # fmt: skip


def launch_form(func: Function, target: Target) -> Function:
    """The Function after all GPU passes; what each of them gives is verified."""
    for step in GPU_PASSES:
        func = step(func, target)
        try:
            verify(func)
        except VerifyError as e:
            raise VerifyError(f"after {step.__name__}: {e}\n{func}") from e
    return func


class GpuCheck:
    """Compares schedules of one Function with the oracle's answer on random arrays."""

    def __init__(self, func: Function, target: Target, seed: int = 0) -> None:
        self.func, self.target = func, target
        self.arrays = random_inputs(func, np.random.default_rng(seed))
        self.want = evaluate(func, *self.arrays)

    def arguments(self, scheduled: Function) -> list[Any]:
        """The arrays in the layouts that the schedule gave the inputs."""
        pairs = zip(scheduled.inputs, self.arrays, strict=True)
        return [packed(b, a, scheduled.name) for b, a in pairs]

    def run(self, scheduled: Function) -> Function:
        """Raises unless the schedule computes the same; returns its launch form."""
        lowered = launch_form(scheduled, self.target)
        try:
            got = run_simt(lowered, *self.arguments(scheduled))
        except VerifyError as e:
            raise VerifyError(f"{e}\n{lowered}") from e
        assert_close(got, self.want, f"{lowered}", self.func)
        return lowered

    def race_without(self, scheduled: Function, lowered: Function) -> str:
        """What the interpreter says of a launch form that was changed; empty if nothing."""
        try:
            run_simt(lowered, *self.arguments(scheduled))
        except VerifyError as e:
            return str(e)
        return ""


def without_each_sync(func: Function) -> Iterator[Function]:
    """The launch form without one of its barriers, for each of them."""
    syncs = sum(isinstance(s, Sync) for s in statements(func.body))
    for gone in range(syncs):
        yield replace(func, body=_without(func.body, gone))


def _without(body: Sequence[Stmt], gone: int) -> tuple[Stmt, ...]:
    count = 0

    def go(s: Stmt) -> tuple[Stmt, ...]:
        nonlocal count
        if isinstance(s, Sync):
            count += 1
            return () if count == gone + 1 else (s,)
        return (s,)

    return rewrite(tuple(body), go)
