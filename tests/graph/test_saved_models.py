"""Saved models: a new process computes the same, bit for bit, and what does not fit is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import compiled
from small_graphs import Numbers, feeds_of, graph_of

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value

Array = np.ndarray[Any, Any]

CHILD = """
import sys
import numpy as np
import tilesmith as ts
from tilesmith.codegen.llvm import backend

def refuse(*_args, **_kwargs):
    raise AssertionError("a kernel is compiled")

backend.LlvmBackend.compile = refuse
given, out, *rest = sys.argv[1:]
model = ts.load_model(given, weights=rest[0] if rest else None)
with np.load(out) as feeds:
    results = model({name: feeds[name] for name in feeds.files})
np.savez(out, **results)
print(len(model.summary()), sorted(m for m in ("onnx", "torch", "xgboost") if m in sys.modules))
"""


def in_new_process(
    path: Path, feeds: dict[str, Array], *words: Any, folder: Path | None = None
) -> dict[str, Array]:
    """What a process computes that only has the file."""
    arrays = path.parent.absolute() / "arrays.npz"
    np.savez(arrays, **feeds)  # type: ignore[arg-type]
    env = {**os.environ, "PYTHONPATH": str(Path(ts.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(arrays), *map(str, words)],
        capture_output=True, text=True, timeout=300, cwd=folder, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ", 1)[1].strip() == "[]"
    with np.load(arrays) as results:
        return {name: results[name] for name in results.files}


def assert_same(got: dict[str, Array], want: dict[str, Array]) -> None:
    assert [*got] == [*want]
    for name, a in want.items():
        assert got[name].dtype == a.dtype
        assert got[name].shape == a.shape
        assert got[name].tobytes() == a.tobytes()


def layers(b: GraphBuilder, x: Value) -> Any:
    """Kernels with threads, arrays in the arena, and outputs that no kernel writes."""
    n = Numbers()
    hidden = b.add(ts.ops.relu, b.add(ts.ops.matmul, x, b.constant(n(45, 67))))
    y = b.add(ts.ops.softmax, b.add(ts.ops.matmul, hidden, b.constant(n(67, 41))))
    part = b.add(ts.ops.slice_, y, starts=(1, 0), stops=(3, 41))
    return hidden, y, x, b.constant(n(3)), part


@pytest.fixture(scope="module")
def graph() -> ts.Graph:
    return graph_of(layers, 31, 45)


@pytest.fixture(scope="module")
def model(graph: ts.Graph) -> ts.Model:
    return compiled(graph, ts.cpu())


@pytest.fixture
def saved(model: ts.Model, tmp_path: Path) -> Path:
    model.save(tmp_path / "m.tsm")
    return tmp_path / "m.tsm"


def test_a_new_process_computes_the_same(graph: ts.Graph, model: ts.Model, saved: Path) -> None:
    feeds = feeds_of(graph)
    assert_same(in_new_process(saved, feeds), model(feeds))


def test_a_packed_convolution_of_drafts(tmp_path: Path) -> None:
    def network(b: GraphBuilder, x: Value) -> Value:
        n = Numbers()
        return b.add(ts.ops.relu, b.add(ts.ops.conv2d, x, b.constant(n(13, 5, 3, 3)), padding=1))

    graph = graph_of(network, 1, 5, 11, 9)
    model = ts.compile_model(graph, ts.cpu(), cache=None)
    model.save(tmp_path / "m.tsm")
    feeds = feeds_of(graph)
    assert_same(in_new_process(tmp_path / "m.tsm", feeds), model(feeds))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int8", "bool"])
def test_other_dtypes(kind: str, tmp_path: Path) -> None:
    def network(b: GraphBuilder, x: Value) -> Any:
        return b.add(ts.ops.maximum, x, x), x

    graph = graph_of(network, 3, 7, dtype=kind)
    model = compiled(graph)
    model.save(tmp_path / "m.tsm")
    feeds = feeds_of(graph)
    assert_same(ts.load_model(tmp_path / "m.tsm")(feeds), model(feeds))


def test_a_model_without_kernels_or_weights(tmp_path: Path) -> None:
    graph = graph_of(lambda b, x: b.add(ts.ops.reshape, x, shape=(6,)), 2, 3)
    model = ts.compile_model(graph, cache=None)
    model.save(tmp_path / "m.tsm")
    feeds = feeds_of(graph)
    assert_same(ts.load_model(tmp_path / "m.tsm")(feeds), model(feeds))


def test_an_onnx_model_with_checks_and_several_inputs(tmp_path: Path) -> None:
    parser = pytest.importorskip("onnx.parser")
    source = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        words (int64[batch, 5] ids, float[batch, 5, 12] more)
            => (float[batch, 5, 12] y, float[batch, 5] scores)
        <float[9, 12] table = {NUMBERS}>
        {found = Gather(table, ids) y = Add(found, more)
         scores = ReduceMax<axes=[2], keepdims=0>(y)}
        """.replace("NUMBERS", ",".join(str(k / 7) for k in range(108)))
    )
    model = ts.compile_model(ts.load_onnx(source, dims={"batch": 3}), cache=None)
    model.save(tmp_path / "m.tsm")
    rng = np.random.default_rng(0)
    feeds = {
        "ids": rng.integers(0, 9, (3, 5)),
        "more": rng.standard_normal((3, 5, 12)).astype(np.float32),
    }
    assert_same(in_new_process(tmp_path / "m.tsm", feeds), model(feeds))
    again = ts.load_model(tmp_path / "m.tsm")
    assert [str(s) for s in again.inputs] == [str(s) for s in model.inputs]
    with pytest.raises(IndexError, match="out of range"):
        again({**feeds, "ids": feeds["ids"] + 9})
    with pytest.raises(ts.ArgumentError, match="is not given 'more'"):
        again({"ids": feeds["ids"]})


def test_a_pytorch_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Pair(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(19, 7)
            self.norm = torch.nn.LayerNorm(7)

        def forward(self, x: Any, y: Any) -> dict[str, Any]:
            hidden = self.layer(x) + y
            return {"plain": hidden, "normed": self.norm(hidden)}

    torch.manual_seed(0)
    module = Pair().eval()
    given = (torch.rand(5, 19), torch.rand(5, 7))
    model = ts.compile_model(ts.from_torch(module, given), cache=None)
    model.save(tmp_path / "m.tsm")
    feeds = {"x": given[0].numpy(), "y": given[1].numpy()}
    got = in_new_process(tmp_path / "m.tsm", feeds)
    assert_same(got, model(feeds))
    with torch.no_grad():
        want = module(*given)
    for name, a in want.items():
        np.testing.assert_allclose(got[name], a.numpy(), rtol=1e-5, atol=1e-5)
    tensors = ts.load_model(tmp_path / "m.tsm")({"x": given[0], "y": given[1]})
    assert all(isinstance(a, torch.Tensor) for a in tensors.values())


def test_weights_apart_move_with_the_model(
    graph: ts.Graph, model: ts.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    model.save("a/m.tsm", weights="a/m.weights")
    size = (tmp_path / "a/m.tsm").stat().st_size
    assert (tmp_path / "a/m.weights").stat().st_size > 20_000
    (tmp_path / "a").rename(tmp_path / "b")
    feeds = feeds_of(graph)
    want = model(feeds)
    assert_same(in_new_process(tmp_path / "b/m.tsm", feeds, folder=Path("/")), want)
    with zipfile.ZipFile(tmp_path / "b/m.tsm") as archive:
        assert "weights.bin" not in archive.namelist()
    assert size < 20_000 + sum(len(k.artifact.code) for k in model.executors[0].kernels)
    (tmp_path / "b/m.weights").rename(tmp_path / "elsewhere")
    with pytest.raises(ts.GraphError, match=r"weights of .* are missing: there is no file .*m\.we"):
        ts.load_model("b/m.tsm")
    assert_same(ts.load_model("b/m.tsm", weights="elsewhere")(feeds), want)
    changed = bytearray((tmp_path / "elsewhere").read_bytes())
    changed[400] ^= 1
    (tmp_path / "elsewhere").write_bytes(changed)
    with pytest.raises(ts.GraphError, match="not those that were saved"):
        ts.load_model("b/m.tsm", weights="elsewhere")
    (tmp_path / "elsewhere").write_bytes(changed[:500])
    with pytest.raises(ts.GraphError, match="not copied as a whole"):
        ts.load_model("b/m.tsm", weights="elsewhere")
    with pytest.raises(ts.GraphError, match="not a file of weights"):
        ts.load_model("b/m.tsm", weights="b/m.tsm")


def test_weights_never_replace_another_file(model: ts.Model, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"a model")
    with pytest.raises(ts.GraphError, match="exists and has no weights of a saved model"):
        model.save(tmp_path / "m.tsm", weights=tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == b"a model"
    for _ in range(2):
        model.save(tmp_path / "m.tsm", weights=tmp_path / "w")
    model.save(tmp_path / "inside.tsm")
    with pytest.raises(ts.GraphError, match="has its weights inside"):
        ts.load_model(tmp_path / "inside.tsm", weights=tmp_path / "w")


def test_a_digest_tells_models_apart(model: ts.Model, tmp_path: Path) -> None:
    digest = model.save(tmp_path / "m.tsm")
    assert model.save(tmp_path / "again.tsm") == digest
    assert (tmp_path / "m.tsm").read_bytes() == (tmp_path / "again.tsm").read_bytes()
    ts.load_model(tmp_path / "m.tsm", digest=digest)
    with pytest.raises(ts.GraphError, match=f"its digest is {digest}"):
        ts.load_model(tmp_path / "m.tsm", digest="0" * 64)


def test_damage_is_found_or_does_not_matter(
    graph: ts.Graph, model: ts.Model, saved: Path, tmp_path: Path
) -> None:
    """No change of a byte, and no lost end, gives other results."""
    whole = saved.read_bytes()
    feeds = feeds_of(graph)
    want = model(feeds)
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(saved) as archive:
        members = [archive.getinfo(n).header_offset for n in archive.namelist()]
    ends = range(len(whole) - 200, len(whole), 3)
    heads = [m + k for m in members for k in range(0, 60, 7)]
    reasons = []
    damaged = tmp_path / "damaged.tsm"
    for at in (*rng.integers(0, len(whole), 60).tolist(), *heads, *ends):
        changed = bytearray(whole)
        changed[at] ^= 1 << int(rng.integers(8))
        damaged.write_bytes(changed)
        try:
            loaded = ts.load_model(damaged)
        except ts.GraphError as error:
            reasons.append(str(error))
        else:
            assert_same(loaded(feeds), want)
    assert len(reasons) > 60
    assert all("damaged.tsm" in r for r in reasons)
    for end in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:end])
        with pytest.raises(ts.GraphError, match="damaged"):
            ts.load_model(damaged)


def rewritten(path: Path, **changes: Any) -> Path:
    """The file with another description, and a digest that fits it."""
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    text = json.dumps({**json.loads(members["model.json"]), **changes}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | {"model.json": text}).items():
            archive.writestr(name, data)
        archive.comment = f"tilesmith model 1 {hashlib.sha256(text).hexdigest()}".encode()
    return path


def test_another_code_generator_is_refused(saved: Path) -> None:
    with pytest.raises(ts.GraphError, match=r"version 3 of the code generator, and this one has"):
        ts.load_model(rewritten(saved, codegen="3"))


def test_another_format_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data.replace(b"tilesmith model 1 ", b"tilesmith model 7 "))
    with pytest.raises(ts.GraphError, match="version 7 of the format"):
        ts.load_model(saved)


def test_another_architecture_is_refused(graph: ts.Graph, tmp_path: Path) -> None:
    there = "skylake-avx512" if ts.cpu().arch == "aarch64" else "neoverse-n1"
    compiled(graph, ts.Target.named(there)).save(tmp_path / "m.tsm")
    with pytest.raises(ts.GraphError, match=f"was saved for .*; this machine is {ts.cpu().arch}"):
        ts.load_model(tmp_path / "m.tsm")


def test_a_processor_without_the_features_is_refused(
    model: ts.Model, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ts.cpu()
    target = json.loads(replace(here, features=here.features | {"telepathy"}).to_json())
    with pytest.raises(ts.GraphError, match="a processor with telepathy, which this machine's"):
        ts.load_model(rewritten(saved, target=target))
    with zipfile.ZipFile(saved) as archive:
        kernels = json.loads(archive.read("model.json"))["kernels"]
    from tilesmith.codegen.llvm.compiler import llvm

    lacking = next(f for f, on in llvm.get_host_cpu_features().items() if not on)
    kernels[0]["features"] += f",+{lacking}"
    with pytest.raises(ts.GraphError, match=f"a processor with {lacking}, which this machine's"):
        ts.load_model(rewritten(saved, kernels=kernels, target=json.loads(here.to_json())))


@pytest.mark.parametrize("name", ["steps", "kernels", "weights", "target", "arena"])
def test_a_description_that_makes_no_sense_is_refused(saved: Path, name: str) -> None:
    with pytest.raises(ts.GraphError, match=r"m\.tsm"):
        ts.load_model(rewritten(saved, **{name: [{"kernel": 9}]}))


def test_what_is_no_saved_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ts.GraphError, match="there is no file"):
        ts.load_model(tmp_path / "none.tsm")
    with pytest.raises(ts.GraphError, match="there is no file"):
        ts.load_model(tmp_path)
    (tmp_path / "text.tsm").write_text("text")
    with pytest.raises(ts.GraphError, match="damaged, or not a saved model"):
        ts.load_model(tmp_path / "text.tsm")
    with zipfile.ZipFile(tmp_path / "other.tsm", "w") as archive:
        archive.writestr("model.json", "{}")
    with pytest.raises(ts.GraphError, match="damaged, or not a saved model"):
        ts.load_model(tmp_path / "other.tsm")


def test_a_large_model_json_is_not_unpacked(saved: Path) -> None:
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.json", b"0" * (1 << 20))
        archive.comment = f"tilesmith model 1 {'0' * 64}".encode()
    with pytest.raises(ts.GraphError, match=r"model\.json is compressed"):
        ts.load_model(saved)


def test_models_that_are_compiled_for_each_size_are_not_saved(tmp_path: Path) -> None:
    parser = pytest.importorskip("onnx.parser")
    source = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        open (float[batch, 5] x) => (float[batch, 5] y) {y = Relu(x)}"""
    )
    model = ts.compile_model(ts.load_onnx(source), sizes="each", cache=None)
    with pytest.raises(ts.GraphError, match=r"cannot be saved while the sizes of x.* are open"):
        model.save(tmp_path / "m.tsm")
    assert not (tmp_path / "m.tsm").exists()


def test_records_are_named(graph: ts.Graph, tmp_path: Path) -> None:
    with ts.open_database(tmp_path / "tune.db") as db:
        (task, _), *_ = ts.extract_tasks(graph, ts.cpu(1))
        ts.tune(task.func, ts.cpu(1), budget=ts.Budget(trials=4), database=db)
        best = db.best(task)
        assert best is not None
        model = ts.compile_model(graph, ts.cpu(1), database=db, cache=None)
    model.save(tmp_path / "m.tsm")
    with zipfile.ZipFile(tmp_path / "m.tsm") as archive:
        kernels = json.loads(archive.read("model.json"))["kernels"]
    records = [k["origin"]["record"] for k in kernels if k["origin"]["kind"] == "record"]
    assert records == [best.candidate.key]
    loaded = ts.load_model(tmp_path / "m.tsm").executors[0]
    assert [k.origin for k in loaded.kernels] == [k.origin for k in model.executors[0].kernels]


def test_a_loaded_model_has_all_that_models_have(
    graph: ts.Graph, model: ts.Model, saved: Path, tmp_path: Path
) -> None:
    loaded = ts.load_model(saved)
    feeds = feeds_of(graph)
    want = model(feeds)
    bound = loaded.bind(feeds)
    assert_same({n: a.copy() for n, a in bound().items()}, want)
    first, again = model.summary().splitlines(), loaded.summary().splitlines()
    assert first[: len(graph.outputs) + 2] == again[: len(graph.outputs) + 2]
    assert [x for x in first if "MFLOP " in x or "matmul" in x] == [
        x for x in again if "MFLOP " in x or "matmul" in x
    ]
    assert "0.000 MB of constants" not in loaded.summary()
    names = [(k.name, k.nodes, k.shapes) for k in model.profile(feeds).kernels]
    assert [(k.name, k.nodes, k.shapes) for k in loaded.profile(feeds).kernels] == names
    assert loaded.save(tmp_path / "copy.tsm") == loaded.save(tmp_path / "copy.tsm")
    assert_same(ts.load_model(tmp_path / "copy.tsm")(feeds), want)
    with pytest.raises(ts.BuildError, match="machine code only"):
        print(loaded.executors[0].kernels[0].source)
    files = loaded.export(tmp_path / "c", shared=False)
    assert files.static.exists()
