"""DeviceHost: serves one device of a worker to the tuners of a fleet.

It runs in a process of its own on the worker's machine. All arguments and answers of its methods
are text and bytes. One thread measures, so a device is never used by two tuners at once. The next
request is that of the tuner which had the device for the least time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import field, replace
from functools import partial
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.codegen.llvm.compiler import host_cpu
from tilesmith.measure.fleet.device import NO_CODE
from tilesmith.measure.fleet.messages import (
    Request,
    Settings,
    read_request,
    write_measurement,
)
from tilesmith.measure.fleet.offer import PARTS, build_rate, local_target, offer_of, why_not
from tilesmith.measure.local import LocalMeasurer, LocalRun
from tilesmith.measure.protocol import stream_of
from tilesmith.schedule.trace import named_parts
from tilesmith.task.task import Candidate, Task

_GONE_SECONDS = 120.0  # a tuner that has asked for nothing this long is gone
_IDLE_SECONDS = 300.0  # processes and arrays are freed after this long without a request
_RUNS = 2  # with settings of different tuners, whose processes are kept
# A device hangs if it has measured nothing for longer than its candidates may take. Before the
# first one of a task, the oracle evaluates it.
_SLACK_SECONDS, _FIRST_SECONDS = 60.0, 660.0


@dataclass(slots=True)
class _Tuner:
    requests: deque[Request] = field(default_factory=deque)
    answers: list[dict[str, Any]] = field(default_factory=list)
    used: float = 0.0  # seconds of the device
    seen: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Watch:
    """On a request that is being measured."""

    request: Request
    allowed: float  # seconds without a measurement
    progress: float = field(default_factory=time.monotonic)

    @property
    def late(self) -> float:
        """Seconds without a measurement, if they are too many; else 0."""
        quiet = time.monotonic() - self.progress
        return quiet if quiet > self.allowed else 0.0


def _local(settings: Settings) -> LocalMeasurer:
    return LocalMeasurer(
        timeout=settings.timeout, cold=settings.cold, memory_nbytes=settings.memory_nbytes,
        confirm=settings.confirm, seed=settings.seed, rules=settings.rules,
    )  # fmt: skip


class DeviceHost:
    """`device` is "cpu", or as "cuda:0". `measurer` makes what measures here from a tuner's
    settings; tests give their own. The parts that this worker has are named in its environment:
    no tuner can make it import anything.
    """

    def __init__(self, device: str = "cpu", measurer: Callable[[Settings], Any] = _local) -> None:
        offer = offer_of(device)
        self._offer = replace(offer, build_rate=build_rate(), processor=host_cpu())
        self._measurer = measurer
        self.slack, self.first = _SLACK_SECONDS, _FIRST_SECONDS
        named = os.environ.get(PARTS)
        self._parts = named_parts(named) if named else None
        self._tuners: dict[str, _Tuner] = {}
        self._changed = threading.Condition()
        self._runs: dict[Settings, Any] = {}  # the last used at the end
        self._known: set[str] = set()  # statements of tasks that were measured
        self._watch: _Watch | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def describe(self) -> str:
        """The offer, as JSON."""
        return self._offer.to_json()

    def submit(self, text: str, code: Sequence[bytes]) -> str:
        """Takes a request. The answer is empty, or says why it is refused."""
        try:
            request = read_request(text, code, self._parts)
        except MeasureError as error:
            return f"{self._offer} refuses a request: {error}"
        why = why_not(request.candidates[0].task.target, self._offer)
        if why is None and request.compiled and not self._offer.accepts_code:
            why = NO_CODE
        if why is not None:
            return f"{self._offer} refuses {request.candidates[0].task.func.name}: {why}"
        with self._changed:
            if self._closed:
                return f"{self._offer} is closed"
            self._tuner(request.tuner).requests.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="device", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return ""

    def _tuner(self, name: str) -> _Tuner:
        """A new one has had the device as long as the one that had it least: it gets its share of
        the time from now on, and no more.
        """
        own = self._tuners.get(name)
        if own is None:
            least = min((t.used for t in self._tuners.values()), default=0.0)
            own = self._tuners[name] = _Tuner(used=least)
        return own

    def collect(self, tuner: str, seconds: float) -> str:
        """A JSON object, as soon as there are answers, and after `seconds` at the latest: the
        `answers` to a tuner's requests since its last call, the numbers of the requests that it
        still `has`, and why the device `hangs`, if it does.
        """
        until = time.monotonic() + seconds
        with self._changed:
            own = self._tuner(tuner)
            own.seen = time.monotonic()
            while not own.answers and not self._closed and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
            answers, own.answers, own.seen = own.answers, [], time.monotonic()
            watch = self._watch
            has = [r.number for r in own.requests]
            if watch is not None and watch.request.tuner == tuner:
                has.append(watch.request.number)
        return json.dumps({"answers": answers, "has": has, "hangs": self._hangs(watch)})

    def _hangs(self, watch: _Watch | None) -> str:
        late = 0.0 if watch is None else watch.late
        if watch is None or not late:
            return ""
        # What it waits for is ended, so that it may serve the next request.
        threading.Thread(target=self._close_runs, name="rescue", daemon=True).start()
        watch.progress = time.monotonic()
        name = watch.request.candidates[0].task.func.name
        return f"it has measured nothing of {name} for {late:.0f} s"

    def _close_runs(self) -> None:
        with self._changed:
            runs, self._runs = list(self._runs.values()), {}
        for run in runs:
            run.close()

    def leave(self, tuner: str) -> str:
        """Forgets the requests of a tuner; the one being measured is finished."""
        with self._changed:
            self._tuners.pop(tuner, None)
        return ""

    def close(self) -> str:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        self._close_runs()
        if thread is not None:
            thread.join(self.slack)
        return ""

    def _serve(self) -> None:
        while True:
            request = self._next()
            if request is None:
                return
            answer = self._answerer(request)
            began = time.monotonic()
            try:
                self._measure(request, answer)
            except Exception as error:  # of measuring, not of a candidate; the tuner hears of it
                text = f"{self._offer}: {error}" if str(error) else f"{self._offer}: {error!r}"
                end: dict[str, Any] = {"number": request.number, "error": text}
            else:
                end = {"number": request.number, "done": True}
            with self._changed:
                self._watch = None
                if (tuner := self._tuners.get(request.tuner)) is not None:
                    tuner.used += time.monotonic() - began
            answer(end)

    def _next(self) -> Request | None:
        """The next request; None when this is closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                for name, tuner in list(self._tuners.items()):
                    if now - tuner.seen > _GONE_SECONDS:
                        del self._tuners[name]
                waiting = [t for t in self._tuners.values() if t.requests]
                if waiting:
                    request = min(waiting, key=lambda t: t.used).requests.popleft()
                    statement = request.candidates[0].task.statement
                    allowed = self.slack + (len(request.candidates) + 2) * (
                        request.settings.timeout
                    )
                    if statement not in self._known:
                        allowed += self.first
                    self._watch = _Watch(request, allowed)
                    return request
                if not self._changed.wait(_IDLE_SECONDS):
                    self._close_runs()
        return None

    def _answerer(self, request: Request) -> Callable[[dict[str, Any]], None]:
        def answer(data: dict[str, Any]) -> None:
            with self._changed:
                tuner = self._tuners.get(request.tuner)
                if tuner is not None:  # it may have left
                    tuner.answers.append(data)
                    self._changed.notify_all()

        return answer

    def _measure(self, request: Request, answer: Callable[[dict[str, Any]], None]) -> None:
        candidates = self._own(request)
        task = candidates[0].task
        run = self._opened(request.settings, task)
        following = self._following()
        if isinstance(run, LocalRun):
            both = [request] if following is None else [request, following]
            run.give({key: code for r in both for key, code in r.compiled.items()})
        stream = stream_of(run)
        stream.submit(candidates)
        upcoming = None if following is None else partial(self._own, following)
        with closing(stream.results(task, None, upcoming, every=True)) as results:
            for m in results:
                if (watch := self._watch) is not None:
                    watch.progress = time.monotonic()
                answer(write_measurement(request.number, m))
        self._known.add(task.statement)

    def _opened(self, settings: Settings, task: Task) -> Any:
        """The run of a measurer with these settings. Those of two tuners are kept, because its
        processes take seconds to start.
        """
        with self._changed:
            run = self._runs.pop(settings, None)
            old = list(self._runs)[: max(0, len(self._runs) + 1 - _RUNS)]
            dropped = [self._runs.pop(s) for s in old]
        for other in dropped:
            other.close()
        if run is None:
            run = self._measurer(settings).open(task)
        with self._changed:
            if self._closed:
                run.close()
            self._runs[settings] = run
        return run

    def _following(self) -> Request | None:
        """The request that is next, if it is here already: its candidates are built ahead."""
        with self._changed:
            watch = self._watch
            current = None if watch is None else self._tuners.get(watch.request.tuner)
            waiting = [t for t in self._tuners.values() if t.requests]
            if not waiting:
                return None
            return min(waiting, key=lambda t: (t is current, t.used)).requests[0]

    def _own(self, request: Request) -> list[Candidate]:
        """The candidates for the device of this host. A key has no number of a GPU in it."""
        task = request.candidates[0].task
        here = replace(task, target=local_target(task.target, self._offer.device))
        return [replace(c, task=here) for c in request.candidates]
