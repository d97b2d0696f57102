"""Exported models with open sizes: a C program that passes sizes computes what Python does, bit for
bit, in the memory that the library says it needs.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import PLAIN, arrays_of, as_bytes, call, example_of, needs
from hypothesis import given, settings
from hypothesis import strategies as st
from test_export_open import LoadedOpen, int64s

import tilesmith as ts
from tests.support.open_models import CASES, TAGGER, compiled, feeds_of, program, with_portfolios
from tilesmith.expr.ints import Int, var
from tilesmith.graph.memory import Lifetime, plan_arena
from tilesmith.graph.open_export import ordered
from tilesmith.graph.open_plan import OpenLifetime
from tilesmith.graph.size_fit import value_at
from tilesmith.runtime.export.library import ArenaArray
from tilesmith.runtime.export.write import Exported

pytestmark = needs("cc")
TARGET = ts.Target.named(PLAIN[ts.cpu().arch]).with_cores(2)
GUARD = 171


@pytest.fixture(scope="module", params=[*CASES])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any, ts.Model, Exported]:
    """A model, compiled, and exported."""
    one = CASES[request.param]
    model = one.program()
    made = with_portfolios(compiled(model, one.sizes, target=TARGET))
    return request.param, model, made, made.export(tmp_path_factory.mktemp(request.param))


@pytest.mark.turns(3)
def test_the_example_takes_sizes(case: tuple[str, Any, ts.Model, Exported]) -> None:
    name, model, made, files = case
    example = example_of(files, static=name == "image")
    for lengths, feeds in zip(CASES[name].lengths, CASES[name].feeds(model), strict=True):
        want = made(feeds)
        got = arrays_of(call(example, files.weights, *lengths, given=as_bytes(feeds)), want)
        for x, a in want.items():
            assert got[x].tobytes() == a.tobytes(), (lengths, x)


def test_it_uses_the_memory_that_it_asks_for(case: tuple[str, Any, ts.Model, Exported]) -> None:
    """Nothing beside the outputs and the workspace of the caller is written."""
    name, model, made, files = case
    library = LoadedOpen(files, "model")
    handle = library.handle(files.weights)
    rng = np.random.default_rng(0)
    for _ in range(8):
        sizes = [int(rng.integers(low, high + 1)) for low, high in CASES[name].sizes.values()]
        feeds = feeds_of(model, **dict(zip(CASES[name].sizes, sizes, strict=True)))
        want = made(feeds)
        nbytes = (ctypes.c_size_t * len(want))()
        given = (ctypes.c_size_t * len(feeds))()
        assert library.nbytes(int64s(*sizes), given, nbytes) == 0, library.error
        assert [*nbytes] == [a.nbytes for a in want.values()]
        assert [*given] == [a.nbytes for a in feeds.values()]
        rooms = [np.full(n + 128, GUARD, np.uint8) for n in nbytes]
        room = np.full(library.workspace_nbytes(int64s(*sizes)) + 192, GUARD, np.uint8)
        begin = -room.ctypes.data % 64 + 64
        workspace = ctypes.c_void_p(room.ctypes.data + begin)
        inputs, outputs = [*feeds.values()], [r[64:] for r in rooms]
        assert library.at(handle, sizes, inputs, outputs, workspace) == 0, library.error
        for r, a in zip(rooms, want.values(), strict=True):
            assert r[64 : 64 + a.nbytes].tobytes() == a.tobytes(), (sizes, a.shape)
            assert (r[:64] == GUARD).all()
            assert (r[64 + a.nbytes :] == GUARD).all()
        assert (room[:begin] == GUARD).all()
        assert (room[begin + len(room) - 192 :] == GUARD).all()
    library.close(handle)


@pytest.mark.turns(3)
@needs("valgrind")
def test_valgrind_finds_nothing(case: tuple[str, Any, ts.Model, Exported]) -> None:
    name, model, made, files = case
    example = example_of(files)
    checks = ("--error-exitcode=3", "--leak-check=full", "--show-leak-kinds=all", "-q")
    lengths, feeds = CASES[name].lengths[1], [*CASES[name].feeds(model)][1]
    want = made(feeds)
    data = call("valgrind", *checks, example, files.weights, *lengths, given=as_bytes(feeds))
    for x, a in arrays_of(data, want).items():
        np.testing.assert_allclose(a, want[x], rtol=1e-4, atol=1e-5)


def test_sizes_that_cannot_be(tmp_path: Path) -> None:
    model = program(
        """window (float[rows, 4, width] x) => (float[rows, 4, w] y)
        {p = MaxPool <kernel_shape = [5]> (x) q = Relu(p) y = Softmax(q)}"""
    )
    made = compiled(model, {"rows": (1, 30), "width": (5, 30)})
    made._run.trusted["#width"] = (1, 30)  # as if nothing were known of windows
    files = made.export(tmp_path)
    library = LoadedOpen(files, "model")
    handle = library.handle(None)
    x = np.zeros(4096, np.float32)
    for sizes, said in (
        ((0, 9), "the size rows is 0; it is between 1 and 30"),
        ((1, 31), "the size width is 31; it is between 1 and 30"),
        ((2, 3), "has no shape at these sizes: they are too small"),
    ):
        assert library.at(handle, sizes, [x], [x]) == -1
        assert said in library.error
        assert library.nbytes(int64s(*sizes), None, None) == -1
        assert library.workspace_nbytes(int64s(*sizes)) == 0
    assert library.nbytes(int64s(2, 5), None, None) == 0
    assert library.run(handle, None, None, None, None) == -1
    assert "the list of sizes is NULL" in library.error
    library.close(handle)


def test_the_header_says_what_is_passed(tmp_path: Path) -> None:
    made = compiled(TAGGER.program(), TAGGER.sizes)
    made.save(tmp_path / "m.tsm")
    files = made.export(tmp_path / "a", "tagger", shared=False)
    text = files.header.read_text()
    assert "size 1  seq, from 1 to 40" in text
    assert "input 1  more: [batch, seq, 8] of float, 32 x batch x seq bytes." in text
    assert "output 2  total: [] of float, 4 bytes." in text
    assert "output 1  even: [batch, max(((seq + 1) div 2), 0), 10] of float" in text
    # A loaded model is the same library.
    again = ts.load_model(tmp_path / "m.tsm").export(tmp_path / "b", "tagger", shared=False)
    assert again.static is not None
    assert again.header.read_text() == text
    assert again.weights.read_bytes() == files.weights.read_bytes()


def test_handles_of_several_lengths_share_nothing(
    case: tuple[str, Any, ts.Model, Exported],
) -> None:
    """Memory of a handle grows and is used again for smaller sizes."""
    name, model, made, files = case
    library = LoadedOpen(files, "model")
    handles = [library.handle(files.weights) for _ in range(2)]
    lengths = CASES[name].lengths
    for k in (0, -1, 1, -1, 0):
        feeds = feeds_of(model, **dict(zip(CASES[name].sizes, lengths[k], strict=True)))
        want = made(feeds)
        for handle in handles:
            got = [np.empty_like(a) for a in want.values()]
            assert library.at(handle, lengths[k], [*feeds.values()], got) == 0
            assert [a.tobytes() for a in got] == [a.tobytes() for a in want.values()]
    for handle in handles:
        library.close(handle)


def begins_of(arrays: list[ArenaArray], sizes: dict[str, int]) -> list[int]:
    """Where they begin, as the library computes it."""
    begins: list[int] = []
    ends: list[int] = []
    for a in arrays:
        begins.append(max((ends[j] for j in a.below), default=0))
        ends.append(begins[-1] + -(-value_at(a.nbytes, sizes) // 64) * 64)
    return begins


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 200), st.integers(0, 9),
                  st.integers(0, 4)), min_size=1, max_size=14,
    ),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
)  # fmt: skip
def test_arrays_that_live_at_the_same_time_never_meet(
    drawn: list[tuple[int, int, int, int, int]], at: tuple[int, int], largest: tuple[int, int]
) -> None:
    n, m = var("#n"), var("#m")
    lives: dict[str, OpenLifetime] = {}
    for k, (p, q, c, first, length) in enumerate(drawn):
        nbytes: Int = n * m * p + n * q + c
        lives[f"a{k}"] = OpenLifetime(nbytes, first, first + length)
    sizes, most = {"#n": at[0], "#m": at[1]}, {"#n": largest[0], "#m": largest[1]}
    order, arrays = ordered(lives, most)
    for point in (sizes, most):
        begins = begins_of(arrays, point)
        spans = {x: (b, b + value_at(lives[x].nbytes, point))
                 for x, b in zip(order, begins, strict=True)}  # fmt: skip
        for x, (begin, end) in spans.items():
            for y, (other, behind) in spans.items():
                meets = lives[x].first <= lives[y].last and lives[y].first <= lives[x].last
                if x != y and meets and begin < end and other < behind:
                    assert end <= other or behind <= begin, (x, y)
    fixed = {x: Lifetime(value_at(t.nbytes, most), t.first, t.last) for x, t in lives.items()}
    begins = begins_of(arrays, most)
    ends = [b + -(-fixed[x].nbytes // 64) * 64 for x, b in zip(order, begins, strict=True)]
    assert max(ends) <= plan_arena(fixed).nbytes
