"""Parts of a user's own on the workers of a fleet: they have those that they were started with, and
refuse what needs others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_pools import LocalFleet, Machine

import tilesmith as ts
from tilesmith.measure.fleet.host import DeviceHost
from tilesmith.measure.fleet.offer import ACCEPTS_CODE, PARTS
from tilesmith.schedule.trace import named_parts

MODULE = """
from dataclasses import dataclass, replace
from typing import ClassVar

import tilesmith as ts


@dataclass(frozen=True, slots=True)
class Nothing(ts.Step):
    name: ClassVar[str] = "nothing"
    word: str

    def apply(self, func):
        return func


@dataclass(frozen=True)
class Signed:
    word: str
    kind: ClassVar[str] = "cpu"

    def compile(self, func, target, *, checked=False):
        made = ts.LlvmBackend().compile(func, target, checked=checked)
        return replace(made, name=self.word)


MINE = ts.Parts((Nothing,), backends=(Signed("mine"),))
YOURS = ts.Parts((Nothing,), backends=(Signed("yours"),))
STEPS = ts.Parts((Nothing,))
"""
A = ts.placeholder((16, 16), name="A")
FUNC = ts.function([A, ts.compute((16, 16), lambda i, j: A[j, i], name="Y")], name="turn")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "parts_of_a_fleet.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield lambda name: named_parts(f"parts_of_a_fleet:{name}")
    sys.modules.pop("parts_of_a_fleet", None)


def candidates(parts: ts.Parts | None, words: str = "ab") -> list[ts.Candidate]:
    task = ts.Task(FUNC, ts.cpu(1), parts)
    steps = [() if parts is None else (parts.primitives[0](w),) for w in words]
    return [ts.Candidate(task, ts.Trace(s)) for s in steps]


def measured(
    parts: ts.Parts | None, machine: Machine | None = None, **settings: Any
) -> list[ts.Measurement]:
    host = DeviceHost(measurer=machine) if machine else DeviceHost()
    fleet = LocalFleet(hosts={"one": host}, wait=1.0, **settings)
    batch = candidates(parts)
    try:
        with fleet.open(batch[0].task) as run:
            return run.measure(batch)
    finally:
        host.close()


@pytest.mark.parametrize("build", ["worker", "tuner"])
def test_a_worker_measures_with_its_own_parts(
    build: str, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARTS, "parts_of_a_fleet:MINE")
    monkeypatch.setenv(ACCEPTS_CODE, "1")
    found = measured(own("MINE"), build=build)
    assert all(m.seconds and m.failure is None for m in found), found
    codegen = ts.Task(FUNC, ts.cpu(1), own("MINE")).codegen
    assert {m.candidate.task.codegen for m in found} == {codegen}


def test_the_built_in_back_end_of_a_worker_with_parts_stays_itself(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARTS, "parts_of_a_fleet:MINE")
    for parts in (None, own("STEPS")):
        machine = Machine("one")
        found = measured(parts, machine)
        assert all(m.seconds for m in found)
        assert {m.candidate.task.codegen for m in found} == {ts.Task(FUNC, ts.cpu(1)).codegen}


@pytest.mark.parametrize(
    ("has", "asked", "text"),
    [
        ("", "STEPS", "it needs the primitive 'nothing'; start the worker with --parts"),
        ("", "MINE", r"it needs the back end Signed:\w+; start the worker with --parts"),
        ("YOURS", "MINE", r"it needs the back end Signed:\w+, not Signed:\w+; start"),
        ("STEPS", "MINE", r"it needs the back end Signed:\w+; start"),
    ],
)
def test_a_worker_without_the_parts_says_so(
    has: str, asked: str, text: str, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has:
        monkeypatch.setenv(PARTS, f"parts_of_a_fleet:{has}")
    with pytest.raises(ts.MeasureError, match=text):
        measured(own(asked), Machine("one"))


def test_a_trace_whose_steps_are_in_no_parts_is_refused_here(own: Any) -> None:
    batch = [ts.Candidate(ts.Task(FUNC, ts.cpu(1)), c.trace) for c in candidates(own("STEPS"))]
    fleet = LocalFleet(hosts={"one": DeviceHost(measurer=Machine("one"))}, wait=1.0)
    with (
        fleet.open(batch[0].task) as run,
        pytest.raises(ts.MeasureError, match=r"those of --parts: unknown primitive 'nothing'"),
    ):
        run.measure(batch)
