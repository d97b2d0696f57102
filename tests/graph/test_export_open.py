"""Exported kernels with open sizes: C programs that pass sizes compute what Python does, bit for
bit, and choose the kernel that Python chooses.
"""

from __future__ import annotations

import ctypes
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import PLAIN, STRICT, Loaded, as_bytes, call, example_of, needs, pointers
from hypothesis import given, settings
from hypothesis import strategies as st

import tilesmith as ts
from tilesmith.runtime.build import build
from tilesmith.runtime.dispatch import Branch, Region, choice_of, leaves, member_of
from tilesmith.runtime.export.write import Exported
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel

pytestmark = needs("cc")
TARGET = ts.Target.named(PLAIN[ts.cpu().arch]).with_cores(2)
M, N = ts.size("m", range=(2, 64)), ts.size("n")


def weighted() -> ts.Function:
    A, B = ts.placeholder((M, 24), name="A"), ts.placeholder((24, 40), name="B")
    return ts.function([A, B, ts.ops.relu(ts.ops.matmul(A, B))], name="weighted", constants=[B])


def two_sizes() -> ts.Function:
    A, B = ts.placeholder((M, N), name="A"), ts.placeholder((N, 8), name="B")
    return ts.function([A, B, ts.ops.softmax(ts.ops.matmul(A, B))], name="two_sizes")


def member(func: ts.Function, tile: int) -> OpenKernel:
    """A kernel that adds up in an order of its own, in threads and with a workspace."""
    sch = ts.Schedule(func)
    block = sch.blocks[0]
    i, *_, k = sch.loops(block)
    sch.parallel(sch.split(i, [None, tile])[0])
    sch.split(k, [None, tile])
    kernel = build(sch.func, TARGET)
    assert isinstance(kernel, OpenKernel)
    return kernel


class LoadedOpen(Loaded):
    """A library whose functions take sizes."""

    def __init__(self, files: Exported, name: str) -> None:
        super().__init__(files, name)
        library = ctypes.CDLL(str(files.shared))
        self.nbytes = getattr(library, f"tilesmith_{name}_nbytes")
        self.nbytes.argtypes = [ctypes.c_void_p] * 3
        self.workspace_nbytes = getattr(library, f"tilesmith_{name}_workspace_nbytes")
        self.workspace_nbytes.argtypes = [ctypes.c_void_p]
        self.workspace_nbytes.restype = ctypes.c_size_t
        self.run.argtypes = [ctypes.c_void_p] * 5

    def at(self, handle: int, sizes: Any, inputs: Any, outputs: Any, workspace: Any = None) -> int:
        status: int = self.run(
            handle, int64s(*sizes), pointers(inputs), pointers(outputs), workspace
        )
        return status


def int64s(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def arrays(func: ts.Function, seed: int, **sizes: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    fixed = ts.instantiate(func, sizes)
    return [
        rng.standard_normal([int(str(e)) for e in b.shape]).astype(np.float32) for b in fixed.inputs
    ]


@pytest.fixture(scope="module")
def kernel() -> PortfolioKernel:
    members = [member(two_sizes(), t) for t in (4, 8, 16)]
    points = ((1, 1), (1, 64), (16, 1), (16, 64))
    regions = [Region((("m", m), ("n", n)), k % 3) for k, (m, n) in enumerate(points)]
    return PortfolioKernel(members, regions, {"m": (2, 64), "n": (1, 1024)})


@pytest.fixture(scope="module")
def files(kernel: PortfolioKernel, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return kernel.export(tmp_path_factory.mktemp("kernel"))


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_the_example_takes_sizes(kernel: PortfolioKernel, files: Exported, static: bool) -> None:
    program = example_of(files, static=static)
    for m, n in ((0, 3), (1, 1), (2, 900), (17, 5), (33, 64), (65, 2)):
        feeds = arrays(two_sizes(), m + n, m=m, n=n)
        got = call(program, files.weights, m, n, given=as_bytes(feeds))
        assert got == kernel(*feeds).tobytes(), (m, n)


def test_c_chooses_as_python_does(kernel: PortfolioKernel, files: Exported) -> None:
    """Members add up in different orders, so that bits tell which one ran."""
    library = LoadedOpen(files, "two_sizes")
    handle = library.handle(None)
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        m, n = int(rng.integers(0, 70)), int(rng.integers(1, 200))
        feeds = arrays(two_sizes(), m, m=m, n=n)
        got = np.full((m, 8), np.nan, np.float32)
        assert library.at(handle, (m, n), feeds, [got]) == 0, library.error
        number = kernel.member_for({"m": m, "n": n})
        seen.add(number)
        np.testing.assert_array_equal(got, kernel.members[number](*feeds))
    assert seen == {0, 1, 2}
    library.close(handle)


def test_the_workspace_is_the_callers_or_grows(files: Exported) -> None:
    library = LoadedOpen(files, "two_sizes")
    needs_now = [library.workspace_nbytes(int64s(m, 8)) for m in (1, 10, 50_000)]
    assert needs_now == sorted(needs_now)
    assert needs_now[-1] >= 50_000 * 8 * 4
    handle = library.handle(None)
    for m in (1, 50_000, 3):
        feeds = arrays(two_sizes(), m, m=m, n=8)
        own, given_ = np.empty((m, 8), np.float32), np.empty((m, 8), np.float32)
        room = np.empty(library.workspace_nbytes(int64s(m, 8)) + 64, np.uint8)
        start = -(-room.ctypes.data // 64) * 64
        assert library.at(handle, (m, 8), feeds, [own]) == 0
        assert library.at(handle, (m, 8), feeds, [given_], start) == 0
        np.testing.assert_array_equal(own, given_)
    assert library.at(handle, (1, 8), feeds, [own], 65) == -1
    assert "no multiple of 64" in library.error
    library.close(handle)


def test_sizes_that_cannot_be(files: Exported, tmp_path: Path) -> None:
    library = LoadedOpen(files, "two_sizes")
    handle = library.handle(None)
    x = np.zeros(64, np.float32)
    for sizes, said in (
        ((-1, 3), "the size m is -1; it is between 0 and"),
        ((3, 1 << 62), "the size n is 4611686018427387904"),
        ((1 << 40, 1 << 40), "A has no shape at these sizes"),
    ):
        assert library.at(handle, sizes, [x, x], [x]) == -1
        assert said in library.error
        assert library.nbytes(int64s(*sizes), None, None) == -1
        assert library.workspace_nbytes(int64s(*sizes)) == 0
    assert library.run(handle, None, pointers([x, x]), pointers([x]), None) == -1
    assert "the list of sizes is NULL" in library.error
    assert library.run(handle, int64s(1, 1), None, pointers([x]), None) == -1
    assert "the list of inputs is NULL" in library.error
    library.close(handle)
    X, W = ts.placeholder((1, 2, M, 9), name="X"), ts.placeholder((4, 2, 3, 3), name="W")
    func = ts.function([X, W, ts.ops.conv2d(X, W)], name="valid")
    small = LoadedOpen(build(func, TARGET).export(tmp_path), "valid")
    assert small.nbytes(int64s(1), None, None) == -1
    assert "has no shape at these sizes: they are too small" in small.error
    nbytes = (ctypes.c_size_t * 1)()
    assert small.nbytes(int64s(5), None, nbytes) == 0
    assert list(nbytes) == [4 * 3 * 7 * 4]


def test_weights_are_kept_and_the_header_says_what_is_passed(tmp_path: Path) -> None:
    kernel = ts.build(weighted(), TARGET)
    a, b = arrays(weighted(), 1, m=19)
    files = kernel.export(tmp_path, "dense", weights={"B": b})
    text = files.header.read_text()
    assert "size 0  m" in text
    assert "input 0  A: [m, 24] of float, 96 x m bytes." in text
    assert "int tilesmith_dense_run(tilesmith_dense *, const int64_t *sizes," in text
    got = call(example_of(files), files.weights, 19, given=a.tobytes())
    assert got == kernel(a, kernel.pack("B", b)).tobytes()
    with pytest.raises(ts.ArgumentError, match="A of 'weighted' has open sizes, so weights="):
        kernel.export(tmp_path, "dense", weights={"A": a})


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_is_clean(files: Exported, language: str, tmp_path: Path) -> None:
    if language == "c++" and shutil.which("c++") is None:
        pytest.skip("not installed: c++")
    source = tmp_path / "twice.source"
    source.write_text(
        '#include "two_sizes.h"\n#include "two_sizes.h"\nint main(void) { return 0; }\n'
    )
    standard = "-std=c99" if language == "c" else "-std=c++11"
    options = [standard, *STRICT[1:], "-I", files.header.parent, "-o", tmp_path / "twice"]
    call("cc" if language == "c" else "c++", *options, "-x", language, source)


def test_nothing_else_is_seen_from_outside(files: Exported) -> None:
    seen = call("nm", "-D", "--defined-only", files.shared).decode().split()[2::3]
    ends = ("close", "error", "nbytes", "open", "run", "set_threads", "workspace_nbytes")
    assert sorted(seen) == [f"tilesmith_two_sizes_{end}" for end in ends]


@needs("valgrind")
def test_valgrind_finds_nothing(kernel: PortfolioKernel, files: Exported) -> None:
    program = example_of(files)
    checks = ("--error-exitcode=3", "--leak-check=full", "--show-leak-kinds=all", "-q")
    for m, n in ((1, 1), (7, 33), (300, 9)):
        feeds = arrays(two_sizes(), m + n, m=m, n=n)
        data = call("valgrind", *checks, program, files.weights, m, n, given=as_bytes(feeds))
        got = np.frombuffer(data, np.float32).reshape(m, 8)
        np.testing.assert_allclose(got, kernel(*feeds), rtol=1e-5)


# The tree of comparisons.
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(1, 300), min_size=1, max_size=5, unique=True),
    st.integers(1, 4), st.integers(0, 2**32), st.data(),
)  # fmt: skip
def test_the_tree_takes_the_nearest_sample_of_a_grid(first, second, kinds, seed, data):
    rng = np.random.default_rng(seed)
    regions = [
        Region((("m", m), ("n", n)), int(rng.integers(0, kinds))) for m in first for n in second
    ]
    limits = {"m": (1, 200), "n": (2, 300)}
    choice = choice_of(regions, limits)
    m, n = data.draw(st.integers(0, 400)), data.draw(st.integers(0, 400))
    found = member_of(choice, {"m": m, "n": n})
    if not 1 <= m <= 200 or not 2 <= n <= 300:
        assert found == 0
        return

    def distance(r: Region) -> float:
        return sum(abs(math.log({"m": m, "n": n}[name] / v)) for name, v in r.sizes)

    least = min(map(distance, regions))
    assert found in {r.member for r in regions if distance(r) <= least + 1e-9}


def test_a_tree_is_small():
    regions = [Region((("n", 1 << k),), int(k > 4)) for k in range(10)]
    choice = choice_of(regions, {"n": (1, 512)})
    assert list(leaves(choice)) == [0, 1, 0]
    assert choice == Branch("n", 513, Branch("n", 23, 0, 1), 0)
    assert choice_of(regions[:4], {"n": (1, 8)}) == 0
    assert choice_of([], {}) == 0
