"""What `tune_model` and `tune_tasks` have in common: a measurer that starts while something else is
prepared, and a run of several tasks with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tilesmith.base.errors import MeasureError, RecordsError, TilesmithError, TuneError
from tilesmith.base.process import noticed
from tilesmith.measure.protocol import Measurer, Measuring, stream_of
from tilesmith.task.task import Task
from tilesmith.tune.network_run import NetworkRun
from tilesmith.tune.objectives import early_stopping, geomean_speedup, latency_targets
from tilesmith.tune.scheduler import gradient, round_robin

_MAKERS = (gradient, round_robin, latency_targets, geomean_speedup, early_stopping)


class Opened:
    """A measurer whose processes start, and whose oracle evaluates the first task, while drafts are
    built. What keeps it from that is raised when it is used.
    """

    def __init__(self, measurer: Measurer, first: Task | None) -> None:
        self._stack = ExitStack()
        self._run: Measuring | None = None
        self._error: MeasureError | None = None
        if first is None:
            return
        try:
            self._run = self._stack.enter_context(measurer.open(first))
            stream_of(self._run).prepare(first)
        except MeasureError as error:
            self._error = error

    def __enter__(self) -> Measuring:
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def close(self) -> None:
        self._stack.close()


def run_opened(
    run: NetworkRun, opened: Opened, at_end: Callable[[Measuring], None] | None = None
) -> tuple[bool, TilesmithError | None]:
    """Runs it; whether it was interrupted, and the error of the measurer or the database that ended
    it. That, and tasks that cannot be tuned, are warnings. `at_end` is called before the measurer
    closes, however the run ended.
    """
    if not run.tuners:
        return False, None
    try:
        with opened as measuring, noticed() as interrupts:
            try:
                run.run(measuring, interrupts)
            finally:
                if at_end is not None:
                    at_end(measuring)
    except KeyboardInterrupt:
        return True, None
    except (MeasureError, RecordsError) as error:
        warnings.warn(f"tuning of {', '.join(run.networks)} ended early: {error}", stacklevel=4)
        return False, error
    for k, why in run.errors.items():
        name = run.tuners[k].task.func.name
        warnings.warn(f"{name} is not tuned: {why}", stacklevel=4)
    return False, None


def require_made(part: Any, who: str) -> None:
    """ts.gradient and the like make a scheduler or an objective; they are none themselves."""
    if isinstance(part, type) or part in _MAKERS:
        raise TuneError(f"{who} is given {part.__name__}; call it: {part.__name__}(...)")
