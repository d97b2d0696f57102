"""Every pair of dtypes of `cast`, on the values at which conversions differ, against the oracle and
NumPy.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from cast_cases import cast_of, equal, expected, specials

import tilesmith as ts
from tilesmith.base.dtype import DTYPES


def targets() -> list[ts.Target]:
    """This machine, and what it is without its instructions for halves."""
    here = ts.cpu(1)
    return [
        here,
        replace(here, features=here.features - {"fp16"}),
        replace(here, features=here.features - {"fp16", "f16c"}),
    ]


@pytest.mark.parametrize("want", DTYPES)
@pytest.mark.parametrize("have", DTYPES)
def test_every_cast_on_special_values(have: str, want: str) -> None:
    x = specials(have)
    func = cast_of(have, want, len(x))
    result = expected(x, want)
    equal(ts.evaluate(func, x), result)
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops("y")[0])
    for target in targets():
        for what in (ts.Schedule(func), sch):  # as they are
            equal(ts.build(what, target)(x), result)
