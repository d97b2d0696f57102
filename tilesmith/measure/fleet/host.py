"""DeviceHost: serves one device of a worker to the tuners of a fleet.

It runs in a process of its own on the worker's machine. All arguments and answers of its methods
are text and bytes. One thread measures, so a device is never used by two tuners at once; requests
of several tuners are served in turns.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilesmith.base.errors import MeasureError
from tilesmith.measure.fleet.messages import (
    Request,
    Settings,
    read_request,
    write_measurement,
)
from tilesmith.measure.fleet.offer import local_target, offer_of, why_not
from tilesmith.measure.local import LocalMeasurer, LocalRun
from tilesmith.task.task import Candidate, Measurement, Task

_GONE_SECONDS = 120.0  # a tuner that has asked for nothing this long is gone
_IDLE_SECONDS = 300.0  # processes and arrays are freed after this long without a request


@dataclass(slots=True)
class _Tuner:
    requests: deque[Request] = field(default_factory=deque)
    answers: list[dict[str, Any]] = field(default_factory=list)
    seen: float = field(default_factory=time.monotonic)


def _local(settings: Settings) -> LocalMeasurer:
    return LocalMeasurer(
        timeout=settings.timeout, cold=settings.cold, memory_nbytes=settings.memory_nbytes,
        confirm=settings.confirm, seed=settings.seed, rules=settings.rules,
    )  # fmt: skip


class DeviceHost:
    """`device` is "cpu", or as "cuda:0". `measurer` makes what measures here from a tuner's
    settings; tests give their own.
    """

    def __init__(self, device: str = "cpu", measurer: Callable[[Settings], Any] = _local) -> None:
        self._offer = offer_of(device)
        self._measurer = measurer
        self._tuners: dict[str, _Tuner] = {}  # the one served longest ago first
        self._changed = threading.Condition()
        self._run: LocalRun | None = None
        self._settings: Settings | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def describe(self) -> str:
        """The offer, as JSON."""
        return self._offer.to_json()

    def submit(self, text: str, code: Sequence[bytes]) -> str:
        """Takes a request. The answer is empty, or says why it is refused."""
        try:
            request = read_request(text, code)
        except MeasureError as error:
            return f"{self._offer} refuses a request: {error}"
        why = why_not(request.candidates[0].task.target, self._offer)
        if why is None and request.compiled and not self._offer.accepts_code:
            why = "it runs only what it has compiled itself (see tilesmith worker --accept-code)"
        if why is not None:
            return f"{self._offer} refuses {request.candidates[0].task.func.name}: {why}"
        with self._changed:
            if self._closed:
                return f"{self._offer} is closed"
            self._tuners.setdefault(request.tuner, _Tuner()).requests.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="device", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return ""

    def collect(self, tuner: str, seconds: float) -> str:
        """The answers to a tuner's requests since its last call, as a JSON list, as soon as there
        are any, and after `seconds` at the latest.
        """
        until = time.monotonic() + seconds
        with self._changed:
            own = self._tuners.setdefault(tuner, _Tuner())
            own.seen = time.monotonic()
            while not own.answers and not self._closed and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
            answers, own.answers, own.seen = own.answers, [], time.monotonic()
        return json.dumps(answers)

    def leave(self, tuner: str) -> str:
        """Forgets the requests of a tuner; the one being measured is finished."""
        with self._changed:
            self._tuners.pop(tuner, None)
        return ""

    def close(self) -> str:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            run, thread = self._run, self._thread
        if run is not None:
            run.close()
        if thread is not None:
            thread.join()
        return ""

    def _serve(self) -> None:
        while True:
            request = self._next()
            if request is None:
                return
            answer = self._answerer(request)
            try:
                self._measure(request, answer)
            except Exception as error:  # of measuring, not of a candidate; the tuner hears of it
                text = f"{self._offer}: {error}" if str(error) else f"{self._offer}: {error!r}"
                answer({"number": request.number, "error": text})
            else:
                answer({"number": request.number, "done": True})

    def _next(self) -> Request | None:
        """The next request, of each tuner in turn; None when this is closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                for name, tuner in list(self._tuners.items()):
                    if now - tuner.seen > _GONE_SECONDS:
                        del self._tuners[name]
                    elif tuner.requests:
                        self._tuners[name] = self._tuners.pop(name)  # to the end
                        return tuner.requests.popleft()
                if not self._changed.wait(_IDLE_SECONDS) and self._run is not None:
                    self._run.close()
                    self._run = None
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
        if self._run is not None and self._settings != request.settings:
            self._run.close()
            self._run = None
        if self._run is None:
            self._settings = request.settings
            self._run = self._measurer(request.settings).open(candidates[0].task)
        run = self._run
        sent: set[str] = set()

        def report(measured: Sequence[Measurement]) -> None:
            for m in measured:
                sent.add(m.candidate.key)
                answer(write_measurement(request.number, m))

        following = self._following()
        if isinstance(run, LocalRun):
            both = [request] if following is None else [request, following]
            run.give({key: code for r in both for key, code in r.compiled.items()})
        run.report_to(report)
        measured = run.measure(
            candidates, lambda: [] if following is None else self._own(following)
        )
        report([m for m in measured if m.candidate.key not in sent])

    def _following(self) -> Request | None:
        """The request that is next, if it is here already: its candidates are built ahead."""
        with self._changed:
            waiting = [t.requests[0] for t in self._tuners.values() if t.requests]
        return waiting[0] if waiting else None

    def _own(self, request: Request) -> list[Candidate]:
        """The candidates for the device of this host. A key has no number of a GPU in it."""
        task = request.candidates[0].task
        here = Task(task.func, local_target(task.target, self._offer.device))
        return [replace(c, task=here) for c in request.candidates]
