"""Exported models and kernels: C programs that run them compute what Python does, bit for bit."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import OTHER, PLAIN, STRICT, arrays_of, as_bytes, call, compiled, example_of, needs
from small_graphs import Numbers, assert_close, feeds_of, graph_of

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.export import model_library
from tilesmith.graph.graph import Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.runtime.export.write import Exported, write_library

HERE = ts.cpu().arch
THERE = "aarch64" if HERE == "x86-64" else "x86-64"

pytestmark = needs("cc")


def layers(b: GraphBuilder, x: Value) -> Any:
    """Kernels with threads, arrays in the arena, and outputs that no kernel writes."""
    n = Numbers()
    hidden = b.add(ts.ops.relu, b.add(ts.ops.matmul, x, b.constant(n(48, 64))))
    y = b.add(ts.ops.softmax, b.add(ts.ops.matmul, hidden, b.constant(n(64, 40))))
    part = b.add(ts.ops.slice_, y, starts=(1, 0), stops=(3, 40))
    return hidden, y, x, b.constant(n(3)), part


@pytest.fixture(scope="module")
def graph() -> ts.Graph:
    return graph_of(layers, 32, 48)


@pytest.fixture(scope="module")
def model(graph: ts.Graph) -> ts.Model:
    # for a processor that valgrind can stand in for
    return compiled(graph, ts.Target.named(PLAIN[HERE]).with_cores(2))


@pytest.fixture(scope="module")
def files(model: ts.Model, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return model.export(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_the_example_computes_what_python_does(
    graph: ts.Graph, model: ts.Model, files: Exported, static: bool
) -> None:
    feeds = feeds_of(graph)
    got = call(example_of(files, static=static), files.weights, given=as_bytes(feeds))
    assert got == as_bytes(model(feeds))


def test_the_example_is_short(files: Exported) -> None:
    code = [line for line in files.example.read_text().splitlines() if line.strip()]
    assert len(code) <= 24


def test_nothing_but_the_c_library_is_needed(files: Exported) -> None:
    """And nothing but the C functions is seen from outside."""
    shown = call("readelf", "-d", files.shared).decode()
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
    assert needed
    assert all(re.match(r"lib(c|m|pthread)\b|ld-linux", n) for n in needed), needed
    seen = call("nm", "-D", "--defined-only", files.shared).decode().split()[2::3]
    ends = ("close", "error", "open", "run", "set_threads")
    assert sorted(seen) == [f"tilesmith_model_{end}" for end in ends]


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_is_clean(files: Exported, language: str, tmp_path: Path) -> None:
    if language == "c++" and shutil.which("c++") is None:
        pytest.skip("not installed: c++")
    source = tmp_path / "twice.source"
    source.write_text('#include "model.h"\n#include "model.h"\nint main(void) { return 0; }\n')
    standard = "-std=c99" if language == "c" else "-std=c++11"
    options = [standard, *STRICT[1:], "-I", files.header.parent, "-o", tmp_path / "twice"]
    call("cc" if language == "c" else "c++", *options, "-x", language, source)


def test_the_header_says_what_is_passed(files: Exported) -> None:
    text = files.header.read_text()
    assert "input 0  x: [32, 48] of float, 6144 bytes." in text
    assert "output 4  y4: [2, 40] of float, 320 bytes." in text
    assert f"({HERE})" in text


def test_names_of_a_model_cannot_break_the_header(tmp_path: Path) -> None:
    b = GraphBuilder("*/ int x; /*\n//\\")
    total, *others = (
        b.input(n, (3,), "float32") for n in ("a*/b", "/*", "c\\\n", "??/", "//", "ü")
    )
    for v in others:
        total = b.add(ts.ops.add, total, v)
    graph = b.finish({"*/y\n": total})
    made = compiled(graph)
    files = made.export(tmp_path)
    feeds = feeds_of(graph)
    assert call(example_of(files), files.weights, given=as_bytes(feeds)) == as_bytes(made(feeds))


def test_every_dtype_is_passed_and_kept(tmp_path: Path) -> None:
    b = GraphBuilder("types")
    names = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
    n = Numbers()
    outputs = {}
    for name in names:
        x = b.input(f"x_{name}", (5,), name)
        held = b.constant(n(5).astype(ts.dtype(name).numpy))
        outputs[f"y_{name}"] = b.add(ts.ops.concatenate, x, held, x)
    graph = b.finish(outputs)
    made = compiled(graph)
    files = made.export(tmp_path)
    feeds = feeds_of(graph)
    got = call(example_of(files), files.weights, given=as_bytes(feeds))
    assert got == as_bytes(made(feeds)) == as_bytes(evaluate_graph(graph, feeds))


def test_exporting_twice_gives_the_same_files(
    model: ts.Model, files: Exported, tmp_path: Path
) -> None:
    model.export(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (files.header.parent / path.name).read_bytes(), path.name


@needs("valgrind")
def test_valgrind_finds_nothing(graph: ts.Graph, model: ts.Model, files: Exported) -> None:
    """No access outside of memory, none to memory without contents, and all of it is freed, threads
    included.
    """
    feeds = feeds_of(graph)
    program = example_of(files)
    checks = ("--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all",
              "--errors-for-leak-kinds=all", "-q")  # fmt: skip
    data = call("valgrind", *checks, program, files.weights, given=as_bytes(feeds))
    # valgrind rounds a fused multiply-add twice
    assert_close(arrays_of(data, model(feeds)), model(feeds), 1e-4)


@needs(OTHER[THERE].compiler, OTHER[THERE].emulator)
@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_for_the_other_architecture(graph: ts.Graph, static: bool, tmp_path: Path) -> None:
    tools = OTHER[THERE]
    made = compiled(graph, ts.Target.named(PLAIN[THERE]).with_cores(2))
    with pytest.raises(ts.BuildError, match="was built for"):
        made(feeds_of(graph))
    files = made.export(tmp_path)
    program = example_of(files, tools.compiler, static)
    feeds = feeds_of(graph)
    emulator = (tools.emulator, "-L", tools.libraries)
    data = call(*emulator, program, files.weights, given=as_bytes(feeds))
    want = evaluate_graph(graph, feeds)
    assert_close(arrays_of(data, want), want, 1e-4)


@needs(OTHER[THERE].compiler, OTHER[THERE].emulator)
def test_a_processor_that_lacks_features_is_refused(graph: ts.Graph, tmp_path: Path) -> None:
    name, lacking, needed = {
        "x86-64": ("haswell", "qemu64", "avx2, fma"),
        "aarch64": ("neoverse-n1", "cortex-a53", "dotprod, fp16, neon"),
    }[THERE]
    tools = OTHER[THERE]
    program = example_of(compiled(graph, ts.Target.named(name)).export(tmp_path), tools.compiler)
    emulator = (tools.emulator, "-L", tools.libraries, "-cpu", lacking)
    with pytest.raises(AssertionError, match=f"needs a processor with {needed}, and this one"):
        call(*emulator, program, tmp_path / "model.weights")


@pytest.mark.skipif(THERE != "x86-64", reason="the emulator of x86-64 has no tile registers")
@needs(OTHER[THERE].compiler, OTHER[THERE].emulator)
def test_tile_registers_are_asked_for(graph: ts.Graph, tmp_path: Path) -> None:
    """Where there are none, the answer is no, and the library says so."""
    tools = OTHER[THERE]
    (executor,) = compiled(graph, ts.Target.named("x86-64")).executors
    library = model_library("g", executor, "model")
    with_tiles = [replace(a, source=f"{a.source}; @llvm.x86.tilezero") for a in library.artifacts]
    files = write_library(replace(library, artifacts=tuple(with_tiles)), tmp_path)
    emulator = (tools.emulator, "-L", tools.libraries)
    with pytest.raises(AssertionError, match="needs a processor with amx, and this one"):
        call(*emulator, example_of(files, tools.compiler), files.weights)


@needs("cmake")
def test_cmake_finds_the_library(
    graph: ts.Graph, model: ts.Model, files: Exported, tmp_path: Path
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(app C)\n"
        f"include({files.cmake})\n"
        f"add_executable(one {files.example})\ntarget_link_libraries(one tilesmith_model)\n"
        f"add_executable(two {files.example})\ntarget_link_libraries(two tilesmith_model_static)\n"
    )
    call("cmake", "-S", tmp_path, "-B", tmp_path / "build")
    call("cmake", "--build", tmp_path / "build")
    feeds = feeds_of(graph)
    for program in ("one", "two"):
        got = call(tmp_path / "build" / program, files.weights, given=as_bytes(feeds))
        assert got == as_bytes(model(feeds))


def test_a_model_as_users_compile_it(graph: ts.Graph, tmp_path: Path) -> None:
    """With schedules that pack weights."""
    made = ts.compile_model(graph, cache=None)
    files = made.export(tmp_path)
    feeds = feeds_of(graph)
    assert call(example_of(files), files.weights, given=as_bytes(feeds)) == as_bytes(made(feeds))


def matmul() -> ts.Function:
    A, B = ts.placeholder((24, 32), name="A"), ts.placeholder((32, 40), name="B")
    return ts.function([A, B, ts.ops.matmul(A, B)], name="matmul")


def test_a_kernel(tmp_path: Path) -> None:
    n = Numbers()
    a, b = n(24, 32), n(32, 40)
    sch = ts.Schedule(matmul())
    sch.parallel(sch.loops(sch.blocks[-1])[0])
    kernel = ts.build(sch, ts.cpu().with_cores(2))
    files = kernel.export(tmp_path)
    assert files.header.name == "matmul.h"
    assert call(example_of(files), files.weights, given=as_bytes([a, b])) == kernel(a, b).tobytes()


def test_a_kernel_with_packed_weights(tmp_path: Path) -> None:
    n = Numbers()
    a, b = n(24, 32), n(32, 40)
    sch = ts.Schedule(matmul())
    sch.transform_layout("B", lambda i, j: (j // 8, i, j % 8))
    kernel = ts.build(sch, ts.cpu(1))
    files = kernel.export(tmp_path, name="dense", weights={"B": b})
    got = call(example_of(files), files.weights, given=as_bytes([a]))
    assert got == kernel(a, kernel.pack("B", b)).tobytes()
    np.testing.assert_allclose(
        np.frombuffer(got, "f4").reshape(24, 40), a @ b, rtol=1e-4, atol=1e-4
    )
    packed = kernel.export(tmp_path, name="packed")
    assert "B: [5, 32, 8] of float, 5120 bytes. Packed as kernel.pack does" in (
        packed.header.read_text()
    )
