"""What a learned cost model knows of a program: the features of its statements and of the machine,
by name, so that a file says which ones its trees read.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.identity import digest
from tilesmith.base.target import CpuConstants, Target
from tilesmith.search.features.machine import Values
from tilesmith.search.protocol import AnalyticScore, Scores
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.statements import NAMES, statements_of
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

MACHINE = (
    "machine: vector bits", "machine: vector registers", "machine: cores", "machine: ports",
    "machine: L1", "machine: L2", "machine: L3", "machine: L2 bandwidth", "machine: L3 bandwidth",
    "machine: memory bandwidth",
)  # fmt: skip
PORTABLE = (*MACHINE, *NAMES[:-1])
# Raise it when the meaning of a feature changes but its name does not.
_MEANING = 1
FEATURES_DIGEST = digest(str(_MEANING), *PORTABLE)[:16]


@lru_cache(maxsize=64)
def machine_features(target: Target) -> tuple[float, ...]:
    """log2 of a CPU's sizes and rates, as the analytic score knows them."""
    cpu = CpuConstants.of(target)
    sizes = (
        cpu.vector_bits, cpu.num_vector_registers, cpu.num_cores, cpu.ports,
        *(c.nbytes for c in cpu.caches), *(c.bandwidth_below for c in cpu.caches),
    )  # fmt: skip
    return tuple(log2(max(x, 1)) for x in sizes)


@dataclass(frozen=True)
class PortableFeatures:
    """The features of these names, and behind them the analytic score."""

    names: tuple[str, ...] = PORTABLE

    def __post_init__(self) -> None:
        unknown = [n for n in self.names if n not in PORTABLE]
        if unknown:
            raise TuneError(f"there is no feature {unknown[0]!r}")

    def extract(self, variant: Variant, rows: Matrix) -> Values:
        return self.with_score(variant, rows, ScoreByTarget())[0]

    def with_score(
        self, variant: Variant, rows: Matrix, score: AnalyticScore
    ) -> tuple[Values, Scores]:
        own = tuple(n for n in self.names if n not in MACHINE)
        of_statements, scores = statements_of(variant, score, own).with_score(rows)
        machine = dict(zip(MACHINE, machine_features(variant.task.target), strict=True))
        out = np.empty((*of_statements.shape[:2], len(self.names) + 1), np.float32)
        at = 0
        for k, name in enumerate(self.names):
            if name in machine:
                out[:, :, k] = machine[name]
            else:
                out[:, :, k] = of_statements[:, :, at]
                at += 1
        out[:, :, -1] = scores[:, None]
        return out, scores
