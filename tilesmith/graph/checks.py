"""Checks: what must hold of values that a graph reads or computes, and that no kernel can say. They
are made on the host when a call is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import AssertionFailedError, RangeError

Array = np.ndarray[Any, Any]
Bound = int | tuple[int, ...]

# Elements up to which NumPy's `argmin` and `argmax`, methods in C, take less time than `min` and
# `max`, which go through Python and a general reduction: 1.5 instead of 6 us for 100 of them.
_FEW = 8192


@dataclass(frozen=True, slots=True)
class Check:
    """All elements of an input, or of an output, are at least `low` and less than `high`; several
    of them hold for one element of the last dimension each. Without `high` it is an assertion of
    the model, which must not be 0.
    """

    name: str  # of the input, or the one that a caller sees of the output
    what: str  # for the message
    low: Bound = 1
    high: Bound | None = None
    hidden: bool = False  # an output that only this check reads

    def verify(self, a: Array) -> None:
        if not a.size:
            return
        if self.high is None:
            if not a.all():
                raise AssertionFailedError(self.what)
            return
        if isinstance(self.low, int) and isinstance(self.high, int):
            self._verify_range(a, self.low, self.high)
        elif isinstance(self.low, tuple) and isinstance(self.high, tuple):
            for k, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
                self._verify_range(a[..., k], low, high)

    def _verify_range(self, a: Array, low: int, high: int) -> None:
        if low == 0 and a.size > _FEW and a.dtype.kind == "i" and _is_below(a, high):
            return
        least, most = _extremes(a)
        if least < low or most >= high:
            raise RangeError(
                f"{self.what}: index {least if least < low else most} is out of range; it must be "
                f"at least {low} and less than {high}"
            )


def _is_below(a: Array, high: int) -> bool:
    """Whether all are at least 0 and less than `high`: as unsigned numbers those below 0 are the
    largest, so one pass tells instead of two.
    """
    return int(a.view(f"u{a.dtype.itemsize}").max()) < high


def _extremes(a: Array) -> tuple[int, int]:
    if a.size <= _FEW:
        return int(a.item(a.argmin())), int(a.item(a.argmax()))
    return int(a.min()), int(a.max())


def verified(
    checks: Sequence[Check], feeds: Mapping[str, Array], results: dict[str, Array]
) -> dict[str, Array]:
    """The results without those that only checks read; raises where a check fails."""
    for c in checks:
        c.verify(results[c.name] if c.name in results else feeds[c.name])
    return without_hidden(checks, results)


def without_hidden(checks: Sequence[Check], results: dict[str, Any]) -> dict[str, Any]:
    hidden = {c.name for c in checks if c.hidden}
    return {n: a for n, a in results.items() if n not in hidden} if hidden else results
