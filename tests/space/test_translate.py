"""Traces under other names: what was found for one Function holds for every one like it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from suite import FOUR_CORES, SUITE, V100, task_of

import tilesmith as ts
from tests.support.programs import random_program
from tests.support.thorough import by_turns
from tests.support.traces import CPU_WEIGHTS, SYMBOLIC_WEIGHTS, random_trace
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.notes import Prefetch
from tilesmith.ir.rename import Names, renamed, structure_of
from tilesmith.ir.verify import verify
from tilesmith.schedule.kinds import Annotate, Vectorize
from tilesmith.schedule.loops import Split
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.translate import Translation
from tilesmith.search.classic.baselines import Random
from tilesmith.search.population import Catalogue


def like(func: Function, words: list[str]) -> Function:
    """The Function as someone else would have stated it, with the words as names: of the buffers
    first, which blocks are called after, then of the axes of each block.
    """
    names, left = Names(), iter(words)
    for b in (*func.params, *func.buffers):
        names.buffers[b.name] = next(left)
    for _, block in walk(func.body):
        one = len(block.writes) == 1
        new = names.buffers[block.writes[0].buffer] if one else next(left)
        names.blocks[block.name] = new
        own = names.iters[block.name] = {i.name: next(left) for i in block.iters}
        for i in block.iters:
            assert i.bind.name is not None
            names.loops[i.bind.name] = f"{new}.{own[i.name]}"
    out = renamed(func, names, "other")
    verify(out)
    return out


def words(seed: int) -> list[str]:
    out = [f"{a}{k}" for a in "apz" for k in range(40)]
    random.Random(seed).shuffle(out)
    return out


@cache
def candidates(name: str, target: ts.Target) -> tuple[ts.Task, list[ts.Candidate]]:
    task = task_of(name, target)
    sketches = ts.SketchSpace().sketches(task)
    return task, Random().start(task, sketches, np.random.default_rng(1)).ask(5)


@pytest.mark.parametrize("name", SUITE)
def test_a_trace_gives_the_same_program_under_other_names(name):
    task, found = candidates(name, FOUR_CORES)
    other = ts.Task(like(task.func, words(len(name))), task.target)
    assert other.key == task.key
    assert other != task
    there, back = Translation(task.func, other.func), Translation(other.func, task.func)
    theirs = Catalogue(other, ts.SketchSpace().sketches(other))
    for c in found:
        new = there.trace(c.trace)
        assert structure_of(new.apply(other.func)) == structure_of(c.trace.apply(task.func))
        assert back.trace(new) == c.trace
        # It is what a search of the other task would have proposed itself.
        assert theirs.adopt(ts.Candidate(other, new)) is not None


@pytest.mark.parametrize("name", ["matmul", "conv2d", "softmax"])
def test_traces_for_a_gpu_too(name):
    task, found = candidates(name, V100)
    other = like(task.func, words(3))
    there = Translation(task.func, other)
    for c in found:
        new = there.trace(c.trace)
        assert structure_of(new.apply(other)) == structure_of(c.trace.apply(task.func))


@pytest.mark.parametrize("seed", by_turns(20, 60))
def test_random_traces_of_random_programs_too(seed):
    """Every primitive, with and without open sizes, two outputs of a block, indices from tables."""
    rng = np.random.default_rng(seed)
    func = random_program(rng)
    other = like(func, words(seed))
    symbolic = seed % 3 == 0
    weights = SYMBOLIC_WEIGHTS if symbolic else CPU_WEIGHTS
    sch = random_trace(func, rng, 8, weights, symbolic=symbolic)
    assert structure_of(func) == structure_of(other)
    new = Translation(func, other).trace(sch.trace)
    if not symbolic:  # the sizes of a split are called after its loop, and stay in the structure
        assert structure_of(new.apply(other)) == structure_of(sch.func)
    assert Translation(other, func).trace(new) == sch.trace


# names that look like others, or like derived ones
HARD = {
    "swapped": ["B", "A", "C", "j", "i", "k"],
    "an axis like a buffer": ["A", "B", "C", "A", "B", "C"],
    "stages like suffixes": ["local", "rf", "init", "i", "j", "k"],
    "axes like suffixes": ["A", "B", "C", "rf", "init", "pad"],
    "axes like parts": ["A", "B", "C", "i_outer", "i_inner", "ax0"],
    "numbers": ["_0", "_1", "_2", "_0", "_1", "_2"],
    "reserved": ["root", "inline", "d0", "d1", "parallel", "unroll"],
    "prefixes": ["C", "CC", "CCC", "C", "CC", "CCC"],
}


@pytest.mark.parametrize("which", HARD)
def test_names_that_look_like_others_do_not_confuse_it(which):
    task, found = candidates("matmul", FOUR_CORES)
    other = like(task.func, HARD[which])
    there, back = Translation(task.func, other), Translation(other, task.func)
    for c in found:
        new = there.trace(c.trace)
        assert structure_of(new.apply(other)) == structure_of(c.trace.apply(task.func))
        assert back.trace(new) == c.trace


def matmul(names: str = "A B C i j k matmul", n: int = 8, dtype: str = "float32") -> Function:
    a, b, c, i, j, k, func = names.split()
    x, y = ts.placeholder((n, 6), dtype, name=a), ts.placeholder((6, 4), dtype, name=b)
    r = ts.reduce_axis(6, name=k)
    z = ts.compute((n, 4), lambda p, q: ts.sum(x[p, r] * y[r, q], axis=r), name=c, axes=[i, j])
    return ts.function([x, y, z], name=func)


def test_every_primitive_with_a_name_is_translated():
    func, other = matmul(), matmul("X Y Z p q r other")
    sch = ts.Schedule(func)
    sch.cache_read("C", "A")
    sch.cache_write("C")
    sch.transform_layout("A.local", lambda i, k: (k, i))
    sch.storage_align("A.local", 0, 16, 3)
    sch.rfactor(sch.split(sch.loops("C.local")[2], [None, 2])[1])
    sch.compute_at("A.local", sch.loops("C.local.rf")[0])
    sch.prefetch(sch.loops("C.local.rf")[0], "B", 2)
    fused = sch.fuse(*sch.loops("C")[:2])
    sch.parallel(sch.split(fused, [4, None])[0])
    new = Translation(func, other).trace(sch.trace)
    assert structure_of(new.apply(other)) == structure_of(sch.func)
    text = new.to_json()
    assert not any(f'"{old}' in text for old in ("A", "B", "C", "#C"))
    assert Annotate("Z.local.rf.p", Prefetch("Y", 2)) in new.steps
    assert Split("Z.p+q", (4, None)) in new.steps


@dataclass(frozen=True, slots=True)
class Mine(Step):
    """A user's primitive: it says by the names of its fields what they refer to."""

    name: ClassVar[str] = "mine"
    block: str
    loops: tuple[str, ...]
    comment: str = ""

    def apply(self, func: Function) -> Function:
        assert any(b.name == self.block for _, b in walk(func.body))
        return Vectorize(self.loops[0]).apply(func)


def test_a_users_primitive_is_translated_by_its_fields():
    func, other = matmul(), matmul("X Y Z p q r other")
    trace = Trace((Mine("C", ("C.j",), "C.j"),))
    assert Translation(func, other).trace(trace) == Trace((Mine("Z", ("Z.q",), "C.j"),))


def test_a_trace_that_gives_another_program_is_refused():
    func, other = matmul(), matmul("X Y Z p q r other", n=16)
    with pytest.raises(ts.TraceError, match="this trace of matmul cannot be applied to other"):
        Translation(func, other).trace(Trace((Vectorize("C.j"),)))


def test_a_trace_that_never_applied_is_translated_as_far_as_it_can_be():
    """So that a failure to schedule is known under the other names, too."""
    func, other = matmul(), matmul("X Y Z p q r other")
    trace = Trace((Vectorize("C.k.9"), Split("C.i", (None, 2)), Vectorize("C.i.1")))
    want = Trace((Vectorize("Z.r.9"), Split("Z.p", (None, 2)), Vectorize("Z.p.1")))
    assert Translation(func, other).trace(trace) == want


# what is structure
def stated(**changes: object) -> Function:
    options = {"dtype": "float32", "c": 0.5, "order": 0, "fixed": False, "shape": (4, 6)}
    options |= changes
    x = ts.placeholder(options["shape"], options["dtype"], name="x")
    y = ts.placeholder(options["shape"], options["dtype"], name="y")
    z = ts.compute(options["shape"], lambda i, j: x[i, j] - y[i, j] * options["c"], name="z")
    inputs = [y, x] if options["order"] else [x, y]
    return ts.function([*inputs, z], constants=[y] if options["fixed"] else [])


@pytest.mark.parametrize(
    "change",
    [{"dtype": "float64"}, {"c": 0.25}, {"order": 1}, {"fixed": True}, {"shape": (6, 4)}],
    ids=str,
)
def test_all_that_can_change_the_answer_is_structure(change):
    assert structure_of(stated()) == structure_of(stated())
    assert structure_of(stated()) != structure_of(stated(**change))


def test_what_is_read_where_is_structure():
    def func(first: str, second: str, axes: str) -> Function:
        x, y = ts.placeholder((4, 4), name="x"), ts.placeholder((4, 4), name="y")
        by = {"x": x, "y": y}
        z = ts.compute(
            (4, 4),
            lambda i, j: by[first][i, j] - (by[second][j, i] if axes == "ji" else by[second][i, j]),
            name="z",
        )
        return ts.function([x, y, z])

    every = [func(a, b, c) for a in "xy" for b in "xy" for c in ("ij", "ji")]
    assert len({structure_of(f) for f in every}) == len(every)


def test_notes_kinds_layouts_and_intrinsics_are_structure():
    func = matmul()
    variants = [func]
    for change in (
        lambda s: s.parallel("C.i"),
        lambda s: s.vectorize("C.i"),
        lambda s: s.annotate("C.i", "prefetch", ("A", 2)),
        lambda s: s.annotate("C.i", "prefetch", ("B", 2)),
        lambda s: s.annotate("C.i", "prefetch", ("B", 3)),
        lambda s: s.transform_layout("A", lambda i, k: (k, i)),
        lambda s: s.transform_layout("B", lambda i, k: (k, i)),
        lambda s: s.reorder("C.j", "C.i"),
        lambda s: s.decompose_reduction("C", "C.k"),
        lambda s: s.blockize("C.k"),
        lambda s: s.cache_write("C", "local"),
        lambda s: s.cache_write("C", "global"),
    ):
        sch = ts.Schedule(func)
        change(sch)
        variants.append(sch.func)
    assert len({structure_of(f) for f in variants}) == len(variants)
    for f in variants:
        names = Names(
            {s: f"l.{s}" for s in ts.Schedule(f).loops("C")},
            {"C": "D"},
            {"A": "B", "B": "A", "C": "D"},
            {"C": {"i": "j", "j": "k", "k": "i"}},
        )
        assert structure_of(renamed(f, names, "other")) == structure_of(f)


def test_a_buffer_read_inside_an_index_is_renamed_there():
    def func(table: str, ids: str, out: str, i: str) -> Function:
        t, n = ts.placeholder((9, 4), name=table), ts.placeholder((5,), "int32", name=ids)
        o = ts.compute((5, 4), lambda a, b: t[n[a], b], name=out, axes=[i, "b"])
        return ts.function([t, n, o])

    one, other = func("T", "N", "O", "i"), func("N", "O", "T", "T")
    assert structure_of(one) == structure_of(other)
    assert func("T", "N", "O", "i") == renamed(
        other,
        Names(
            {"T.T": "O.i", "T.b": "O.b"}, {"T": "O"},
            {"N": "T", "O": "N", "T": "O"}, {"T": {"T": "i"}},
        ),
    )  # fmt: skip


def test_names_of_sizes_stay():
    def func(size: str, name: str) -> Function:
        n = ts.size(size)
        x = ts.placeholder((n, 4), name=name)
        return ts.function([x, ts.compute((n, 4), lambda i, j: x[i, j] + 1, name="y")])

    assert structure_of(func("n", "x")) == structure_of(func("n", "z"))
    assert structure_of(func("n", "x")) != structure_of(func("m", "x"))


def test_block_of_two_outputs():
    """Its block is called after neither."""
    x = ts.placeholder((4, 8), name="x")
    y = ts.ops.softmax(x)
    func = ts.function([x, y], name="s")
    other = like(func, words(9))
    assert structure_of(func) == structure_of(other)
    blocks = [b for _, b in walk(func.body) if isinstance(b, Block)]
    assert len(blocks) > 1
    assert structure_of(replace(func, name="t")) == structure_of(func)
