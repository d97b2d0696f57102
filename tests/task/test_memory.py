"""What does not fit into memory is refused before anything is made."""

from __future__ import annotations

import pytest

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.task.inputs import require_memory


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("matmul", (10**6, 10**6, 10**6), "21.8 TiB"),
        ("sum", (10**12,), "10.9 TiB"),
        ("gelu", (10**6, 10**7), "145.5 TiB"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, shape: tuple[int, ...], said: str) -> None:
    func = operator(name, shape)
    with pytest.raises(ts.MeasureError, match=f"measuring {func.name} takes {said} of memory"):
        require_memory(func)
    with pytest.raises(ts.MeasureError, match="are free here"):
        ts.tune(func, budget=ts.Budget(trials=1), quiet=True)


def test_what_fits_is_not() -> None:
    require_memory(operator("matmul", (64, 64, 64)))
    require_memory(operator("matmul", (1, 64, 1)))
