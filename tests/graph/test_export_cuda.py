"""Exported libraries for NVIDIA GPUs. What they launch, with which arguments and on which memory,
is right on a pretended driver; bench/gpu_export.py runs them on a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import as_bytes, call, needs
from small_graphs import Numbers, feeds_of, graph_of

import tilesmith as ts
from tilesmith.codegen.c.nvrtc import parted
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.device_executor import DeviceExecutor
from tilesmith.graph.graph import Value
from tilesmith.graph.model import Model
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.runtime.build import build
from tilesmith.runtime.export.write import Exported
from tilesmith.tune.build_request import plain_schedule
from tilesmith.tune.compile_model import plan_of

pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
pytestmark = needs("cc")

H200 = ts.Target.named("nvidia-h200")
STRICT = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1")
DIMS = "5,7,3;2,3,4"


def network(b: GraphBuilder, x: Value) -> Any:
    """Two products, of which the second reads from byte 12 of the first; and copies."""
    n = Numbers()
    y = b.add(ts.ops.matmul, x, b.constant(n(7, 3)))
    part = b.add(ts.ops.slice_, y, starts=(1, 0), stops=(3, 3))
    z = b.add(ts.ops.matmul, part, b.constant(n(3, 4)))
    return z, part, x, b.constant(n(3))


@pytest.fixture(scope="module")
def graph() -> ts.Graph:
    return graph_of(network, 5, 7)


@pytest.fixture(scope="module")
def model(graph: ts.Graph) -> Model:
    """With one thread for each element."""

    def compile_graph(one: ts.Graph) -> DeviceExecutor:
        made = plan_of(one, H200)
        kernels = [build(plain_schedule(s.stored, H200), H200) for s in made.steps]
        return DeviceExecutor(made, kernels, H200)

    return Model(graph, compile_graph)


@pytest.fixture(scope="module")
def files(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return model.export(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_driver.c")
    call("cc", "-shared", "-fPIC", "-Wall", source, "-o", folder / "libcuda.so.1")
    return folder


@pytest.fixture(scope="module")
def example(files: Exported) -> Path:
    folder = files.header.parent
    call("cc", *STRICT, "-I", folder, files.example, files.shared, "-Wl,-rpath,$ORIGIN", "-o",
         folder / "example")  # fmt: skip
    return folder / "example"


def run(
    example: Path, driver: Path | None, given: bytes, *words: Any, **variables: Any
) -> subprocess.CompletedProcess[bytes]:
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    env |= {k: str(v) for k, v in variables.items()}
    if driver is not None:
        env["LD_LIBRARY_PATH"] = str(driver)
    return subprocess.run(
        [example, *map(str, words)], input=given, capture_output=True, env=env, timeout=600
    )


def launches(log: Path) -> list[tuple[Any, ...]]:
    """Each as its symbol, blocks, threads, bytes of shared memory, and whether it overlaps."""
    words = [line.split() for line in log.read_text().splitlines()]
    return [(w[0], *map(int, w[1:])) for w in words if w[0] not in ("map", "released,")]


def test_a_model_computes_what_the_oracle_does(
    graph: ts.Graph, files: Exported, example: Path, driver: Path, tmp_path: Path
) -> None:
    feeds = feeds_of(graph)
    log = tmp_path / "log"
    done = run(example, driver, as_bytes(feeds), files.weights, FAKE_DIMS=DIMS, FAKE_LOG=log)
    assert done.returncode == 0, done.stderr
    want = evaluate_graph(graph, feeds)
    at = 0
    for name, a in want.items():
        got = np.frombuffer(done.stdout[at : at + a.nbytes], a.dtype).reshape(a.shape)
        np.testing.assert_allclose(got, a, rtol=1e-5, atol=1e-6, err_msg=name)
        at += a.nbytes
    assert at == len(done.stdout)
    assert "released, 0 bytes are left, 0 contexts" in log.read_text()


def test_launches_are_those_of_the_kernels(
    model: Model, files: Exported, example: Path, driver: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    run(example, driver, b"", files.weights, FAKE_DIMS=DIMS, FAKE_LOG=log)
    wanted = [
        (x.symbol, x.grid, x.threads, x.shared_nbytes, int(x.overlaps))
        for k in model.executors[0].kernels
        for x in k.artifact.entries[0].launches
    ]
    assert launches(log) == wanted


def test_cubins_are_inside(model: Model, files: Exported) -> None:
    assert files.source is not None
    text = files.source.read_text()
    found = []
    for words in re.findall(r"code\d+\[\] = \{(.*?)\};", text, re.DOTALL):
        numbers = [int(w, 16) for w in re.findall(r"0x([0-9a-f]+)u", words)]
        found.append(np.array(numbers, "<u8").tobytes())
    cubins = {c for k in model.executors[0].kernels for c in parted(k.artifact.code)}
    assert len(found) == len(cubins)
    assert {c.ljust(-(-len(c) // 8) * 8, b"\0") for c in cubins} == set(found)


def test_the_header_is_that_of_libraries_for_cpus(files: Exported, graph: ts.Graph) -> None:
    def declared(text: str) -> list[str]:
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        return [line for line in code.splitlines() if line.strip()]

    cpu = ts.compile_model(graph, ts.cpu(1), cache=None)
    other = cpu.export(files.header.parent / "cpu", shared=False)
    assert declared(files.header.read_text()) == declared(other.header.read_text())
    assert "in the memory of the host or of the GPU" in files.header.read_text()


def test_sources_alone_need_no_compiler(model: Model, tmp_path: Path) -> None:
    files = model.export(tmp_path, name="net", shared=False, compiler="none")
    assert (files.shared, files.static) == (None, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "example.c", "net.c", "net.cmake", "net.h", "net.weights",
    ]  # fmt: skip
    call("cc", *STRICT, "-c", "net.c", "-o", "net.o", cwd=tmp_path)
    assert files.source is not None
    call("cc", "-I.", "example.c", "net.c", "-ldl", "-pthread", "-o", "net", cwd=tmp_path)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"FAKE_GPUS": 0}, "sees no GPU"),
        ({"FAKE_MAJOR": 8, "FAKE_MINOR": 6}, "compute capability 9.0, and Fake 7 has 8.6"),
        ({"FAKE_MINOR": 1}, "compute capability 9.0, and Fake 7 has 9.1"),
        ({"FAKE_FAIL": "cuInit"}, "FAKE_ERROR (as wanted) from init"),
        ({"FAKE_FAIL": "cuMemAlloc_v2"}, "FAKE_ERROR (as wanted) from allocate"),
        ({"FAKE_FAIL": "cuModuleLoadData"}, "FAKE_ERROR (as wanted) from load"),
        ({"FAKE_FAIL": "cuLaunchKernelEx"}, "FAKE_ERROR (as wanted) from launch"),
        ({"FAKE_FAIL": "cuMemcpyAsync"}, "FAKE_ERROR (as wanted) from copy"),
    ],
)
def test_errors_are_told(
    variables: dict[str, Any], said: str, files: Exported, example: Path, driver: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    log = tmp_path / "log"
    done = run(example, driver, b"", files.weights, FAKE_LOG=log, **variables)
    assert done.returncode == 1
    assert said in done.stderr.decode()
    if log.exists():
        assert "released, 0 bytes" in log.read_text()


def test_without_a_driver_it_says_so(files: Exported, example: Path) -> None:
    done = run(example, None, b"", files.weights)
    if done.returncode == 0:
        pytest.skip("there is a driver")
    assert re.search("no CUDA driver here|sees no GPU", done.stderr.decode())


def test_wrong_weights_are_refused(
    files: Exported, example: Path, driver: Path, tmp_path: Path
) -> None:
    data = files.weights.read_bytes()
    other = tmp_path / "w"
    for changed, said in (
        (data[:50], "less than the header"),
        (b"X" + data[1:], "does not begin with TILESMTH"),
        (data[:20] + b"!" + data[21:], "belongs to another library"),
        (data[:-1], "was not copied as a whole"),
        (data[:100] + b"!" + data[101:], "its header is not as it was written"),
        (data[:200] + bytes([data[200] ^ 1]) + data[201:], "its checksum is wrong"),
    ):
        other.write_bytes(changed)
        done = run(example, driver, b"", other)
        assert done.returncode == 1
        assert said in done.stderr.decode()
    assert "cannot open the weights file" in run(example, driver, b"", "/none").stderr.decode()


def test_a_kernel_with_weights_apart_from_its_inputs(driver: Path, tmp_path: Path) -> None:
    A, B = ts.placeholder((5, 7), name="A"), ts.placeholder((7, 3), name="B")
    func = ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul")
    kernel = build(plain_schedule(func, H200), H200)
    a, b = Numbers()(5, 7), Numbers(1)(7, 3)
    files = kernel.export(tmp_path, weights={"B": b})
    call("cc", *STRICT, "-I.", "example.c", "-L.", "-lmatmul", "-Wl,-rpath,$ORIGIN", "-o", "run",
         cwd=tmp_path)  # fmt: skip
    done = run(tmp_path / "run", driver, a.tobytes(), files.weights, FAKE_DIMS="5,7,3")
    assert done.returncode == 0, done.stderr
    got = np.frombuffer(done.stdout, np.float32).reshape(5, 3)
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-6)


def test_kernels_of_tensor_cores_have_their_maps(driver: Path, tmp_path: Path) -> None:
    A = ts.placeholder((256, 512), "float16", name="A")
    B = ts.placeholder((512, 256), "float16", name="B")
    func = ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul")
    kernel = ts.build(func, H200)
    (launch, *_) = kernel.artifact.entries[0].launches
    assert launch.maps, "a draft for the H200 uses its copy engine"
    kernel.export(tmp_path, "gemm")
    call("cc", *STRICT, "-I.", "example.c", "-L.", "-lgemm", "-Wl,-rpath,$ORIGIN", "-o", "run",
         cwd=tmp_path)  # fmt: skip
    log = tmp_path / "log"
    done = run(tmp_path / "run", driver, b"", tmp_path / "gemm.weights", FAKE_LOG=log)
    assert done.returncode == 0, done.stderr
    rows = [line for line in log.read_text().splitlines() if line.startswith("map ")]
    assert rows == [f"map 6 {len(m.shape)} box {m.box[0]} {m.box[1]} 0330" for m in launch.maps]
    assert launches(log)[0][:4] == (
        launch.symbol, launch.grid, launch.threads, launch.shared_nbytes,
    )  # fmt: skip


def test_a_compiled_network_is_exported_without_a_gpu(tmp_path: Path) -> None:
    def convolutions(b: GraphBuilder, x: Value) -> Value:
        n = Numbers()
        y = b.add(ts.ops.relu, b.add(ts.ops.conv2d, x, b.constant(n(8, 4, 3, 3)), padding=1))
        return b.add(ts.ops.softmax, b.add(ts.ops.conv2d, y, b.constant(n(5, 8, 1, 1))))

    model = ts.compile_model(graph_of(convolutions, 1, 4, 9, 9), H200, cache=None)
    files = model.export(tmp_path)
    assert files.shared is not None
    assert files.shared.exists()
    try:
        ts.cuda()
    except ts.TargetError:
        with pytest.raises(ts.BuildError, match="cannot run here"):
            model({"x": np.zeros((1, 4, 9, 9), np.float32)})


def test_opencl_is_refused(tmp_path: Path) -> None:
    A = ts.placeholder((5, 7), name="A")
    func = ts.function([A, ts.ops.relu(A)], name="relu")
    try:
        target = ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))
    kernel = build(plain_schedule(func, target), target)
    with pytest.raises(ts.BuildError, match="only kernels for CPUs and for CUDA"):
        kernel.export(tmp_path)
