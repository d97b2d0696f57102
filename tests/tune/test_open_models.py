"""Models with open sizes are tuned for the inputs that are given, and say so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilesmith as ts
from tilesmith.graph.open_plan import OpenStep
from tilesmith.graph.partition import Group
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.open_model import typical_step

W = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)


def model(*nodes: onnx.NodeProto, out: list[object]) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "net", [helper.make_tensor_value_info("x", 1, ["batch", 8])],
        [helper.make_tensor_value_info("y", 1, out)], [numpy_helper.from_array(W, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


OPEN = model(helper.make_node("MatMul", ["x", "w"], ["y"]), out=["batch", 12])
# The second product has as many rows as there are positive elements.
STAGED = model(
    helper.make_node("MatMul", ["x", "w"], ["h"]),
    helper.make_node("NonZero", ["x"], ["at"]),
    helper.make_node("Transpose", ["at"], ["pairs"], perm=[1, 0]),
    helper.make_node("GatherND", ["x", "pairs"], ["some"]),
    helper.make_node("Mul", ["some", "some"], ["y"]),
    out=["n"],
)


def tune(graph: object, **settings: object) -> ts.Model:
    given = {
        "budget": ts.Budget(trials=12), "measurer": FakeMeasurer(), "strategy": ts.Random(),
        "quiet": True, "cache": None, **settings,
    }  # fmt: skip
    return ts.tune_model(graph, ts.cpu(1), **given)  # type: ignore[call-overload, no-any-return]


def test_open_sizes_are_tuned_for_the_inputs_given() -> None:
    graph = ts.load_onnx(OPEN)
    x = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    tuned = tune(graph, inputs={"x": x})
    assert tuned.tuning is not None
    assert tuned.tuning.sizes == "x: float32[5, 8]"
    assert "for x: float32[5, 8]" in repr(tuned.tuning)
    (kernel,) = tuned.executors[0].kernels
    assert kernel.origin.kind == "record"
    for rows in (5, 7):  # the other size runs too, untuned
        other = np.ones((rows, 8), np.float32)
        np.testing.assert_allclose(tuned({"x": other})["y"], other @ W, rtol=1e-4, atol=1e-4)
    kinds = {k.origin.kind for e in tuned.executors for k in e.kernels}
    assert kinds - {"record"}


def test_stages_behind_the_host_are_tuned_too() -> None:
    x = np.array([[1, 0, 2, 0, 0, 3, 0, 0], [0, 4, 0, 0, 0, 0, 0, 5]], np.float32)
    tuned = tune(ts.load_onnx(STAGED), inputs={"x": x})
    assert tuned.tuning is not None
    assert len(tuned.tuning.tasks) == sum(len(e.kernels) for e in tuned.executors) > 0
    np.testing.assert_array_equal(tuned({"x": x})["y"], np.array([1, 4, 9, 16, 25], np.float32))


def test_without_inputs_the_error_says_what_to_give() -> None:
    with pytest.raises(ts.TilesmithError, match=r"dims=.*or tune it for inputs .*'x': array"):
        tune(ts.load_onnx(OPEN), precision="bfloat16")
    with pytest.raises(ts.TilesmithError, match=r"cannot be tuned for all sizes.*NonZero.*inputs="):
        tune(ts.load_onnx(STAGED))
    graph = ts.load_onnx(OPEN, dims={"batch": 4})
    with pytest.raises(ts.TilesmithError, match="inputs for 1 models, and 2 models"):
        tune([graph, graph], inputs=[None])
    with pytest.raises(ts.TilesmithError, match="has no input 'z'"):
        tune(ts.load_onnx(OPEN), inputs={"z": W})


def test_ranges_give_a_portfolio_for_all_lengths(short_drafts: None) -> None:
    db = ts.open_database(":memory:")
    sizes = {"batch": (1, 32, {2: 1.0, 16: 3.0})}
    program = ts.load_onnx(OPEN)
    tuned = tune(program, sizes=sizes, measurer=None, database=db, strategy=None,
                 budget=ts.Budget(trials=4))  # fmt: skip
    assert tuned.tuning is not None
    assert tuned.tuning.trials >= 2
    assert tuned.tuning.sizes == "batch 1 to 32"
    again = ts.compile_model(program, ts.cpu(1), sizes=sizes, database=db, cache=None)
    for model in (tuned, again):
        for rows in (0, 1, 2, 15, 32, 40):
            x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
            np.testing.assert_allclose(model({"x": x})["y"], x @ W, rtol=1e-4, atol=1e-4)
        assert "near batch = 16: member" in model.summary()
    assert "regret" in tuned.summary()
    (kernel,) = again._run.executor.kernels
    assert kernel.origin.kind == "record"
    with pytest.raises(ts.TilesmithError, match="takes inputs= or sizes=, and is given both"):
        tune(program, sizes=sizes, inputs={"x": W})
    with pytest.raises(ts.TilesmithError, match=r"cannot be tuned for all sizes.*NonZero.*inputs="):
        tune(ts.load_onnx(STAGED), sizes={"batch": (1, 4)})
    with pytest.raises(ts.TilesmithError, match="none is open"):
        tune(ts.load_onnx(OPEN, dims={"batch": 4}), sizes={"batch": (1, 4)})


def test_without_a_range_it_is_tuned_for_one_that_is_said(short_drafts: None) -> None:
    with pytest.warns(UserWarning, match="net is compiled for batch from 1 to 1024"):
        tuned = tune(ts.load_onnx(OPEN), measurer=None, strategy=None, budget=ts.Budget(trials=2))
    assert tuned.is_open
    assert tuned.tuning is not None
    assert tuned.tuning.sizes == "batch 1 to 1024"


@pytest.mark.parametrize(
    ("form", "size"),
    [("image", 1), ("tokens", 256), ("elements", 256), ("rows", 256), ("columns", 256)],
)
def test_drafts_are_for_small_batches_where_other_dimensions_fill_the_tiles(
    form: str, size: int
) -> None:
    """A draft for many images may have tiles of them, of which one image would fill a part."""
    n = ts.size("n")
    if form == "image":
        x, w = ts.placeholder((n, 8, 9, 9), name="x"), ts.placeholder((16, 8, 3, 3), name="w")
        inputs, y = [x, w], ts.ops.conv2d(x, w)
    elif form == "tokens":
        x, w = ts.placeholder((n, 64), name="x"), ts.placeholder((64, 96), name="w")
        inputs, y = [x, w], ts.ops.matmul(x, w)
    elif form in ("rows", "columns"):
        x = ts.placeholder((n, 64) if form == "rows" else (64, n), name="x")
        inputs, y = [x], ts.ops.reduce_sum(x, axes=(1,) if form == "rows" else (0,))
    else:
        x = ts.placeholder((n, 64, 64), name="x")
        inputs, y = [x], ts.ops.relu(x)
    func = ts.function([*inputs, y], name=form)
    step = OpenStep(Group((), (), ()), func, (), {})
    assert typical_step(step).func == ts.instantiate(func, {"n": size})


@pytest.mark.parametrize(
    ("heads", "most", "drafted"),
    [(4, 64, {"b": 1, "q": 32, "k": 32}), (16, 64, {"b": 1, "q": 32, "k": 32}),
     (16, 4, {"b": 1, "q": 1, "k": 32})],
)  # fmt: skip
def test_typical_sizes_of_attention(heads: int, most: int, drafted: dict[str, int]) -> None:
    """Queries are the rows that use a key, and keys are summed over: a draft for one of them would
    have no tiles. In decoding there are never enough queries for a tile.
    """
    b = ts.size("b", range=(1, 4))
    q, k = ts.size("q", range=(1, most)), ts.size("k", range=(1, 64))
    Q = ts.placeholder((b, heads, q, 16), name="Q")
    K = ts.placeholder((b, heads, k, 16), name="K")
    P = ts.placeholder((b, heads, q, k), name="P")
    scores = ts.function([Q, K, ts.ops.batch_matmul(Q, K, transpose_b=True)], name="scores")
    values = ts.function([P, K, ts.ops.batch_matmul(P, K)], name="values")
    for func in (scores, values):
        step = OpenStep(Group((), (), ()), func, (), {})
        assert typical_step(step).func == ts.instantiate(func, drafted)


def test_models_for_gpus_are_refused_at_once_with_what_to_give() -> None:
    program, gpu = ts.load_onnx(OPEN), ts.Target.named("nvidia-a100")
    for made in (ts.compile_model, ts.tune_model):
        with pytest.raises(ts.TilesmithError, match=r"sizes=\.\.\.\) is for CPUs.*dims="):
            made(program, gpu, sizes={"batch": (1, 4)})
    with pytest.raises(ts.TilesmithError, match=r"decided at their sizes.*bfloat16"):
        ts.tune_model(program, ts.cpu(1), sizes={"batch": (1, 4)}, precision="int8")
