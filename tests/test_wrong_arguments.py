"""Every public function, constructor and method, given every kind of wrong argument, one at a time:
each raises a TilesmithError that names what was given. What is wrong is told from the annotations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.base.given import a
from tilesmith.base.machines.aarch64 import AARCH64
from tilesmith.graph.builder import GraphBuilder
from tilesmith.search.learned.features import PortableFeatures
from tilesmith.search.learned.forest import Forest
from tilesmith.search.learned.model import LearnedScore
from tilesmith.testing.landscape import matmul_task
from tilesmith.testing.measurers import FakeMeasurer

TASK = matmul_task()
ONE = ts.cpu(1)
# Made by the library and never by a user, thousands of times a second: not checked once more.
MADE_BY_THE_LIBRARY = {
    "Catalogue", "Function", "Graph", "Kernel", "Model", "Node", "RandomSearch", "State",
    "TemplateSchedule", "Tensor", "Value", "Variant",
}  # fmt: skip
PROTOCOLS = {"Backend", "Database", "Finishing", "Measurer", "Measuring", "Program", "Scheduler"}


@cache
def graph() -> ts.Graph:
    b = GraphBuilder("dense")
    x = b.input("x", (4, 8), "float32")
    return b.finish({"y": b.add(ts.ops.dense, x, b.constant(np.ones((8, 8), "float32")))})


@cache
def kernel() -> ts.Kernel:
    return ts.build(TASK.func, ONE)


@cache
def model() -> ts.Model:
    return ts.compile_model(graph(), ONE, cache=None, progress=False)


@cache
def database() -> Any:
    return ts.open_database(":memory:")


def measurement() -> ts.Measurement:
    return ts.Measurement(ts.Candidate(TASK, ts.Trace()), (1.0,))


def learned_score() -> LearnedScore:
    one = np.zeros((1, 1))
    forest = Forest(one.astype(np.int16), one.astype(np.float32), np.zeros((1, 2), np.float32))
    return LearnedScore(forest, PortableFeatures())


def tuning_run() -> ts.TuningRun:
    return ts.TuningRun("key", "Random", "", 0, ts.Budget(), 0.0, "machine")


@dataclass(frozen=True)
class Wrong:
    """A value, and the names in an annotation that take it."""

    value: Any
    fits: frozenset[str]


def wrong(value: Any, fits: str) -> Wrong:
    return Wrong(value, frozenset(fits.split()))


NUMBERS = "Number IntLike Int Size Term Operand PerDim Padding"
FUNCTIONS = "Callable Objective Acquisition Partition CompileGraph Rule Pass Drafts Scheduler"


@cache
def wrong_values() -> tuple[Wrong, ...]:
    return (
        wrong("cpu", "str Path PathLike"),
        wrong(3, f"int float Axes {NUMBERS}"),
        wrong(2.5, f"float {NUMBERS}"),
        wrong(None, "None Axes"),
        wrong([object()], ""),
        wrong(object(), ""),
        wrong(np.zeros((2, 3, 4), np.complex64), "Array ndarray Matrix Scores"),
        wrong(TASK.func, "Function Program"),
        wrong(graph(), "Graph"),
        wrong(ts.Evolution, f"type {FUNCTIONS}"),
        wrong(print, FUNCTIONS),
    )


def members(annotation: str) -> list[str]:
    """The members of a union, as text."""
    parts, depth = [""], 0
    for c in annotation:
        depth += (c == "[") - (c == "]")
        if c == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def is_wrong(annotation: str, w: Wrong) -> bool:
    heads = {
        re.split(r"[\[.]", m.removeprefix("os.").removeprefix("np."))[0]
        for m in members(annotation)
    }
    if heads & {"Any", "T", "object", "Self"}:
        return False
    if (
        isinstance(w.value, list | np.ndarray)
        and re.search(r"\b(Any|T)\b", annotation)
        and heads & {"Sequence", "list", "Iterable"}
    ):
        return False
    return not heads & w.fits


GOOD: dict[str, Callable[[], Any]] = {
    "Axes": lambda: ts.reduce_axis(4),
    "Axis": lambda: ts.reduce_axis(4),
    "Budget": ts.Budget,
    "Callable": lambda: print,
    "Candidate": lambda: ts.Candidate(TASK, ts.Trace()),
    "CpuMachine": lambda: AARCH64,
    "Curve": tuple,
    "Function": lambda: TASK.func,
    "Graph": graph,
    "Int": lambda: ts.size("n"),
    "IntLike": lambda: 4,
    "LearnedScore": learned_score,
    "Mapping": dict,
    "Measurement": measurement,
    "Measuring": lambda: FakeMeasurer().open(TASK),
    "Operand": lambda: 1.0,
    "Path": lambda: Path("nowhere"),
    "PerDim": lambda: 1,
    "Program": lambda: TASK.func,
    "Rng": lambda: np.random.default_rng(0),
    "Sequence": list,
    "Strategy": ts.Random,
    "Target": lambda: ONE,
    "Task": lambda: TASK,
    "Tensor": lambda: ts.placeholder((1, 4, 8, 8)),
    "Term": lambda: 1.0,
    "Trace": ts.Trace,
    "TuningRun": tuning_run,
    "bool": lambda: True,
    "bytes": lambda: b"",
    "dict": dict,
    "float": lambda: 1.0,
    "frozenset": frozenset,
    "int": lambda: 1,
    "str": lambda: "float32",
    "tuple": tuple,
    "Scores": lambda: np.zeros(3),
    "Tiling": lambda: ts.Tiling("SSRSRS"),
}


EXAMPLES = {"CpuConstants": ts.CpuConstants.of(ONE)}


def good(annotation: str) -> Any:
    head = re.split(r"[\[ .]", annotation.removeprefix("os."))[0]
    return GOOD[head]() if head in GOOD else None


@dataclass(frozen=True)
class Callee:
    name: str
    call: Callable[..., Any]


def methods(name: str, made: Any) -> Iterator[Callee]:
    for key in dir(type(made)):
        member = inspect.getattr_static(made, key)
        is_method = isinstance(member, FunctionType | classmethod | staticmethod)
        fields = getattr(type(made), "__dataclass_fields__", {})
        if is_method and not key.startswith("_") and key not in fields:
            yield Callee(f"{name}.{key}", getattr(made, key))


def callees() -> Iterator[Callee]:
    for name in ts.__all__:
        found = getattr(ts, name)
        if name in PROTOCOLS or not callable(found):
            continue
        if not isinstance(found, type) or (
            not issubclass(found, BaseException) and name not in MADE_BY_THE_LIBRARY
        ):
            yield Callee(name, found)
    for name in ts.ops.__all__:
        yield Callee(f"ops.{name}", getattr(ts.ops, name))
    instances = (
        ts.Schedule(TASK.func), kernel(), model(), database(), ts.Trace(), ONE, TASK, ts.Parts(),
        ts.Annealing(), ts.Genetic(), ts.Grid(), ts.Random(), ts.Evolution(),
        ts.Gbdt(), ts.RandomModel(), ts.Ensemble(), ts.Transfer(()), ts.TreeGru(),
        ts.LocalMeasurer(), ts.FleetMeasurer(), ts.ReplayMeasurer(()),
        ts.SketchSpace(), ts.TemplateSpace(print), ts.UnionSpace(ts.SketchSpace()),
        ts.RecordedSpace(()), ts.Recorded(ts.Random(), ()), ts.TaskTuner(TASK),
        ts.TemplateSchedule(TASK),
        ts.Cache(Path("nowhere")), graph(), ts.LlvmBackend(),
    )  # fmt: skip
    for made in instances:
        yield from methods(type(made).__name__, made)


def text_of(p: inspect.Parameter) -> str:
    """Its annotation, which a NamedTuple wraps."""
    return str(getattr(p.annotation, "__forward_arg__", p.annotation))


def attempts() -> Iterator[tuple[str, Callable[[], Any], str, Any]]:
    for callee in callees():
        example = EXAMPLES.get(callee.name)
        parameters = inspect.signature(callee.call).parameters.values()
        required = {
            p.name: getattr(example, p.name, None) or good(text_of(p)) for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }  # fmt: skip
        for p in parameters:
            for w in wrong_values():
                if not is_wrong(text_of(p), w) or p.annotation is p.empty:
                    continue
                if p.kind is p.VAR_POSITIONAL:
                    call = partial(callee.call, *required.values(), w.value)
                else:
                    call = partial(callee.call, **{**required, p.name: w.value})
                yield callee.name, call, p.name, w.value


def trouble(call: Callable[[], Any], parameter: str, value: Any) -> str:
    """What is wrong with how a call goes; empty if it says what it should."""
    try:
        call()
    except ts.TilesmithError as error:
        text = str(error)
        inner = value[0] if isinstance(value, list) else value
        names = (
            parameter,
            repr(inner),
            type(value).__name__,
            repr(value),
            getattr(value, "__name__", "?"),
        )
        return "" if any(n in text for n in names) else f"does not name it: {text[:120]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return "takes it"


def test_every_public_callable_says_what_is_wrong() -> None:
    found = [
        f"{name}({parameter}={a(value)}): {what}"
        for name, call, parameter, value in attempts()
        if (what := trouble(call, parameter, value))
    ]
    assert not found, f"{len(found)} mistakes are not told:\n" + "\n".join(found)
