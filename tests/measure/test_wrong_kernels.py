"""Kernels with one mistake are told from right ones: by the check on all its draws of inputs, and
when they are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.artifact import ENTRY, Artifact, parameters_of
from tilesmith.codegen.llvm.compiler import compile_ir
from tilesmith.ir.contract import narrow_terms
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import walk
from tilesmith.measure.local import LocalRun
from tilesmith.runtime.build import compile_function
from tilesmith.schedule.chunks import ChunkSums
from tilesmith.schedule.step import Step
from tilesmith.task.task import Candidate, Task

sys.path.append(str(Path(__file__).parents[2]))
from bench.wrong_kernels import WrongKernel, difference, wrong_kernels

ALL = list(wrong_kernels())


def test_there_are_many() -> None:
    assert len({w.name for w in ALL}) == len(ALL) > 100


@pytest.mark.parametrize("pair", ALL, ids=lambda w: w.name)
def test_the_check_tells_it_from_the_right_one(pair: WrongKernel) -> None:
    def wrong(*arrays: object) -> object:
        return ts.evaluate(pair.wrong, *arrays)

    text = difference(pair.right, wrong)
    assert text is not None
    assert "elements are off" in text


HALVES = [
    w for w in ALL
    if w.name != "float16 product whose partial sums are rounded"  # as those of chunks are
    and all(b.dtype.name == "float16" for b in w.right.inputs)
    and any(narrow_terms(b) is not None for _, b in walk(w.right.body))
]  # fmt: skip


@pytest.mark.parametrize("pair", HALVES, ids=lambda w: w.name)
def test_sums_in_chunks_hide_no_mistake(pair: WrongKernel) -> None:
    """Kernels that sum in chunks have wider limits, but sums of small whole numbers are exact."""
    assert difference(pair.right, lambda *a: ts.evaluate(pair.wrong, *a), way="chunks") is not None


def test_there_are_products_of_halves() -> None:
    assert len(HALVES) >= 2


@pytest.mark.parametrize("last", [70, 69])
def test_chunks_are_accepted_if_all_terms_are_there(last: int) -> None:
    """Through all of measuring, with an epilogue in which errors may grow."""
    task = Task(_epilogue(70), ts.cpu(1))
    sch = ts.Schedule(_epilogue(last))
    k0, k1 = sch.split("C_sum.k", [None, 32])
    i, j = (n for n in sch.loops("C_sum") if n not in (k0, k1))
    sch.reorder(k0, k1, i, j)
    sch.apply(ChunkSums("C_sum", k1, 32))
    kernel = ts.build(sch, ts.cpu(1))

    def run(a: np.ndarray, b: np.ndarray) -> object:
        return kernel(np.ascontiguousarray(a[:, :last]), np.ascontiguousarray(b[:last]))

    text = difference(task.func, run, way="chunks")
    assert (text is None) == (last == 70), text
    if last == 70:
        assert difference(task.func, run) is not None  # not within the limits of float32 sums


def _epilogue(terms: int) -> Function:
    a, b = (
        ts.placeholder(s, "float16", name=n) for s, n in (((33, terms), "A"), ((terms, 24), "B"))
    )
    c = ts.ops.matmul(a, b, name="C")
    return ts.function([a, b, ts.ops.sigmoid(c)])


# Some, through all of measuring.
SOME = [w for w in ALL if w.name in {
    "bfloat16 product + 0.1 of zeros", "float16 product, K = 4096, without the last k",
    "float16 softmax without 256 of 1024", "uint8 read as int8", "a last row of 99",
}]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Swap(Step):
    """Marks a Function that the builder replaces by the wrong one."""

    name: ClassVar[str] = "swap"
    pair: int

    def apply(self, func: Function) -> Function:
        return replace(func, name=f"{func.name}!{self.pair}")


@dataclass(frozen=True)
class Swapping:
    kind: ClassVar[str] = "cpu"

    def compile(self, func: Function, target: ts.Target, *, checked: bool = False) -> Artifact:
        _, _, number = func.name.partition("!")
        return compile_function(SOME[int(number)].wrong if number else func, target)


def swapped(number: int) -> Task:
    return Task(SOME[number].right, ts.cpu(1), ts.Parts(backends=(Swapping(),)))


@pytest.fixture(scope="module")
def of_several_tasks() -> Iterator[LocalRun]:
    with ts.LocalMeasurer(confirm=False).open(swapped(0)) as opened:
        yield opened


@pytest.mark.parametrize("number", range(len(SOME)), ids=[w.name for w in SOME])
def test_it_does_not_win(of_several_tasks: LocalRun, number: int) -> None:
    task = swapped(number)
    wrong, right = Candidate(task, ts.Trace((Swap(number),))), Candidate(task, ts.Trace(()))
    bad, good = of_several_tasks.measure([wrong, right])
    assert good.seconds
    assert good.failure is None
    assert bad.failure is not None
    assert bad.failure.kind == "wrong"


# On a GPU's space of programs, by PoCL; `python -m bench.gpu faults` has all of them.
ON_OPENCL = [
    "bfloat16 product + 0.1 of zeros", "float16 softmax without 512 of 1024",
    "int8 convolution without a tap at the border", "float32 relu of NaN is 0",
]  # fmt: skip


@pytest.mark.parametrize("name", ON_OPENCL)
def test_it_is_told_apart_on_opencl(name: str) -> None:
    try:
        target = ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))
    (pair,) = [w for w in ALL if w.name == name]
    assert difference(pair.right, ts.build(pair.right, target)) is None
    assert difference(pair.right, ts.build(pair.wrong, target)) is not None


# A kernel of Y[i] = 2 X[i] + 1 that is wrong in some of its calls, as one with a race may be.
SOMETIMES = f"""
@calls = internal global i64 0
define void @{ENTRY}(ptr %args, ptr %workspace) {{
entry:
  %x = load ptr, ptr %args
  %y.p = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %y.p
  %n = load i64, ptr @calls
  %m = add i64 %n, 1
  store i64 %m, ptr @calls
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %a = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %a
  %t = fmul float %v, 2.0
  %s = fadd float %t, 1.0
  %b = getelementptr float, ptr %y, i64 %i
  store float %s, ptr %b
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, 1000
  br i1 %more, label %loop, label %end
end:
  %r = urem i64 %m, PERIOD
  %bad = icmp eq i64 %r, 0
  br i1 %bad, label %spoil, label %done
spoil:
  %last = getelementptr float, ptr %y, i64 999
  store float 0.0, ptr %last
  br label %done
done:
  ret void
}}
"""


@dataclass(frozen=True, slots=True)
class Sometimes(Step):
    name: ClassVar[str] = "sometimes"
    period: int

    def apply(self, func: Function) -> Function:
        return replace(func, name=f"{func.name}!{self.period}")


@dataclass(frozen=True)
class Fickle:
    kind: ClassVar[str] = "cpu"

    def compile(self, func: Function, target: ts.Target, *, checked: bool = False) -> Artifact:
        _, _, period = func.name.partition("!")
        text = SOMETIMES.replace("PERIOD", period)
        return compile_ir(func.name, text, target, parameters_of(func))


def double() -> Task:
    x = ts.placeholder((1000,), name="X")
    func = ts.function([x, ts.compute((1000,), lambda i: x[i] * 2 + 1, name="Y")], name="double")
    return Task(func, ts.cpu(1), ts.Parts(backends=(Fickle(),)))


@pytest.fixture(scope="module")
def run() -> Iterator[LocalRun]:
    with ts.LocalMeasurer().open(double()) as opened:
        yield opened


@pytest.mark.parametrize("period", [3, 5, 7])
def test_a_kernel_that_is_wrong_in_some_calls_is_refused(run: LocalRun, period: int) -> None:
    """The first calls are right; every third, fifth or seventh is not."""
    (measured,) = run.measure([Candidate(double(), ts.Trace((Sometimes(period),)))])
    assert measured.failure is not None
    assert measured.failure.kind == "wrong"
    assert "Y[999] is 0.0" in measured.failure.text
    # On a busy machine it is measured again, and may be wrong in the first call of that time.
    assert measured.contended or "in a later call: the results vary" in measured.failure.text
