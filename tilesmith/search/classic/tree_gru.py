"""TreeGru: AutoTVM's neural cost model, a gated recurrent network over a program's loop tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from importlib.util import find_spec
from typing import Literal

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.search import checked
from tilesmith.search.classic.context import tree_of
from tilesmith.search.protocol import Predictor
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.training import groups_of
from tilesmith.task.task import Measurement

_FEWEST = 8  # fewer measurements are not learned from


@checks_given(error=TuneError)
@dataclass(frozen=True)
class TreeGru:
    """The loss "rank" is pairwise within a task; "regression" is the squared error of log2 of the
    speed relative to the fastest. Either way the network corrects the prediction of `base`. A share
    `held_out` of the measurements is kept for validation. Training stops after `patience` epochs
    without gain, or after `max_seconds`. `device` is what PyTorch computes on: "auto" is CUDA if
    PyTorch has it, else the CPU. Unless the time limit ends it, the same measurements and seed give
    the same predictor on a CPU, and nearly the same on CUDA.
    """

    hidden: int = 64
    slots: int = 4  # of the memory that sums up the states of all nodes
    epochs: int = 60
    learning_rate: float = 3e-3
    loss: Literal["rank", "regression"] = "rank"
    batch: int = 64
    held_out: float = 0.15
    patience: int = 10  # epochs without gain
    max_seconds: float = 30.0
    device: str = "auto"
    base: Predictor = field(default_factory=ScoreByTarget)
    seed: int = 0

    def __post_init__(self) -> None:
        checked.require_counts(self, 1, "hidden", "slots", "epochs", "batch")

    def fit(self, measurements: Sequence[Measurement]) -> Predictor | None:
        """A predictor that has learned from the measurements; None if there are too few."""
        if find_spec("torch") is None:
            raise TuneError(
                "TreeGru needs PyTorch, which is not installed: pip install 'tilesmith[torch]'"
            )
        groups = groups_of(measurements)
        labels = np.concatenate([g.labels for g in groups]) if groups else np.zeros(0)
        if len(labels) < _FEWEST or labels.min() == labels.max():
            return None
        # Imported here because loading PyTorch takes seconds.
        from tilesmith.search.classic.tree_network import Examples, Training, device_of, train

        examples = [
            Examples(
                tree_of(g.variant), g.rows, self.base.predict(g.variant, g.rows), g.labels,
                g.variant.task.key,
            )
            for g in groups
        ]  # fmt: skip
        settings = Training(
            hidden=self.hidden, slots=self.slots, epochs=self.epochs,
            learning_rate=self.learning_rate, loss=self.loss, batch=self.batch,
            held_out=self.held_out, patience=self.patience, max_seconds=self.max_seconds,
            seed=self.seed, device=device_of(self.device),
        )  # fmt: skip
        return train(settings, self.base, examples)
