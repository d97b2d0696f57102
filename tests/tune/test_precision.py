"""precision=, accuracy= and calibration= of compile_model and tune_model: the type of each layer,
what is said of it, and what is refused.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.quantization.simulate import switchable
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune import precision_choice
from tilesmith.tune.calibrate import Calibrated, plain_graph
from tilesmith.tune.precision import PRECISIONS, is_faster
from tilesmith.tune.precision_choice import Chooser, difference

pytestmark = [
    pytest.mark.usefixtures("short_drafts"),
    pytest.mark.filterwarnings("ignore:.*no faster products"),
]
RNG = np.random.default_rng
Array = np.ndarray[Any, Any]
HERE = ts.cpu(num_cores=1)
NAMES = ("first", "narrow", "last")


def network(outlier: float = 0.0) -> Graph:
    """Three products; the input of the middle one has a column that is far larger than others."""
    b = GraphBuilder("net")
    h = b.input("x", (16, 24), "float32")
    for k, name in enumerate(NAMES):
        w = RNG(k).standard_normal((24, 24)) / 24**0.5
        if k == 1:
            shift = np.zeros(24)
            shift[0] = outlier
            h = b.add(ts.ops.add, h, b.constant(shift.astype(np.float32)))
            w[0] *= 1e-4
        h = b.add(ts.ops.matmul, h, b.constant(w.astype(np.float32)), origin=name)
        h = h if k == 2 else b.add(ts.ops.relu, h)
    return b.finish({"y": h})


def feeds(count: int = 8) -> list[dict[str, Array]]:
    return [{"x": np.asarray(RNG(k).standard_normal((16, 24)), np.float32)} for k in range(count)]


def compiled(graph: Graph, precision: str, **options: Any) -> Any:
    options = {"cache": None, "progress": False, "calibration": feeds(), **options}
    return ts.compile_model(graph, options.pop("target", HERE), precision=precision, **options)


def simple(graph: Graph, passes: Any = None) -> Any:
    return ts.compile_model(graph, HERE, cache=None, progress=False, passes=passes)


def types_of(model: Any) -> list[str]:
    return [n.precision for n in model.precision.layers]


def error_of(model: Any, graph: Graph) -> float:
    return max(difference(model(one), evaluate_graph(graph, one)) for one in feeds())


def test_int8_within_a_bound() -> None:
    graph = network(outlier=300)
    with pytest.warns(UserWarning, match=r"1 layers stay in float32: narrow \(int8 would lose"):
        free = compiled(graph, "int8")
    assert types_of(free) == ["int8", "float32", "int8"]
    assert 0.002 < error_of(free, graph) < 0.1
    with pytest.warns(UserWarning, match="narrow .for the bound of the error."):
        bound = compiled(graph, "int8", accuracy=0.05)
    assert types_of(bound) == ["int8", "float32", "int8"]
    assert error_of(bound, graph) <= 0.05
    report = bound.precision
    assert report.error == pytest.approx(error_of(bound, graph), abs=2e-3)
    assert sum(n.share for n in report.layers) == pytest.approx(1)
    with pytest.warns(UserWarning, match="3 layers stay in float32"):
        exact = compiled(graph, "int8", accuracy=1e-6)
    assert types_of(exact) == ["float32"] * 3
    assert error_of(exact, graph) < 1e-5


def test_the_summary_has_a_line_for_each_layer() -> None:
    model = compiled(network(), "int8", accuracy=0.5)
    text = model.summary()
    assert "layers: 3 in int8; the outputs differ from float32 by 0.0" in text
    assert "at most 0.5 was asked for" in text
    lines = [line.split() for line in text.split("layers:")[1].splitlines()[2:]]
    assert [(words[-2], words[-1]) for words in lines] == [("int8", n) for n in NAMES]
    shares = [float(words[2].rstrip("%")) for words in lines]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert "narrow" not in model.summary("first").split("layers:")[1]


def choose(monkeypatch: pytest.MonkeyPatch, times: list[dict[str, float]], bound: float) -> Any:
    """What is chosen if layers take these times."""
    monkeypatch.setattr(Chooser, "_measured", lambda self: times)
    graph = plain_graph(network(outlier=30))
    kinds = tuple(k for k in times[0] if k != "float32")
    return Chooser(graph, HERE, ts.GRAPH_PASSES, feeds(), kinds, bound, simple).chosen(by_time=True)


def test_auto_takes_what_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = {"float32": 2.0, "int8": 1.0}, {"float32": 1.0, "int8": 2.0}
    made = choose(monkeypatch, [fast, slow, fast], 1.0)
    notes = made.graph.layers
    assert [n.precision for n in notes] == ["int8", "float32", "int8"]
    assert [n.seconds for n in notes] == [1.0, 1.0, 1.0]
    assert notes[1].why == "nothing is faster"
    assert made.graph.precision.error < 0.1
    # the layer that loses most goes first, unless it gains far more
    made = choose(monkeypatch, [fast, fast, fast], 0.03)
    assert [n.precision for n in made.graph.layers] == ["int8", "float32", "int8"]
    assert made.graph.precision.error <= 0.03
    assert choose(monkeypatch, [fast, fast, fast], 1e-7).graph.precision.error == 0


@pytest.mark.skipif(not HERE.features & {"fp16", "f16c"}, reason="no half precision here")
def test_auto_mixes_types(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [{"float32": 3.0, "int8": 1.0, "float16": 2.0}, {"float32": 3.0, "int8": 2.0,
             "float16": 1.0}, {"float32": 1.0, "int8": 2.0, "float16": 3.0}]  # fmt: skip
    made = choose(monkeypatch, times, 0.2)
    assert [n.precision for n in made.graph.layers] == ["int8", "float16", "float32"]
    model = simple(made.graph, made.passes)
    assert error_of(model, network(outlier=30)) < 0.1
    kinds = {str(p.dtype) for e in model.executors for k in e.kernels for p in k.artifact.inputs}
    assert {"int8", "float16", "float32"} <= kinds


def test_layers_are_timed_in_place() -> None:
    if not is_faster("int8", HERE):
        pytest.skip("no dot products here")
    model = compiled(network(), "auto", accuracy=0.5)
    assert all(n.seconds > 0 for n in model.precision.layers)
    assert error_of(model, network()) <= 0.5


def test_a_simulation_has_every_choice() -> None:
    graph = plain_graph(network())
    found = Calibrated.of(graph, feeds(), simple)
    one, name = switchable(graph, found.layers, ("int8", "float16"), found.scales, found.moves)
    x = feeds()[0]

    def error(*numbers: int) -> float:
        got = evaluate_graph(one, {**x, name: np.array(numbers, np.int32)})
        return difference(got, evaluate_graph(graph, x))

    assert error(0, 0, 0) == 0
    assert 1e-5 < error(2, 2, 2) < 2e-3 < error(1, 1, 1) < 0.1
    assert error(1, 0, 0) != error(0, 1, 0) != error(0, 0, 1)


def test_auto_where_nothing_is_faster() -> None:
    plain = replace(HERE, features=HERE.features & {"fma", "f16c", "avx2", "neon"})
    assert not any(is_faster(p, plain) for p in PRECISIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = compiled(network(), "auto", target=plain)
    assert not model.precision.layers
    for precision, why in {
        "int8": "products of integers take longer", "tf32": "products are computed in float32",
        "bfloat16": "only memory is saved",
    }.items():  # fmt: skip
        with pytest.warns(UserWarning, match=f"no faster products of {precision} .*{why}"):
            compiled(network(), precision, target=plain,
                     calibration=feeds() if precision == "int8" else ())  # fmt: skip


def test_what_is_refused() -> None:
    graph = network()
    with pytest.raises(ts.ArgumentError, match=r"int8.*typical inputs.*calibration=\[\{'x': arr"):
        compiled(graph, "int8", calibration=())
    with pytest.raises(ts.ArgumentError, match=r"calibration\[1\] of net has no input 'z'"):
        compiled(graph, "int8", calibration=[feeds()[0], {"z": 0}])
    with pytest.raises(ts.ArgumentError, match=r"calibration=.* is for precision"):
        compiled(graph, "float32")
    with pytest.raises(ts.GraphError, match=r"'int4'.* is unknown; give one of 'float32', 'tf32'"):
        compiled(graph, "int4")
    if is_faster("int8", HERE):
        with pytest.warns(UserWarning, match="without them all is computed in float32"):
            compiled(graph, "auto", calibration=())
    with pytest.raises(ts.GraphError, match="calibration inputs for 1 models, and 2 models"):
        ts.tune_model([graph, graph], HERE, precision="int8", calibration=[feeds()])


def test_tuning_in_int8() -> None:
    graph = network()
    model = ts.tune_model(
        graph, HERE, budget=ts.Budget(trials=6), measurer=FakeMeasurer(), strategy=ts.Random(),
        quiet=True, cache=None, precision="int8", calibration=feeds(),
    )  # fmt: skip
    assert types_of(model) == ["int8"] * 3
    assert model.tuning is not None
    kinds = {str(b.dtype) for t in model.tuning.tasks for b in t.task.func.inputs}
    assert "int8" in kinds
    assert error_of(model, graph) < 0.1
    tasks = ts.extract_tasks(graph, HERE, precision="int8", calibration=feeds())
    assert {t.key for t, _ in tasks} == {t.task.key for t in model.tuning.tasks}
    assert precision_choice.runs_here(HERE)


def overflowing() -> Graph:
    """The first product is beyond float16, the second brings its results back."""
    b = GraphBuilder("large")
    h = b.input("x", (16, 24), "float32")
    for name, scale in (("up", 6e4), ("down", 1e-6), ("last", 1.0)):
        w = RNG(len(name)).standard_normal((24, 24)) * scale / 24**0.5
        h = b.add(
            ts.ops.relu, b.add(ts.ops.matmul, h, b.constant(w.astype(np.float32)), origin=name)
        )
    return b.finish({"y": h})


@pytest.mark.skipif(not HERE.features & {"fp16", "f16c"}, reason="no half precision here")
def test_activations_beyond_float16() -> None:
    graph = overflowing()
    with pytest.warns(
        UserWarning, match="large: up, down stay in float32, .*activations beyond 65504"
    ):
        model = compiled(graph, "float16")
    assert error_of(model, graph) < 5e-3
    with warnings.catch_warnings(record=True) as told:  # not seen without calibration
        warnings.simplefilter("always")
        blind = compiled(graph, "float16", calibration=())
    assert not any("activations" in str(w.message) for w in told)
    assert error_of(blind, graph) > 0.1


@pytest.mark.skipif(not HERE.features & {"fp16", "f16c"}, reason="no half precision here")
def test_the_summary_of_halves() -> None:
    """The type of each layer, also without calibration; with it, what each alone loses."""
    blind = compiled(network(), "float16", calibration=()).precision.layers
    assert [(n.name, n.precision, n.why) for n in blind] == [(x, "float16", "") for x in NAMES]
    assert all(np.isnan(n.error) and np.isnan(n.share) for n in blind)
    model = compiled(network(), "float16", calibration=feeds(1))
    notes = model.precision.layers
    assert sum(n.share for n in notes) == pytest.approx(1)
    x, w = feeds(1)[0]["x"], RNG(0).standard_normal((24, 24)).astype(np.float32) / 24**0.5
    narrow, right = (a.astype(np.float64) for a in (x, w.astype(np.float32)))
    right = narrow @ right
    halves = (a.astype(np.float16).astype(np.float64) for a in (x, w.astype(np.float32)))
    apart = np.float16(next(halves) @ next(halves)) - right
    want = np.sqrt((apart**2).sum() / (right**2).sum())
    assert notes[0].error == pytest.approx(want, rel=0.05)
    lines = model.summary().splitlines()
    assert "layers: 3 in float16" in lines
    assert lines[-1].split()[3:] == ["float16", "last"]
    with pytest.warns(UserWarning, match="up, down stay"):
        large = compiled(overflowing(), "float16")
    kinds = [(n.name, n.precision, n.why) for n in large.precision.layers]
    why = "activations beyond 65504"
    assert kinds == [("up", "float32", why), ("down", "float32", why), ("last", "float16", "")]
    assert f"up ({why})" in large.summary()


@pytest.mark.skipif(not HERE.features & {"fp16", "f16c"}, reason="no half precision here")
@pytest.mark.filterwarnings("ignore:.*stay in float32")
def test_auto_leaves_layers_beyond_float16_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no choice, and do not keep the others from it."""
    times = {"float32": 2.0, "float16": 1.0}
    monkeypatch.setattr(
        Chooser, "_measured",
        lambda self: [{k: times[k] for k in ("float32", *self._usable(x))} for x in self.layers],
    )  # fmt: skip
    graph = plain_graph(overflowing())
    chooser = Chooser(graph, HERE, ts.GRAPH_PASSES, feeds(), ("float16",), 1e-2, simple)
    made = chooser.chosen(by_time=True)
    why = "numbers beyond 65504"
    assert [(n.precision, n.why) for n in made.graph.layers] == [
        ("float32", why), ("float32", why), ("float16", ""),
    ]  # fmt: skip
    assert made.graph.layers[2].error < 1e-3
    assert error_of(simple(made.graph, made.passes), overflowing()) < 1e-2


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "int8"])
def test_calibration_that_does_not_fit(precision: str) -> None:
    good = feeds(1)[0]["x"]
    for bad, why in (
        (good[:3], "shape"), (good.astype(np.int32), "int32"), (good + np.inf, "not finite"),
    ):  # fmt: skip
        with pytest.raises(ts.TilesmithError, match=rf"calibration\[1\] of net.*x.*{why}"):
            compiled(network(), precision, calibration=[{"x": good}, {"x": bad}])


def test_bfloat16() -> None:
    graph = network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = compiled(graph, "bfloat16", calibration=())
    assert 1e-4 < error_of(model, graph) < 0.03
    held = {str(p.dtype) for e in model.executors for k in e.kernels for p in k.artifact.inputs}
    assert "bfloat16" in held
