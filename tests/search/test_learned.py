"""Cost models that are trained before a search, saved and loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.search.gbdt import GbdtPredictor
from tilesmith.search.learned import model as learned_model
from tilesmith.search.learned.features import PORTABLE, PortableFeatures
from tilesmith.search.learned.forest import Forest
from tilesmith.search.shared_model import SharedModel, with_shared_model
from tilesmith.search.training import pairwise_accuracy
from tilesmith.testing.landscape import MANY, matmul_task, measured
from tilesmith.testing.models import CostModelContract, candidates, drawn, predictions


@cache
def other_tasks() -> list[ts.Measurement]:
    tasks = (matmul_task(96, 16, 32), matmul_task(32, 48, 64))
    return [m for t in tasks for m in measured(candidates(drawn(t, 60, 3)))]


@cache
def small() -> ts.LearnedModel:
    return ts.learn(other_tasks(), rounds=20, depth=3, width=12)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("learned") / "mine.model"
    small().save(place)
    return place


class TestLearnedModel(CostModelContract):
    model = small()


def test_trees_are_those_of_the_booster() -> None:
    features = PortableFeatures(("machine: L2", "iterations", "intensity at 3 of 10"))
    fitted = ts.Gbdt(features=features, rounds=12, depth=5).fit(other_tasks())
    assert isinstance(fitted, GbdtPredictor)
    x = np.concatenate(
        [features.extract(v, rows).reshape(-1, 4) for v, rows in drawn(matmul_task(), 40, 1)]
    )
    want = fitted.booster.inplace_predict(x, predict_type="margin")
    forest = Forest.of(fitted.booster)
    assert forest.depth <= 5
    np.testing.assert_allclose(forest.predict(x), want, rtol=1e-5, atol=1e-6)
    wrong = forest.columns - 40
    with pytest.raises(ts.TuneError, match="not those of a forest"):
        Forest(wrong, forest.thresholds, forest.leaves)


def test_it_knows_a_task_before_anything_is_measured() -> None:
    predictor = small().fit([])
    of = drawn(matmul_task(), 40, 2)
    known = measured(candidates(of))
    labels = -np.array([m.cost for m in known])
    scores = predictions(predictor, of)
    assert pairwise_accuracy(scores, labels) > pairwise_accuracy(
        predictions(ts.ScoreByTarget(), of), labels
    )


def test_own_measurements_correct_it() -> None:
    own = measured(candidates(drawn(matmul_task(), 60, 4)))
    fitted = small().fit(own)
    assert isinstance(fitted, GbdtPredictor)
    assert isinstance(fitted.base, learned_model.LearnedScore)
    assert 0 < fitted.base.share < small().score.share


def test_a_file_predicts_the_same_in_another_process(path: Path) -> None:
    program = (
        "import sys, tilesmith as ts\n"
        "from tilesmith.testing.landscape import matmul_task\n"
        "from tilesmith.testing.models import drawn, predictions\n"
        "score = ts.load_cost_model(sys.argv[1]).fit([])\n"
        "print(predictions(score, drawn(matmul_task(), 20, 5)).tolist())\n"
        "assert 'xgboost' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    here = predictions(small().fit([]), drawn(matmul_task(), 20, 5)).tolist()
    np.testing.assert_allclose(np.array(json.loads(done.stdout)), here, rtol=0, atol=1e-9)
    assert path.stat().st_size < 1 << 20
    assert "machines" in repr(ts.load_cost_model(str(path)))


def test_on_a_gpu_it_is_the_analytic_score(path: Path) -> None:
    here = matmul_task()
    there = ts.Task(here.func, ts.Target.named("nvidia-v100"))
    predictor = ts.load_cost_model(path).fit([])
    (variant, *_) = ts.variants(there, MANY.sketches(there)[0])
    rows = variant.sample(np.random.default_rng(0), 16)
    same = ts.ScoreByTarget().predict(variant, rows)
    np.testing.assert_array_equal(predictor.predict(variant, rows), same)


def test_on_a_machine_it_has_not_seen_it_predicts() -> None:
    of = drawn(ts.Task(matmul_task().func, ts.Target.named("skylake-avx512")), 8, 1)
    assert np.isfinite(predictions(small().fit([]), of)).all()


def test_a_search_uses_it_from_the_first_batch(path: Path) -> None:
    task = matmul_task()
    strategy = ts.Evolution(population=64, cost_model=ts.load_cost_model(path))
    search = strategy.start(task, MANY.sketches(task), np.random.default_rng(0))
    assert len(search.ask(8)) == 8
    assert search._predictor is not None
    shared = with_shared_model(strategy, (), 2)
    assert isinstance(shared, ts.Evolution)
    assert isinstance(shared.cost_model, SharedModel)
    assert shared.cost_model.fit([]) is not None


def damaged(path: Path, tmp_path: Path, change: str) -> Path:
    """A copy of the file with another head."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    head = bytes(arrays["head"]).decode()
    old, new = change.split(" -> ")
    assert old in head
    arrays["head"] = np.frombuffer(head.replace(old, new, 1).encode(), np.uint8)
    out = tmp_path / "changed.model"
    with out.open("wb") as to:
        np.savez_compressed(to, **arrays)
    return out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('"version": 1 -> "version": 2', "version 2; this library reads version 1"),
        ('"digest": " -> "digest": "x', "features of another version"),
        ('"format": "tilesmith -> "format": "other', "is not a cost model"),
        ('"features": [ -> "features": ["cycles of hope", ', "no feature 'cycles of hope'"),
    ],
)
def test_what_does_not_fit_is_named(path: Path, tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(ts.TuneError, match=says):
        ts.load_cost_model(damaged(path, tmp_path, change))


def test_files_that_are_no_models_are_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.model"
    data = path.read_bytes()
    for content in (b"", b"hello", data[: len(data) // 2], data[:200] + b"x" + data[201:]):
        other.write_bytes(content)
        with pytest.raises(ts.TuneError, match="cost model"):
            ts.load_cost_model(other)
    with pytest.raises(ts.TuneError, match="cannot be read"):
        ts.load_cost_model(tmp_path / "none.model")


def test_too_little_to_learn_from() -> None:
    with pytest.raises(ts.TuneError, match="10 measurements of CPU tasks are too few"):
        ts.learn(other_tasks()[:10])
    same = [m for m in other_tasks() if m.failure is None][:1] * 300
    with pytest.raises(ts.TuneError, match="nothing can be learned"):
        ts.learn(same)


def test_the_command_line_trains_and_uses_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, model = str(tmp_path / "t.db"), str(tmp_path / "m.model")
    with ts.open_database(db) as database:
        database.add(other_tasks()[:300])
    status, out, err = run(capsys, "learn", db, "-o", model)
    assert status == 0, err
    assert "trees" in out
    status, _, err = run(
        capsys, "tune", "matmul", "32", "32", "32", "--strategy", "random", "--cost-model", model
    )
    assert status == 2
    assert "--strategy evolution" in err
    status, _, err = run(capsys, "tune", "matmul", "32", "32", "32", "--cost-model", db)
    assert status == 2
    assert "is not a cost model" in err


def test_features_have_names() -> None:
    assert len(set(PORTABLE)) == len(PORTABLE)
    with pytest.raises(ts.TuneError, match="no feature"):
        PortableFeatures(("nonsense",))
