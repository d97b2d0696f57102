"""SharedModel: one cost model for the searches of several tasks, fitted to the measurements of all
of them and to records of other tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace

from tilesmith.search.gbdt import Gbdt
from tilesmith.search.learned.model import LearnedModel
from tilesmith.search.protocol import Predictor, Strategy
from tilesmith.task.task import Measurement

_MOST = 3000  # programs in a fit, which then takes about a second
# Programs that the first fit needs: so many for each task, but no more than this in all. A model of
# fewer ranks programs worse than the analytic score does (docs/networks.md).
_FEWEST_EACH, _FEWEST = 24, 192
_REFIT_AFTER = 256  # new programs, about as many as are measured in ten to twenty seconds


class SharedModel:
    """A cost model that keeps what it is told by all searches that use it. Labels are speeds
    relative to the fastest program of the same task, so tasks of any size teach it.

    `records` are measurements of other tasks, from earlier runs. There is no predictor before the
    searches have measured `fewest` programs; half as many are enough if there are as many records,
    because a model of few programs ranks worse than the analytic score does. `start` predicts until
    then, if it is given. It is fitted again when the number of measurements has grown by the share
    `refit` or by 256; until then all searches use the last one.
    """

    def __init__(
        self,
        records: Sequence[Measurement] = (),
        *,
        model: Gbdt | None = None,
        fewest: int = _FEWEST,
        refit: float = 0.25,
        start: Predictor | None = None,
    ) -> None:
        self.model = Gbdt(most=_MOST) if model is None else model
        self.records = tuple(records)
        self.fewest, self.refit = fewest, refit
        self.fits = 0
        self._measured: dict[tuple[str, str], Measurement] = {}
        self._predictor = start
        self._fitted = 0  # measurements at the last fit

    def __repr__(self) -> str:
        return f"SharedModel({self.model.loss!r}, {len(self.records)} records of other tasks)"

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            self._measured[m.candidate.task.key, m.candidate.key] = m

    def fit(self, measurements: Sequence[Measurement]) -> Predictor | None:
        """The present model; a new one if enough was measured since the last fit."""
        self.tell(measurements)
        own = len(self._measured)
        if own + min(own, len(self.records)) < self.fewest:
            return self._predictor
        if own >= min(self._fitted * (1 + self.refit), self._fitted + _REFIT_AFTER):
            every = [*self.records, *self._measured.values()]
            self._predictor = self.model.fit(every) or self._predictor
            self._fitted = own
            self.fits += 1
        return self._predictor


def with_shared_model(
    strategy: Strategy, records: Sequence[Measurement], num_tasks: int
) -> Strategy:
    """The strategy with one model for the searches of so many tasks, if its cost model is a Gbdt or
    was loaded from a file. It starts from these records of other tasks.
    """
    own = getattr(strategy, "cost_model", None)
    start: Predictor | None = None
    if isinstance(own, LearnedModel):
        start = own.score
        own = replace(own.local, base=start)
    if not isinstance(own, Gbdt) or not is_dataclass(strategy):
        return strategy
    if all(f.name != "cost_model" for f in fields(strategy)):
        return strategy
    model = replace(own, most=max(own.most, _MOST))
    fewest = min(_FEWEST, _FEWEST_EACH * num_tasks)
    return replace(
        strategy, cost_model=SharedModel(records, model=model, fewest=fewest, start=start)
    )
