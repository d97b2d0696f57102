"""SeveralGpus: measures candidates on several equal GPUs of this machine, one worker each.

Every GPU has its share of the candidates, by their key, and its own incumbent. Winners of the other
GPUs are measured again on the first one, side by side with its incumbent, so that what is believed
was compared on one device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import field, replace
from functools import cache, partial
from queue import SimpleQueue

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.base.given import checks_given
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import (
    Measurer,
    Measuring,
    Results,
    StreamRun,
    Upcoming,
    Winner,
    given,
    stream_of,
)
from tilesmith.measure.this_machine import usable_cores
from tilesmith.task.task import Candidate, Measurement, Task

_NEAR = 1.1  # winners of other GPUs that are slower by more are not measured again


@checks_given
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


class SeveralRuns(StreamRun):
    capacity = 0

    def __init__(self, devices: Sequence[int], runs: Sequence[Measuring]) -> None:
        self._devices, self._runs = tuple(devices), tuple(runs)
        self._streams = [stream_of(run) for run in runs]
        self._submitted: list[Candidate] = []
        self._seen: set[str] = set()  # winners that the first GPU has measured

    def prepare(self, task: Task) -> None:
        for stream, device in zip(self._streams, self._devices, strict=True):
            stream.prepare(_on(task, device))

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._submitted = list(candidates)

    def left(self, task: Task) -> Sequence[Candidate]:
        return ()

    def results(
        self, task: Task, until: float | None = None, upcoming: Upcoming | None = None,
        every: bool = False,
    ) -> Results:  # fmt: skip
        """A thread for each GPU; the first error is raised when all have ended."""
        asked = {c.key: c for c in self._submitted if c.task == task}
        ahead = cache(upcoming) if upcoming is not None else None
        proposing = threading.Lock()
        found: SimpleQueue[Measurement | BaseException | None] = SimpleQueue()

        def coming(k: int) -> list[Candidate]:
            assert ahead is not None
            with proposing:  # once, by whoever comes first
                every = ahead()
            return self._share(every, k)

        def work(k: int) -> None:
            try:
                mine = None if ahead is None else partial(coming, k)
                for m in self._one(k, self._share([*asked.values()], k), task, until, mine):
                    found.put(m)
            except BaseException as error:
                found.put(error)
            found.put(None)

        for k in range(len(self._streams)):
            name = f"tilesmith-gpu-{k}"
            threading.Thread(target=work, args=(k,), name=name, daemon=True).start()
        busy, errors = len(self._streams), list[BaseException]()
        try:
            while busy:
                match found.get():
                    case None:
                        busy -= 1
                    case BaseException() as error:
                        errors.append(error)
                    case m:
                        yield _as_asked(m, asked)
        except GeneratorExit:
            self.close()
            raise
        except BaseException as error:  # Ctrl-C: the workers must not go on
            self.close()
            rest = [found.get_nowait() for _ in range(found.qsize())]
            yield from given(
                [_as_asked(m, asked) for m in rest if isinstance(m, Measurement)], error
            )
        if errors:
            raise errors[0]
        for m in self._compare(task, until):
            yield _as_asked(m, asked)

    def _one(
        self, k: int, candidates: Sequence[Candidate], task: Task, until: float | None,
        upcoming: Upcoming | None = None,
    ) -> Iterator[Measurement]:  # fmt: skip
        """Of one GPU. Each waits for all of its own."""
        stream = self._streams[k]
        stream.submit(candidates)
        with closing(stream.results(_on(task, self._devices[k]), until, upcoming, True)) as results:
            yield from results

    def _share(self, candidates: Sequence[Candidate], k: int) -> list[Candidate]:
        count, device = len(self._runs), self._devices[k]
        mine = [c for c in candidates if int(c.key[:8], 16) % count == k]
        return [Candidate(_on(c.task, device), c.trace) for c in mine]

    def _compare(self, task: Task, until: float | None) -> Iterator[Measurement]:
        """Lets the first GPU measure winners of the others that it has not seen."""
        first = self.best(task)
        fresh = []
        for stream in self._streams[1:]:
            other = stream.winner(task)
            if other is None or other.measurement.candidate.key in self._seen:
                continue
            if first is None or other.measurement.cost <= _NEAR * first.cost:
                trace = other.measurement.candidate.trace
                fresh.append(Candidate(_on(task, self._devices[0]), trace))
        self._seen |= {c.key for c in fresh}
        return self._one(0, fresh, task, until) if fresh else iter(())

    def best(self, task: Task) -> Measurement | None:
        winner = self.winner(task)
        return None if winner is None else winner.measurement

    def winner(self, task: Task) -> Winner | None:
        """The incumbent of the first GPU; of another one as long as that has none."""
        for stream in self._streams:
            if (found := stream.winner(task)) is not None:
                here = Candidate(task, found.measurement.candidate.trace)
                return replace(found, measurement=replace(found.measurement, candidate=here))
        return None

    def close(self) -> None:
        for run in self._runs:
            run.close()


def _as_asked(m: Measurement, known: dict[str, Candidate]) -> Measurement:
    """With the candidate that was asked for, whose target names another device."""
    asked = known.get(m.candidate.key)
    return m if asked is None else replace(m, candidate=asked)
