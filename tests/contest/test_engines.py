"""Inference engines as contestants: each runs an exported network and gives PyTorch's outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith_contest import engines as engines_module
from tilesmith_contest import models as models_module
from tilesmith_contest.engine import ModelFile
from tilesmith_contest.engines import (
    ENGINES,
    engine_contestants,
    usable_engines,
)
from tilesmith_contest.model_rows import remarks, start_table, time_table
from tilesmith_contest.models import WRONG, Asked, compare_model, relative_error
from tilesmith_contest.pairs import Turns
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array
from tilesmith_contest.process import ContestantProcess, Make, cores_for

QUICK = Turns(rounds=5, sample_seconds=0.001, most_seconds=1.0, paired=("onnxruntime",))


@dataclass(frozen=True)
class Exported:
    model: ModelFile
    want: dict[str, Array]


@pytest.fixture(scope="module", params=["resnet50", "bert-base"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return make_exported(request.param, tmp_path_factory.mktemp("nets"))


def make_exported(name: str, folder: Path) -> Exported:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from tilesmith_contest.networks.catalogue import in_float64, network
    from tilesmith_contest.networks.export import export, save_program

    net = network(name, small=True)
    path = folder / f"{name}.onnx"
    export(name, path, dynamic=["batch"], small=True)
    save_program(name, path.with_suffix(".pt2"), small=True)
    feeds = net.inputs()
    model = ModelFile(path, feeds, net.outputs, {"batch": 1})
    return Exported(model, in_float64(net, net.module(), feeds))


# torch.compile takes half a minute for each.
@pytest.mark.turns(4)
@pytest.mark.parametrize("name", [n for n in ENGINES if n != "torch-compile"])
def test_an_engine_gives_pytorchs_outputs(name: str, exported: Exported) -> None:
    """In a process of its own: some of these libraries do not bear each other."""
    if usable_engines([name], exported.model.path)[1]:
        pytest.skip(f"{name} is not here")
    with ContestantProcess(name, cores_for(1)) as process:
        (contestant,) = process.make(Make(engine_contestants, (name, exported.model, 1)))
        assert process.sampler(contestant)(2).seconds > 0
        assert relative_error(process.outputs(contestant), exported.want) < WRONG["float32"]
        start = process.start(contestant)
        assert start is not None
        assert start.seconds > 0


@dataclass(frozen=True)
class Constant:
    """Stands for an engine: gives arrays that it was made with."""

    outputs: dict[str, Array]
    facts: tuple[tuple[str, float], ...] = ()

    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        if not self.outputs:
            raise ts.MeasureError("no kernel for 'Frobnicate'")
        return Contestant(
            "constant",
            lambda: sum(range(1000)),
            lambda: self.outputs,
            facts=lambda: dict(self.facts),
        )


WANT = {"y": np.arange(1.0, 5.0)}
ASKED = Asked(ModelFile(Path("net.onnx"), {}, ("y",)), ("good", "bad", "broken"), None)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of this file, in processes of their own."""
    made = {"good": Constant(WANT), "bad": Constant({"y": 2 * WANT["y"]}), "broken": Constant({})}

    def make(name: str, model: ModelFile, threads: int) -> Make:
        return Make(engines_module.prepared, (made[name], model, threads))

    monkeypatch.setattr(models_module, "engine_recipe", make)
    monkeypatch.setattr(models_module, "engine_versions", lambda _: "")


@pytest.mark.usefixtures("stand_ins")
def test_a_row_has_our_time_the_engines_and_what_went_wrong() -> None:
    facts = (("arena_bytes", 4e6), ("kernel_seconds", 0.001), ("whole_over_kernels", 1.02))
    asked = replace(ASKED, ours=Constant(WANT, facts), reference=("float64", WANT))
    row = compare_model(asked, ts.cpu(1), QUICK)
    assert row.name == "net, 1 thread"
    assert row.value is not None
    assert row.peer == "good"
    assert row.ratio is not None
    assert (row.error, row.failed, row.reference) == (0.0, None, "float64")
    assert (row.arena_bytes, row.kernels_ms) == (4e6, 1.0)
    assert row.first_start_seconds is not None
    assert row.second_start_seconds is not None
    good, bad, broken = row.engines
    assert good.ratio == row.ratio
    assert good.ms is not None
    assert bad.ms is broken.ms is None
    assert bad.failed == "its outputs differ by 1.0e+00 of the largest value"
    assert "no kernel for 'Frobnicate'" in str(broken.failed)
    times, starts = time_table([row]), start_table([row])
    assert len({*map(len, times)}) == len({*map(len, starts)}) == 1
    assert [r[2] for r in starts[1:]] == ["tilesmith", "good"]
    text = "\n".join(remarks([row]))
    assert "arena of 4.0 MB" in text
    assert "kernels sum to 1.00 ms, the whole is +2.0 %" in text
    assert "broken: MeasureError: no kernel" in text


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("ours", "why"),
    [
        (Constant({}), "no kernel for 'Frobnicate'"),
        (Constant({"z": WANT["y"]}), "its outputs differ by inf"),
        (Constant({"y": WANT["y"] * np.nan}), "its outputs differ by inf"),
    ],
)
def test_engines_are_timed_though_ours_fails(ours: Constant, why: str) -> None:
    asked = replace(ASKED, ours=ours, engines=("good",), restart=False)
    row = compare_model(asked, ts.cpu(1), QUICK)
    assert why in str(row.failed)
    assert row.value is row.ratio is None
    assert row.reference == "good"
    assert row.engines[0].ms is not None


def test_absent_engines_are_named_and_unknown_ones_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = replace(ENGINES["openvino"], modules=("a_module_that_nobody_has",))
    here = replace(ENGINES["torch"], modules=("numpy",))
    libraries: dict[str, Any] = {**ENGINES, "openvino": gone, "torch": here}
    monkeypatch.setattr(engines_module, "ENGINES", libraries)
    usable, absent = usable_engines(["openvino", "torch"], tmp_path / "net.onnx")
    assert usable == []
    assert "pip install 'tilesmith[peers]'" in absent["openvino"]
    assert "there is no net.pt2 of torch.export.save beside it" in absent["torch"]
    (tmp_path / "net.pt2").touch()
    assert usable_engines(["torch"], tmp_path / "net.onnx") == (["torch"], {})
    with pytest.raises(ts.ArgumentError, match="unknown engine 'tvm'; known are onnxruntime"):
        usable_engines(["tvm"], tmp_path / "net.onnx")


def test_the_relative_error() -> None:
    one = {"y": np.array([1.0, -4.0])}
    assert relative_error(one, one) == 0
    assert relative_error({"y": np.array([1.0, -3.0])}, one) == 0.25
    assert relative_error({"y": np.array([[1.0, -4.0]])}, one) == np.inf
    assert relative_error({"y": np.array([1.0, np.nan])}, one) == np.inf
    zero = {"y": np.zeros(2)}
    assert relative_error(zero, zero) == 0
    assert relative_error(one, zero) == np.inf
    empty = {"y": np.zeros((0, 3))}
    assert relative_error(empty, empty) == 0
    same = {"y": np.array([np.inf, np.nan])}
    assert relative_error(same, same) == 0
