"""The identity of a user's objects: equal for equal settings and code, in every process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.base.identity import identity, packed

MODULE = """
from dataclasses import dataclass
from functools import cached_property
import math

FACTOR = {factor}

def helper(x):
    return x * FACTOR

def scaled(x):
    return [helper(y) for y in (x, math.pi)]

class Base:
    def both(self):
        return scaled({both})

@dataclass(frozen=True)
class Settings(Base):
    size: int = 3
    how: object = scaled

    def run(self):
        return self.both()

    @cached_property
    def area(self):
        return self.size * {area}
"""


def loaded(folder: Path, **numbers: int) -> Any:
    """The module, as it is with these numbers in it."""
    scope: dict[str, Any] = {"__name__": "mine"}
    place = folder / f"mine_{'_'.join(map(str, numbers.values()))}.py"
    place.write_text(MODULE.format(**{"factor": 2, "both": 1, "area": 1, **numbers}))
    sys.modules["mine"] = type(sys)("mine")  # dataclass looks for the module of a class
    try:
        exec(compile(place.read_text(), place, "exec"), scope)
    finally:
        del sys.modules["mine"]
    return scope


def test_code_counts_with_all_that_it_refers_to(tmp_path: Path) -> None:
    own, same, factor, base = (
        loaded(tmp_path, **n) for n in ({}, {}, {"factor": 3}, {"both": 2})
    )  # fmt: skip
    assert identity(own["scaled"]) == identity(same["scaled"]) == identity(base["scaled"])
    assert identity(own["scaled"]) != identity(factor["scaled"])  # a constant of a helper
    objects = [m["Settings"]() for m in (own, same, factor, base)]
    assert identity(objects[0]) == identity(objects[1])
    assert len({identity(x) for x in objects}) == 3  # a base class counts, too
    assert identity(own["Settings"](4)) != identity(objects[0])
    assert identity(loaded(tmp_path, area=2)["Settings"]()) != identity(objects[0])


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE.format(factor=2, both=1, area=1))
    program = "import mine, tilesmith.base.identity as i; print(i.identity(mine.Settings()))"
    texts = set()
    for seed in ("1", "2"):
        path = f"{tmp_path}:{':'.join(p for p in sys.path if p)}"
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1


@cache
def cached(n: int) -> int:
    return n + 1


@dataclass(frozen=True)
class Numbers:
    names: frozenset[str]
    values: dict[str, float]
    unseen: list[int] = field(default_factory=list, compare=False)


def test_settings_are_values() -> None:
    one = Numbers(frozenset("abc"), {"x": 1.0, "y": 2.0}, [1])
    assert identity(one) == identity(Numbers(frozenset("cba"), {"y": 2.0, "x": 1.0}))
    assert identity(one) != identity(Numbers(frozenset("ab"), {"x": 1.0, "y": 2.0}))
    assert identity(partial(cached, 1)) != identity(partial(cached, 2))
    assert identity(ts.LlvmBackend()) == identity(ts.LlvmBackend(passes=ts.CPU_PASSES))
    assert identity(ts.LlvmBackend()) != identity(ts.LlvmBackend(passes=ts.CPU_PASSES[1:]))
    with pytest.raises(ts.ArgumentError, match="frozen dataclass"):
        identity(Numbers(frozenset(), {"x": object()}))  # type: ignore[dict-item]


def test_only_what_a_fresh_process_can_import_is_packed() -> None:
    def inner() -> None: ...

    assert packed((ts.LlvmBackend(), 1, "text", identity)) is not None
    assert packed(inner) is None
    assert packed(type("Made", (), {})) is None
    stray = type("Stray", (), {"__module__": "no_such_module"})
    sys.modules["no_such_module"] = module = type(sys)("no_such_module")
    module.Stray = stray  # type: ignore[attr-defined]
    try:
        assert packed(stray()) is None  # it can be pickled, but not imported elsewhere
    finally:
        del sys.modules["no_such_module"]
