"""Where a program rounds otherwise than its statement says, and the error that follows.

Sums in a narrow type are in schedule/chunks.py, minimal filtering in schedule/winograd.py. Here are
factors that an instruction rounds: tensor cores read float32 as TF32, with 11 binary digits of 24,
and sum the products in float32.

The rounding error (`factor_error`): each product has the relative errors of its two factors, u at
most. A sum of terms of one sign has at most 2 u of itself, however long it is. Of terms of both
signs, independent, the errors walk at random like the terms do. With u the roundoff of the factors,
2^-11, the largest error of a layer over its largest value is

    error <= 2 u

Measured over sums of 8 to 8192 terms, for inputs of both signs, positive ones, heavy tails and
channels of very different scales, it is 0.01 to 0.7 of that. Minimal filtering cancels digits that
a rounded factor does not have: these two are not combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from tilesmith.ir.intrinsics import TF32_ROUNDOFF
from tilesmith.ir.nodes import Intrinsic
from tilesmith.schedule.chunks import ChunkSums, NarrowSums
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.schedule.winograd import Winograd

TF32_ERROR = 2 * TF32_ROUNDOFF


def within(units: Iterable[Intrinsic], error: float) -> tuple[Intrinsic, ...]:
    """The instructions whose rounding of factors causes no larger error."""
    return tuple(u for u in units if 2 * u.roundoff <= error)


def factor_error(steps: Sequence[Step]) -> float:
    """The relative error that rounded factors cause; 0 without them."""
    error = 2 * max((s.intrinsic.roundoff for s in steps if isinstance(s, Tensorize)), default=0.0)
    return inf if error and is_filtered(steps) else error


def is_filtered(steps: Iterable[Step]) -> bool:
    """Whether a block is computed by minimal filtering."""
    return any(isinstance(s, Winograd) for s in steps)


def rounds_in(steps: Sequence[Step]) -> str:
    """What rounds otherwise than is stated, as the bounds of the oracle's results are called
    (ir/error_bounds.py): "chunks" or "factors"; "" if nothing does.
    """
    if any(isinstance(s, ChunkSums | NarrowSums) for s in steps):
        return "chunks"
    return "factors" if factor_error(steps) else ""
