"""SeveralGpus: measures candidates on several equal GPUs of this machine, one worker each.

Every GPU has its share of the candidates, by their key, and its own incumbent. Winners of the other
GPUs are measured again on the first one, side by side with its incumbent, so that what is believed
was compared on one device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self

from tilesmith.base.errors import MeasureError
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Judging, Listener, Measurer, Measuring, Reporting, Upcoming
from tilesmith.measure.this_machine import usable_cores
from tilesmith.task.task import Candidate, Measurement, Task

_NEAR = 1.1  # winners of other GPUs that are slower by more are not measured again


@dataclass(frozen=True)
class SeveralGpus:
    """`devices` are numbers as in ts.cuda(device); `each` measures on one of them. The cores of
    this machine are shared out among them.
    """

    devices: tuple[int, ...]
    each: Measurer = field(default_factory=LocalMeasurer)

    def open(self, task: Task) -> SeveralRuns:
        """Opens a run on each GPU; the task is the first that will be measured."""
        if task.target.kind == "cpu" or not self.devices:
            raise MeasureError("SeveralGpus measures on GPUs; name them, as devices=(0, 1)")
        runs: list[Measuring] = []
        try:
            for k, device in enumerate(self.devices):
                runs.append(self._measurer(k).open(_on(task, device)))
        except BaseException:
            for run in runs:
                run.close()
            raise
        return SeveralRuns(self.devices, runs)

    def _measurer(self, k: int) -> Measurer:
        count, cores = len(self.devices), usable_cores()
        if not isinstance(self.each, LocalMeasurer) or len(cores) < 2 * count:
            return self.each
        return replace(self.each, builder_cores=tuple(cores[k::count]))


def _on(task: Task, device: int) -> Task:
    """The same task, as equal GPUs have the same fingerprint."""
    return replace(task, target=replace(task.target, device=device))


class SeveralRuns:
    def __init__(self, devices: Sequence[int], runs: Sequence[Measuring]) -> None:
        self._devices, self._runs = tuple(devices), tuple(runs)
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        self._seen: set[str] = set()  # winners that the first GPU has measured

    def report_to(self, listener: Listener) -> None:
        self._listener = listener

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[Measurement]:
        until = None if seconds is None else time.monotonic() + seconds
        known = {c.key: c for c in candidates}
        ahead = cache(upcoming) if upcoming is not None else None
        proposing = threading.Lock()

        def coming(k: int) -> Upcoming | None:
            if ahead is None:
                return None

            def mine() -> list[Candidate]:
                with proposing:  # once, by whoever comes first
                    every = ahead()
                return self._share(every, k)

            return mine

        def report(measured: Sequence[Measurement]) -> None:
            if self._listener is not None:
                with self._lock:
                    self._listener([_as_asked(m, known) for m in measured])

        for run in self._runs:
            if isinstance(run, Reporting):
                run.report_to(report)
        shares = [self._share(candidates, k) for k in range(len(self._runs))]
        jobs = [
            lambda run=run, share=share, k=k: run.measure(share, coming(k), seconds)
            for k, (run, share) in enumerate(zip(self._runs, shares, strict=True))
        ]
        found = {m.candidate.key: m for ms in self._together(jobs) for m in ms}
        for task in {c.task.statement: c.task for c in candidates}.values():
            found |= {m.candidate.key: m for m in self._compare(task, until)}
        return [_as_asked(found[c.key], known) for c in candidates if c.key in found]

    def _share(self, candidates: Sequence[Candidate], k: int) -> list[Candidate]:
        count, device = len(self._runs), self._devices[k]
        mine = [c for c in candidates if int(c.key[:8], 16) % count == k]
        return [Candidate(_on(c.task, device), c.trace) for c in mine]

    def _together(self, jobs: Sequence[Callable[[], list[Measurement]]]) -> list[list[Measurement]]:
        """Runs all of them, each in a thread; raises the first error when all have ended."""
        results: list[list[Measurement]] = [[] for _ in jobs]
        errors: list[BaseException] = []

        def work(k: int) -> None:
            try:
                results[k] = jobs[k]()
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=work, args=(k,), name=f"tilesmith-gpu-{k}", daemon=True)
            for k in range(len(jobs))
        ]
        for t in threads:
            t.start()
        try:
            for t in threads:
                t.join()
        except BaseException:  # Ctrl-C: the workers must not go on
            self.close()
            raise
        if errors:
            raise errors[0]
        return results

    def _compare(self, task: Task, until: float | None) -> list[Measurement]:
        """Lets the first GPU measure winners of the others that it has not seen."""
        first = self.best(task)
        fresh = []
        for run in self._runs[1:]:
            other = run.best(task) if isinstance(run, Judging) else None
            if other is None or other.candidate.key in self._seen:
                continue
            if first is None or other.cost <= _NEAR * first.cost:
                fresh.append(Candidate(_on(task, self._devices[0]), other.candidate.trace))
        self._seen |= {c.key for c in fresh}
        left = None if until is None else until - time.monotonic()
        return self._runs[0].measure(fresh, None, left) if fresh else []

    def best(self, task: Task) -> Measurement | None:
        """The incumbent of the first GPU; of another one as long as that has none."""
        for run in self._runs:
            found = run.best(task) if isinstance(run, Judging) else None
            if found is not None:
                return replace(found, candidate=Candidate(task, found.candidate.trace))
        return None

    def close(self) -> None:
        for run in self._runs:
            run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _as_asked(m: Measurement, known: dict[str, Candidate]) -> Measurement:
    """With the candidate that was asked for, whose target names another device."""
    asked = known.get(m.candidate.key)
    return m if asked is None else replace(m, candidate=asked)
