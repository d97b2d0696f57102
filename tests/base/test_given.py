"""The check of arguments: what it takes beyond the letter of an annotation, what it says of a part
of a list or dict, and that threads may meet at its first call. tests/test_wrong_arguments.py calls
all public names.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import numpy as np
import pytest

from tilesmith.base import given as given_module
from tilesmith.base.dtype import FLOAT32, DType
from tilesmith.base.errors import ArgumentError
from tilesmith.base.given import checks_given, kind_of


@checks_given
def taken(
    numbers: Sequence[int] = (), sizes: Mapping[str, int] | None = None, kind: DType = FLOAT32,
    to: TextIO | None = None, pairs: tuple[int, ...] = (),
    key: Callable[[DType], int] | None = None,
) -> str:  # fmt: skip
    return "taken"


@pytest.mark.parametrize(
    "given",
    [
        {"kind": np.dtype("int8")},
        {"to": io.StringIO()},
        {"pairs": [1, 2]},
        {"numbers": np.arange(3)},
    ],
    ids=lambda g: next(iter(g)),
)
def test_what_is_as_good_is_taken(given: dict[str, Any]) -> None:
    assert taken(**given) == "taken"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"numbers": [1, "2"]},
            r"the list \[1, '2'\] with the text '2'; it takes a list, each a wh",
        ),
        (
            {"sizes": {"n": 2.5}},
            "with the float 2.5 for 'n'; it takes a dict from a text to a whole",
        ),
        ({"sizes": {3: 1}}, "with the int 3 as a key"),
        ({"pairs": (1, None)}, "with None; it takes a tuple, each a whole number"),
        ({"key": 3}, "it takes a function of a DType or None"),
        ({"to": 3}, "it takes an open file or None"),
    ],
)
def test_what_is_wrong_in_it_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        taken(**given)


def test_threads_that_meet_at_the_first_call_all_find_the_whole_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(hint: Any) -> Any:
        time.sleep(0.01)
        return kind_of(hint)

    monkeypatch.setattr(given_module, "kind_of", slow)

    @checks_given
    def fresh(a: int, b: str, c: int) -> int:
        return a

    with ThreadPoolExecutor(4) as pool:
        calls = []
        for _ in range(4):
            calls.append(pool.submit(fresh, 1, "x", 2))
            time.sleep(0.012)  # the first has begun
        assert [c.result() for c in calls] == [1] * 4
