"""LearnedModel: a cost model that was trained before a search, saved to a file and loaded again.

Its trees correct the analytic score from the first batch on. A small model, fitted to the task's
own measurements, corrects them in turn.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.whole_file import write_whole
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.learned.features import FEATURES_DIGEST, PORTABLE, PortableFeatures
from tilesmith.search.learned.forest import Forest
from tilesmith.search.protocol import Part, Predictor, Scores
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.training import bounded, groups_of, programs_of
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Measurement

_FORMAT, _VERSION = "tilesmith cost model", 1
_WIDTH = 64  # features that are kept: those that gain most
FEWEST = 200  # measurements to learn from


@dataclass(frozen=True, eq=False)
class LearnedScore:
    """The analytic score `base` plus a share of what the trees add. On a target that is not a CPU,
    which they know nothing of, it is the base alone.
    """

    forest: Forest
    features: PortableFeatures
    share: float = 0.5  # of the shares 0.5 and 1 the better one, left out family by family
    base: ScoreByTarget = field(default_factory=ScoreByTarget)

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        return self._both(variant, rows)[0]

    def with_base(self, parts: Sequence[Part]) -> tuple[Scores, Scores]:
        """The scores, and those of the base, for the rows of several variants."""
        both = [self._both(v, rows) for v, rows in parts if len(rows)]
        if not both:
            return np.zeros(0), np.zeros(0)
        own, base = zip(*both, strict=True)
        return np.concatenate(own), np.concatenate(base)

    def _both(self, variant: Variant, rows: Matrix) -> tuple[Scores, Scores]:
        if variant.task.target.kind != "cpu":
            scores = self.base.predict(variant, rows)
            return scores, scores
        x, scores = self.features.with_score(variant, rows, self.base)
        added = self.forest.predict(x.reshape(-1, x.shape[2])).reshape(x.shape[:2])
        return scores + self.share * added.sum(axis=1).astype(np.float64), scores


@checks_given(error=TuneError)
@dataclass(frozen=True, eq=False)
class LearnedModel:
    """What `ts.learn` returns and `ts.load_cost_model` reads: trees fitted to measurements of other
    tasks. They choose the first batch. Then `local` is fitted to the task's own
    measurements and corrects them; their share is halved after `fading` of these.

    `about` says what it was trained on.

    Example:

        model = ts.load_cost_model("mine.model")
        ts.tune(func, strategy=ts.Evolution(cost_model=model))
    """

    score: LearnedScore
    local: Gbdt = field(default_factory=Gbdt)
    fading: float = 256.0
    about: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        told = ", ".join(f"{k} {v}" for k, v in self.about)
        return f"LearnedModel({len(self.score.forest.columns)} trees, {told})"

    def fit(self, measurements: Sequence[Measurement]) -> Predictor:
        """A predictor that has learned from these measurements too."""
        share = self.score.share * self.fading / (self.fading + len(measurements))
        base = replace(self.score, share=share)
        return replace(self.local, base=base).fit(measurements) or base

    @checks_given(error=TuneError)
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trees to a file, which `ts.load_cost_model` reads on any machine. The settings
        of `local` are not written.
        """
        forest, head = self.score.forest, self._head()
        out = io.BytesIO()
        np.savez_compressed(
            out, head=np.frombuffer(json.dumps(head).encode(), np.uint8),
            columns=forest.columns, thresholds=forest.thresholds, leaves=forest.leaves,
        )  # fmt: skip
        write_whole(Path(path), out.getvalue())

    def _head(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "digest": FEATURES_DIGEST,
            "features": list(self.score.features.names),
            "about": dict(self.about),
        }


@checks_given(error=TuneError)
def load_cost_model(path: str | os.PathLike[str]) -> LearnedModel:
    """The cost model in a file that `LearnedModel.save` or `tilesmith learn` wrote.

    Example:

        strategy = ts.Evolution(cost_model=ts.load_cost_model("mine.model"))
    """
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise TuneError(f"{path} cannot be read: {e.strerror or e}") from None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            head = json.loads(bytes(file["head"]))
            arrays = [file[name] for name in ("columns", "thresholds", "leaves")]
        known = head["format"] == _FORMAT
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
        known = False
    if not known:
        raise TuneError(f"{path} is not a cost model that `tilesmith learn` wrote, or is damaged")
    if head.get("version") != _VERSION:
        raise TuneError(
            f"{path} is a cost model of version {head.get('version')!r}; this library reads "
            f"version {_VERSION}: train it again with tilesmith learn"
        )
    if head.get("digest") != FEATURES_DIGEST:
        raise TuneError(
            f"{path} was trained on the features of another version of this library, whose numbers "
            "mean something else: train it again with tilesmith learn"
        )
    try:
        columns, thresholds, leaves = arrays
        names = tuple(str(name) for name in head["features"])
        about = tuple((str(k), str(v)) for k, v in head["about"].items())
        forest = Forest(
            columns.astype(np.int16), thresholds.astype(np.float32), leaves.astype(np.float32)
        )
        features = PortableFeatures(names)
        if forest.width > len(names) + 1:
            raise TuneError("its trees read features that it does not name")
    except (TuneError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise TuneError(f"{path} is a damaged cost model: {e}") from None
    return LearnedModel(LearnedScore(forest, features), about=about)


@checks_given(error=TuneError)
def learn(
    records: Sequence[Measurement],
    *,
    rounds: int = 120,
    depth: int = 4,
    learning_rate: float = 0.1,
    width: int = _WIDTH,
    most: int = 50_000,
) -> LearnedModel:
    """Trains a cost model on measurements of CPU tasks, such as all of a database: `rounds` trees
    of `depth` levels, which read the `width` features that gain most. Of more than `most`
    measurements, the fastest half and a random sample of the others are used.

    Example:

        records = [m for t in db.tasks() for m in db.of(t.task)]
        ts.learn(records).save("mine.model")
    """
    own = [m for m in records if m.candidate.task.target.kind == "cpu"]
    if len(own) < FEWEST:
        raise TuneError(
            f"{len(own)} measurements of CPU tasks are too few to learn from; give at least "
            f"{FEWEST}"
        )
    from tilesmith.search.boosting import boost  # loads XGBoost

    groups = bounded(groups_of(own), most, np.random.default_rng(0))
    if len({y for g in groups for y in g.labels}) < 2:
        raise TuneError("nothing can be learned from these: none is faster than others")
    programs = programs_of(groups, PortableFeatures(), ScoreByTarget())
    train = partial(
        boost, test=None, loss="rank", rounds=rounds, depth=depth, learning_rate=learning_rate,
        sample=0.7, patience=0, threads=1, seed=0,
    )  # fmt: skip
    gains = train(programs).get_score(importance_type="total_gain")
    score = len(PORTABLE)  # the last column, which is always kept
    ranked = sorted((k for f in gains if (k := int(f[1:])) < score), key=lambda k: -gains[f"f{k}"])
    columns = sorted(ranked[:width])
    features = PortableFeatures(tuple(PORTABLE[k] for k in columns))
    kept = np.ascontiguousarray(programs.features[:, [*columns, score]])
    booster = train(replace(programs, features=kept))
    tasks = {m.candidate.task.key: m.candidate.task for m in own}
    machines = sorted({t.target.label for t in tasks.values()})
    about = (
        ("measurements", str(len(own))),
        ("tasks", str(len(tasks))),
        ("machines", ", ".join(machines)),
    )
    return LearnedModel(LearnedScore(Forest.of(booster), features), about=about)
