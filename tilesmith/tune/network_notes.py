"""Stores which tasks a run of tuning networks has, and how often each network runs them."""

from __future__ import annotations

import time
from contextlib import suppress

from tilesmith.base.errors import RecordsError
from tilesmith.records.database import Database
from tilesmith.records.networks import NetworkUse, store_network_uses
from tilesmith.tune.network_run import NetworkProgress, NetworkRun


class NetworkNotes:
    """An observer. A task is noted when it has a measurement, and again if its weights change."""

    def __init__(self, run: NetworkRun, database: Database) -> None:
        self._run, self._database = run, database
        self._started = time.time() - run.seconds
        # Reports read the state of a task under the names of its first statement.
        self._first = {s.key: s.task for s in database.tasks()}
        self._noted: dict[int, tuple[int, ...]] = {}

    def __call__(self, progress: NetworkProgress) -> None:
        for k, (t, tuner) in enumerate(zip(self._run.tasks, self._run.tuners, strict=True)):
            old = self._noted.get(k)
            if old == t.weights or not (tuner.trials or tuner.known):
                continue
            if old is None and not t.weight:
                continue
            uses = [
                NetworkUse(name, weight, self._started, tuner.run.key)
                for name, weight in zip(self._run.networks, t.weights, strict=True)
                if weight
            ]
            # Measurements go to the same place: if it is gone, the run ends because of them.
            with suppress(RecordsError):
                task = self._first.get(t.task.key, t.task)
                store_network_uses(self._database, task, self._started, uses)
            self._noted[k] = t.weights
