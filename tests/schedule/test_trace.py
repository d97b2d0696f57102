"""Traces: text, JSON, numbers for sizes, and what is said about one that cannot be read."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest
from cases import matmul_relu

import tilesmith as ts
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import NEON_DOT_S8S8
from tilesmith.ir.notes import Prefetch
from tilesmith.schedule.kinds import Annotate
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.loops import Split
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES, Trace
from tilesmith.schedule.unit import Tensorize


def example() -> Schedule:
    sch = Schedule(matmul_relu())
    sch.split("C.i", [None, 4])
    sch.reorder("C.i.0", "C.j", "C.i.1")
    sch.reverse_compute_at("D", "C.j")
    sch.parallel("C.i.0", "C.j")
    sch.annotate("C.k", "prefetch", ("A", 4))
    return sch


def test_trace_text(golden):
    golden(example().trace)


def test_trace_round_trip():
    sch = example()
    again = Trace.from_json(sch.trace.to_json())
    assert again == sch.trace
    assert hash(again) == hash(sch.trace)
    assert again.apply(sch.origin) == sch.func
    assert [type(s) for s in again] == [type(s) for s in sch.trace]
    assert len(again) == 6


# The primitives that take what they are told; decisions have tests of their own.
REWRITES = [p for p in PRIMITIVES if not p.name.startswith(("sample_", "auto_"))]


@pytest.mark.parametrize("primitive", REWRITES, ids=lambda p: p.name)
def test_every_primitive_goes_through_json(primitive):
    values = {
        "factors": (None, 4, "#x"), "exact": True, "loops": ("a", "b"), "stages": 2, "dim": 0,
        "multiple": 4, "offset": 1, "multiples": (("i", 4),), "rows": (("i", 4), ("j", 1)),
        "terms": (("k", 2),), "sizes": (("i", 4),), "layout": ("d0",), "note": Prefetch("A", 3),
    }  # fmt: skip
    step = primitive(
        **{
            f.name: NEON_DOT_S8S8 if f.name == "intrinsic" else values.get(f.name, "text")
            for f in fields(primitive)
        }
    )
    trace = Trace((step,))
    assert Trace.from_json(trace.to_json()) == trace
    assert str(step).startswith(f"{primitive.name}(")


def test_primitives_have_distinct_names():
    assert len(REWRITES) >= 24
    assert len({p.name for p in PRIMITIVES}) == len(PRIMITIVES)


def test_every_primitive_shows_a_picture():
    for p in REWRITES:
        assert "->" in (p.__doc__ or ""), p.name


@dataclass(frozen=True, slots=True)
class Rename(Step):
    """A primitive of the user's own."""

    name: ClassVar[str] = "rename"
    to: str

    def apply(self, func: Function) -> Function:
        return replace(func, name=self.to)


def test_a_users_primitive():
    sch = Schedule(matmul_relu())
    sch.apply(Rename("mine"))
    assert sch.func.name == "mine"
    text = sch.trace.to_json()
    with pytest.raises(
        ts.TraceError, match=r"unknown primitive 'rename'; known are annotate, .*bind"
    ):
        Trace.from_json(text)
    assert Trace.from_json(text, ts.Parts(primitives=(Rename,))) == sch.trace


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "this is not a trace"),
        ("[]", "this is not a trace"),
        ("{}", "this is not a trace"),
        ('{"version": 1, "steps": [3]}', "this is not a trace"),
        ('{"version": 99, "steps": []}', "version 99; this library reads version 1"),
        ('{"version": 1, "steps": [["dance", {}]]}', "unknown primitive 'dance'"),
        (
            '{"version": 1, "steps": [["unroll", {"loop": "i", "by": 4}]]}',
            "unroll has no field 'by'",
        ),
        ('{"version": 1, "steps": [["unroll", {}]]}', "unroll: .*loop"),
        (
            '{"version": 1, "steps": [["tensorize", {"loop": "i", "intrinsic": "x"}]]}',
            "unknown intrinsic 'x'; known are amx",
        ),
    ],
)
def test_traces_that_cannot_be_read(text, words):
    with pytest.raises(ts.TraceError, match=words):
        Trace.from_json(text)


def test_json_is_plain():
    data = json.loads(example().trace.to_json())
    assert data["version"] == 1
    assert data["steps"][0] == ["split", {"loop": "C.i", "factors": [None, 4], "exact": False}]


def test_apply_says_what_is_wrong_with_a_step():
    trace = Trace((Split("C.i", (None, 4)), Split("C.i", (None, 4))))
    with pytest.raises(ts.ScheduleError, match=r"there is no loop 'C\.i' in matmul_relu"):
        trace.apply(matmul_relu())


# decide
def test_decide_puts_numbers_for_sizes():
    step = Split("C.i", (None, "#a", "#b"))
    assert step.decide({"#a": 4}) == Split("C.i", (None, 4, "#b"))
    trace = Trace((step, TransformLayout("C", ("d1 // #a", "d0", "d1 % #a"))))
    decided = trace.decide({"#a": 4, "#b": 2})
    assert decided.steps[0] == Split("C.i", (None, 4, 2))
    assert decided.steps[1] == TransformLayout("C", ("((d1) // 4)", "d0", "-4*((d1) // 4) + d1"))


def test_decide_leaves_names_alone():
    steps = (
        Annotate("C.k", Prefetch("A", 3)),
        Pad("C", (("i", 4),)),
        Tensorize("C.k", NEON_DOT_S8S8),
    )
    for s in steps:
        assert s.decide({"#a": 4}) == s


def test_schedule_answers():
    sch = example()
    assert sch.blocks == ("C", "D")
    assert sch.loops("D") == ("C.i.0", "C.j", "D.i", "D.j")
    assert sch.extent("C.i.0") == 2
    assert str(sch) == str(sch.func)
    with pytest.raises(ts.ScheduleError, match="there is no block 'Q' in matmul_relu; it has C, D"):
        sch.loops("Q")
