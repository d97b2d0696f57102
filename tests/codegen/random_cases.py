"""Random programs under random schedules, and whether what came out of them is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import tilesmith as ts
from tests.support.programs import random_inputs, random_program
from tests.support.traces import random_trace
from tests.support.wide_programs import random_wide_program

# Every kernel of the random tests is built for these too, wherever the tests run.
TARGETS = tuple(
    ts.Target.named(n)
    for n in (
        "x86-64", "haswell", "skylake-avx512", "sapphirerapids", "neoverse-n1", "cortex-a53",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    func: ts.Function
    schedule: ts.Schedule
    arrays: list[Any]
    note: str

    @staticmethod
    def drawn(seed: int, steps: int | None = None, wide: bool = False) -> Case:
        """`wide` programs have all dtypes, divisions by data, indices from data, long loops."""
        rng = np.random.default_rng(seed)
        func = random_wide_program(rng) if wide else random_program(rng)
        arrays = random_inputs(func, rng)
        sch = random_trace(func, rng, int(rng.integers(0, 12)) if steps is None else steps)
        return Case(func, sch, arrays, f"seed {seed}\n{sch.trace}")

    @property
    def packed(self) -> list[Any]:
        """The inputs as the schedule wants them."""
        f = self.schedule.func
        return [ts.pack(f, b.name, x) for b, x in zip(f.inputs, self.arrays, strict=True)]


def outputs(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def agree(got: object, want: object, note: str) -> None:
    for g, w in zip(outputs(got), outputs(want), strict=True):
        np.testing.assert_allclose(
            np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=2e-4, atol=1e-4, err_msg=note
        )
