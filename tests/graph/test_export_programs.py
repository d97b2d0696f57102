"""Exported libraries inside of other programs: several models, handles, threads, forks; and what
they say when something is wrong.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import Loaded, as_bytes, call, compiled, needs
from small_graphs import Numbers, feeds_of, graph_of

import tilesmith as ts
from tilesmith.cli.main import app
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.runtime.export.weights import HEADER_NBYTES
from tilesmith.runtime.export.write import Exported

pytestmark = needs("cc")

# Both models have the first layer, so both libraries have its kernel. Threads open handles of both,
# in turns with the others; then a child does the same.
_PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "one.h"
#include "two.h"

static const size_t in[] = TILESMITH_ONE_INPUT_NBYTES;
static const size_t one_out[] = TILESMITH_ONE_OUTPUT_NBYTES;
static const size_t two_out[] = TILESMITH_TWO_OUTPUT_NBYTES;
static _Alignas(64) char x[1 << 16], want_one[1 << 16], want_two[1 << 16];

static void *work(void *unused) {
  static _Thread_local _Alignas(64) char got[1 << 16];
  const void *inputs[] = {x};
  void *outputs[] = {got};
  (void)unused;
  for (int round = 0; round < 20; round++) {
    tilesmith_one *one = tilesmith_one_open("one.weights");
    tilesmith_two *two = tilesmith_two_open("two.weights");
    if (!one || !two) return "a handle";
    for (int k = 0; k < 5; k++) {
      if (tilesmith_one_run(one, inputs, outputs)) return "one failed";
      if (memcmp(got, want_one, one_out[0])) return "one is wrong";
      if (tilesmith_two_run(two, inputs, outputs)) return "two failed";
      if (memcmp(got, want_two, two_out[0])) return "two is wrong";
    }
    tilesmith_one_close(one);
    tilesmith_two_close(two);
  }
  return NULL;
}

static int all(void) {
  pthread_t threads[4];
  int status = 0;
  for (int k = 0; k < 4; k++) if (pthread_create(&threads[k], NULL, work, NULL)) return 2;
  for (int k = 0; k < 4; k++) {
    void *why;
    pthread_join(threads[k], &why);
    if (why) status = fprintf(stderr, "%s: %s\\n", (char *)why, tilesmith_one_error()) > 0;
  }
  return status;
}

int main(void) {
  if (fread(x, 1, in[0], stdin) != in[0]) return 3;
  if (fread(want_one, 1, one_out[0], stdin) != one_out[0]) return 3;
  if (fread(want_two, 1, two_out[0], stdin) != two_out[0]) return 3;
  tilesmith_one *kept = tilesmith_one_open("one.weights");
  if (!kept || all()) return 4;
  pid_t child = fork();
  if (child == 0) _exit(all());
  int status;
  waitpid(child, &status, 0);
  tilesmith_one_close(kept);
  return status ? 5 : all();
}
"""

_UNLOADED = """
#include <dlfcn.h>
#include <unistd.h>
#include "model.h"
int main(int argc, char **argv) {
  static _Alignas(64) char x[1 << 16], y[1 << 16];
  const void *inputs[] = {x};
  void *outputs[] = {y}, *library = dlopen(argv[1], RTLD_NOW);
  tilesmith_model *(*open)(const char *) = (tilesmith_model * (*)(const char *))
      dlsym(library, "tilesmith_model_open");
  int (*run)(tilesmith_model *, const void *const *, void *const *) =
      (int (*)(tilesmith_model *, const void *const *, void *const *))
      dlsym(library, "tilesmith_model_run");
  if (argc != 3 || run(open(argv[2]), inputs, outputs)) return 1;
  dlclose(library);
  usleep(20000); /* workers that are still there would go on in memory that is gone */
  return 0;
}
"""


def first(b: GraphBuilder, x: Value) -> Value:
    return b.add(ts.ops.relu, b.add(ts.ops.matmul, x, b.constant(Numbers()(48, 64))))


def second(b: GraphBuilder, x: Value) -> Any:
    return b.add(ts.ops.matmul, first(b, x), b.constant(Numbers(1)(64, 24)))


@pytest.fixture(scope="module")
def graph() -> ts.Graph:
    return graph_of(first, 32, 48)


@pytest.fixture(scope="module")
def model(graph: ts.Graph) -> ts.Model:
    return compiled(graph, ts.cpu().with_cores(2))


@pytest.fixture(scope="module")
def files(model: ts.Model, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return model.export(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_two_models_in_one_program(
    graph: ts.Graph, model: ts.Model, static: bool, tmp_path: Path
) -> None:
    other = compiled(graph_of(second, 32, 48), ts.cpu().with_cores(2))
    one, two = model.export(tmp_path, "one"), other.export(tmp_path, "two")
    assert {k.artifact.symbol for k in model.executors[0].kernels} < {
        k.artifact.symbol for k in other.executors[0].kernels
    }
    (tmp_path / "program.c").write_text(_PROGRAM)
    linked = [one.static, two.static] if static else [one.shared, two.shared, "-Wl,-rpath,."]
    program = tmp_path / "program"
    call("cc", "-std=gnu11", "-I", tmp_path, tmp_path / "program.c", *linked, "-lm", "-pthread",
         "-o", program)  # fmt: skip
    feeds = feeds_of(graph)
    given = as_bytes(feeds) + as_bytes(model(feeds)) + as_bytes(other(feeds))
    call(program, given=given, cwd=tmp_path)


def test_unloading_does_no_harm(files: Exported, tmp_path: Path) -> None:
    """Also if a handle was never closed."""
    (tmp_path / "program.c").write_text(_UNLOADED)
    program = tmp_path / "program"
    call("cc", "-std=gnu11", "-I", files.header.parent, tmp_path / "program.c", "-o", program)
    call(program, files.shared, files.weights)


def test_handles_and_threads(graph: ts.Graph, model: ts.Model, files: Exported) -> None:
    library = Loaded(files)
    feeds = [feeds_of(graph, seed) for seed in range(6)]
    wanted = [model(f)["y"] for f in feeds]
    handles = [library.handle(files.weights) for _ in feeds]

    def work(k: int) -> None:
        got = np.empty_like(wanted[k])
        for _ in range(50):
            assert library(handles[k], [feeds[k]["x"]], [got]) == 0, library.error
            np.testing.assert_array_equal(got, wanted[k])

    for most in (0, 1, 5, -1):
        library.set_threads(most)
        with ThreadPoolExecutor(len(feeds)) as pool:
            list(pool.map(work, range(len(feeds))))
    for h in handles:
        library.close(h)
    library.close(None)


@pytest.mark.skipif(ts.cpu().num_cores < 2, reason="a library starts no more threads than cores")
def test_workers_live_as_long_as_handles(graph: ts.Graph, files: Exported) -> None:
    library = Loaded(files)
    x, y = feeds_of(graph)["x"], np.empty((32, 64), np.float32)
    before = set(os.listdir("/proc/self/task"))  # others may end meanwhile

    def started() -> int:
        return len(set(os.listdir("/proc/self/task")) - before)

    one, two = library.handle(files.weights), library.handle(files.weights)
    for most, workers in ((1, 0), (0, 1)):
        library.set_threads(most)
        assert library(one, [x], [y]) == library(two, [x], [y]) == 0
        assert started() == workers
    library.close(one)
    assert started() == 1
    library.close(two)
    end = time.monotonic() + 120  # the system lists a thread for a moment after its end
    while started() and time.monotonic() < end:
        time.sleep(0.001)
    assert started() == 0


def test_exporting_again_leaves_open_handles_alone(
    graph: ts.Graph, model: ts.Model, tmp_path: Path
) -> None:
    files = model.export(tmp_path)
    library = Loaded(files)
    handle = library.handle(files.weights)
    compiled(graph_of(second, 32, 48)).export(tmp_path)
    feeds = feeds_of(graph)
    want = model(feeds)["y"]
    got = np.empty_like(want)
    assert library(handle, [feeds["x"]], [got]) == 0
    np.testing.assert_array_equal(got, want)
    library.close(handle)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def damaged(path: Path, change: Any) -> Path:
    data = bytearray(path.read_bytes())
    changed = change(data)
    out = path.parent / "damaged.weights"
    out.write_bytes(data if changed is None else changed)
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"", "damaged.weights has 0 bytes, less than the header"),
        (lambda d: d[: HEADER_NBYTES - 1], "less than the header"),
        (lambda d: d[:-1], "it was not copied as a whole"),
        (lambda d: d + bytes(64), "it was not copied as a whole"),
        (lambda d: d[:HEADER_NBYTES], "it was not copied as a whole"),
        (lambda d: b"x" + d[1:], "is not a weights file of tilesmith"),
        (lambda d: d.__setitem__(8, 2), "has version 2 of the format, and this library reads 1"),
        (lambda d: d.__setitem__(20, d[20] ^ 1), "belongs to another library"),
        (lambda d: d.__setitem__(-1, d[-1] ^ 128), "its checksum is wrong"),
        (lambda d: d.__setitem__(HEADER_NBYTES, d[HEADER_NBYTES] ^ 1), "its checksum is wrong"),
        (lambda d: d[:200] + d[208:216] + d[200:208] + d[216:], "its checksum is wrong"),
    ],
)
def test_weights_that_cannot_be_used(files: Exported, change: Any, message: str) -> None:
    library = Loaded(files)
    assert library.open(str(damaged(files.weights, change)).encode()) is None
    assert message in library.error


def test_weights_that_are_not_there(files: Exported) -> None:
    library = Loaded(files)
    assert library.open(b"/nowhere/model.weights") is None
    assert library.error == (
        "cannot open the weights file /nowhere/model.weights: No such file or directory"
    )
    assert library.open(str(files.weights.parent).encode()) is None
    assert str(files.weights.parent) in library.error
    assert library.open(None) is None
    assert "the path of the weights is NULL" in library.error
    assert library.open(b"/" + b"x" * 5000) is None
    assert library.error.startswith("cannot open the weights file /xxx")


def test_weights_of_another_model(files: Exported, tmp_path: Path) -> None:
    other = compiled(graph_of(second, 32, 48), ts.cpu().with_cores(2)).export(tmp_path)
    library = Loaded(files)
    assert library.open(str(other.weights).encode()) is None
    assert "belongs to another library" in library.error


def test_new_weights_fit_the_old_library(graph: ts.Graph, files: Exported, tmp_path: Path) -> None:
    """What a library belongs to is the computation, so a model that was trained on may send its
    weights only.
    """

    def trained(b: GraphBuilder, x: Value) -> Value:
        return b.add(ts.ops.relu, b.add(ts.ops.matmul, x, b.constant(Numbers(7)(48, 64))))

    other = compiled(graph_of(trained, 32, 48), ts.cpu().with_cores(2))
    weights = other.export(tmp_path).weights
    library = Loaded(files)
    feeds = feeds_of(graph)
    want = other(feeds)["y"]
    got = np.empty_like(want)
    handle = library.handle(weights)
    assert library(handle, [feeds["x"]], [got]) == 0
    np.testing.assert_array_equal(got, want)
    library.close(handle)


def test_arguments_that_cannot_be_used(graph: ts.Graph, files: Exported) -> None:
    library = Loaded(files)
    x = feeds_of(graph)["x"]
    y = np.empty((32, 64), np.float32)
    handle = library.handle(files.weights)
    null: Any = (ctypes.c_void_p * 1)()
    good = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    for inputs, outputs, message in (
        (None, good[1], "the list of inputs is NULL"),
        (good[0], None, "the list of outputs is NULL"),
        (null, good[1], "input 0 is NULL"),
        (good[0], null, "output 0 is NULL"),
        ((ctypes.c_void_p * 1)(x.ctypes.data + 2), good[1], "input 0 is at an address that is no"),
    ):
        assert library.run(handle, inputs, outputs) == -1
        assert message in library.error
    assert library.run(None, *good) == -1
    assert "the model is NULL" in library.error
    busy = ctypes.c_int32.from_address(handle + 16)
    busy.value = 1  # as while another thread is inside
    assert library.run(handle, *good) == -1
    assert "runs in another thread" in library.error
    busy.value = 0
    assert library.run(handle, *good) == 0
    library.close(handle)


def test_errors_belong_to_threads(files: Exported) -> None:
    library = Loaded(files)
    assert library.open(b"mine") is None

    def elsewhere() -> tuple[str, str]:
        before = library.error
        assert library.open(b"theirs") is None
        return before, library.error

    with ThreadPoolExecutor(1) as pool:
        before, after = pool.submit(elsewhere).result()
    assert before == ""
    assert "theirs" in after
    assert "mine" in library.error


def test_a_library_without_weights_needs_no_file(tmp_path: Path) -> None:
    graph = graph_of(lambda b, x: b.add(ts.ops.relu, x), 5)
    made = compiled(graph)
    files = made.export(tmp_path, "relu")
    assert "the path may also be NULL" in files.header.read_text()
    library = Loaded(files, name="relu")
    x = feeds_of(graph)["x"]
    for path in (None, files.weights):
        got = np.empty(5, np.float32)
        handle = library.handle(path)
        assert library(handle, [x], [got]) == 0
        np.testing.assert_array_equal(got, np.maximum(x, 0))
        library.close(handle)


def test_a_model_without_kernels(tmp_path: Path) -> None:
    files = compiled(graph_of(lambda b, x: x, 3)).export(tmp_path)
    library = Loaded(files)
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    handle = library.handle(files.weights)
    assert library(handle, [x], [y]) == 0
    np.testing.assert_array_equal(x, y)
    library.close(handle)


def test_a_static_library_needs_no_compiler(
    model: ts.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ts.BuildError, match=r"there is no cc or gcc or clang here.*shared=False"):
        model.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    files = model.export(tmp_path / "out", shared=False)
    assert files.shared is None
    assert not list((tmp_path / "out").glob("*.so"))
    with pytest.raises(ts.BuildError, match="no my-gcc -O2 here"):
        model.export(tmp_path, compiler="my-gcc -O2")


def test_a_compiler_that_fails_is_quoted(model: ts.Model, tmp_path: Path) -> None:
    with pytest.raises(ts.BuildError, match=r"cannot link libmodel.so.*no-such-option"):
        model.export(tmp_path, compiler=f"{shutil.which('cc')} --no-such-option")


@pytest.mark.parametrize("name", ["", "my-model", "2nd", "a b", "größe", "../x"])
def test_names_that_c_does_not_have(model: ts.Model, name: str, tmp_path: Path) -> None:
    with pytest.raises(ts.ArgumentError, match="cannot be part of the names of C functions"):
        model.export(tmp_path, name)


def test_folders_that_cannot_be(model: ts.Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ts.ArgumentError, match="file cannot be written"):
        model.export(tmp_path / "file", shared=False)
    if os.getuid() != 0:
        (tmp_path / "shut").mkdir(mode=0o500)
        with pytest.raises(ts.ArgumentError, match="cannot be written"):
            model.export(tmp_path / "shut", shared=False)


def test_kernels_that_cannot_be_exported(tmp_path: Path) -> None:
    X = ts.placeholder((4,), name="X")
    func = ts.function([X, ts.compute((4,), lambda i: X[i] + 1, name="Y")])
    kernel = ts.build(func, ts.cpu(1))
    with pytest.raises(ts.ArgumentError, match="no input 'W' to take weights for; it has X"):
        kernel.export(tmp_path, "k", weights={"W": np.ones(4, np.float32)})
    with pytest.raises(ts.ArgumentError, match=r"got float32\[5\]"):
        kernel.export(tmp_path, "k", weights={"X": np.ones(5, np.float32)})
    ids = ts.placeholder((3,), "int64", name="ids")
    checked = ts.function([X, ids, ts.compute((3,), lambda i: X[ids[i]], name="Y")])
    with pytest.raises(ts.BuildError, match="checked=True"):
        ts.build(checked, ts.cpu(1), checked=True).export(tmp_path, "k")


def test_models_that_run_in_stages(tmp_path: Path) -> None:
    parse = pytest.importorskip("onnx.parser").parse_model
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    for text, message in (
        ("g (float[n, 4] x) => (float[n, 4] y) {y = Relu(x)}", r"sizes of x: float32\[n, 4\] are"),
        ("g (float[4] x) => (int64[1, m] y) {y = NonZero(x)}", "its node NonZero '.*' runs"),
        ("g (float[4] x, int64[1] s) => (float[m] y) {y = Reshape(x, s)}", "contents of s decide"),
    ):  # fmt: skip
        made = ts.compile_model(ts.load_onnx(parse(f"{head} {text}")), sizes="each", cache=None)
        with pytest.raises(ts.GraphError, match=message):
            made.export(tmp_path)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    text = "g (float[n, 4] x) => (float[n, 4] y) {y = Relu(x)}"
    text = f'<ir_version: 8, opset_import: ["" : 17]> {text}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "relu.onnx")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as left:
            app(["export", "relu.onnx", *words])
        said = capsys.readouterr()
        return left.value.code, said.out + said.err

    status, said = run(
        "-o", "out", "--name", "net", "--dim", "n=2", "--target", "haswell", "--static"
    )
    assert status == 0, said
    assert "out/libnet.a" in said
    assert "1 kernels by" in said
    assert "(x86-64)" in (tmp_path / "out" / "net.h").read_text()
    status, said = run("-o", "out", "--dim", "n=2")
    assert status == 0, said
    assert (tmp_path / "out" / "libmodel.so").exists()
    status, said = run("-o", "out")
    assert status == 2
    assert "--dim" in said
    status, said = run("-o", "out", "--target", "neoverse")
    assert status == 2
    assert "neoverse-n1" in said
