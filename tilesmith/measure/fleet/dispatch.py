"""Dispatcher: hands candidates out to the devices of a fleet, in a thread of its own.

A device has at most two requests of a tuner: one that it measures, and one that it builds
meanwhile. So tuners that share a device take turns, and a slow device gets less to do than a fast
one. What a lost device had not answered is handed out again. Later answers to it are ignored, so
that no candidate is measured twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Any

from tilesmith.base.errors import MeasureError
from tilesmith.base.waits import LOGGER
from tilesmith.measure.fleet.device import Device, Job, Patience, TunerBuilds, for_whom
from tilesmith.measure.fleet.messages import (
    UNREADABLE,
    Settings,
    read_measurement,
    write_request,
)
from tilesmith.measure.fleet.offer import Offer
from tilesmith.measure.fleet.pool import Answer, Lost, Pool
from tilesmith.task.task import Candidate, Failure, Measurement, Task

_TICK = 0.02  # seconds between two looks for new candidates
_POLL_SECONDS = 1.0  # how long a device waits for a measurement before it answers that it has none
_MOST = 8  # candidates in a request
_REQUESTS = 2  # at most, that a device has of this tuner
_BAN_SECONDS = 60.0  # for which a device that did not answer is not used


class Dispatcher:
    """`results` gets every measurement, and at the end perhaps the error that ended it all."""

    def __init__(
        self, pool: Pool, settings: Settings, patience: Patience, build: str = "worker"
    ) -> None:
        self._pool, self._settings, self._patience, self._where = pool, settings, patience, build
        self._builds = TunerBuilds(settings.timeout, settings.memory_nbytes)
        self._for: set[str] = set()  # devices for which the tuner compiles
        self._building: dict[str, Job] = {}  # by key
        self._inbox: SimpleQueue[Job] = SimpleQueue()
        self.results: SimpleQueue[Measurement | MeasureError] = SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._devices: dict[str, Device] = {}
        self._listed: dict[str, Offer] = {}
        self._unread: dict[str, str] = {}  # why, by device
        self._connected = False  # whether the pool has said which devices there are
        self._banned: dict[str, float] = {}  # until when
        self._tickets: dict[int, tuple[str, str]] = {}  # device, and number of a request or ""
        self._alone: float | None = None  # since when there is no device for what is waiting
        self._measured: dict[str, Candidate] = {}
        self.trouble = ""  # why nothing is measured
        self._alone_connected: float | None = None  # the same as `_alone`, of a cluster that is up
        self._is_told = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="tilesmith-fleet", daemon=True)
        self._thread.start()

    @property
    def devices(self) -> int:
        return len(self._devices)

    @property
    def capacity(self) -> int:
        """How many candidates keep all devices busy."""
        return _REQUESTS * _MOST // 2 * max(1, len(self._devices))

    def submit(self, candidate: Candidate) -> None:
        self._inbox.put(Job(candidate))

    def withdraw(self) -> None:
        """Forgets what was not handed out yet."""
        self._inbox.put(_WITHDRAW)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                self._receive_jobs()
                self._note_devices()
                self._hand_out()
                self._poll()
                for answer in self._pool.wait(_TICK):
                    self._take(answer)
                self._notice_silence()
            for device in self._devices.values():
                self._pool.call(device.name, "leave", device.tuner)
        except MeasureError as error:
            self.results.put(error)
        except Exception as error:
            self.results.put(MeasureError(f"the fleet cannot be used: {error!r}"))
        finally:
            self._pool.close()
            self._builds.close()

    def _receive_jobs(self) -> None:
        while True:
            try:
                job = self._inbox.get_nowait()
            except Empty:
                break
            if job is _WITHDRAW:
                self._waiting.clear()
                self._building.clear()
                self._builds.clear()
            else:
                self._waiting.append(job)
        for candidate, outcome in self._builds.finished():
            job = self._building.pop(candidate.key)
            job.is_building = False
            if isinstance(outcome, Failure):
                self._waiting.remove(job)
                self._answer(Measurement(candidate, failure=outcome))
            else:
                job.artifact = outcome

    def _note_devices(self) -> None:
        found = self._pool.devices()
        if found is not None:
            self._connected = True
            self._listed = dict(self._read(found))
            for name in self._devices.keys() - self._listed.keys():
                self._lose(name, "it has left the fleet")
        now = time.monotonic()
        for name, offer in self._listed.items():
            if name not in self._devices and self._banned.get(name, 0.0) <= now:
                self._devices[name] = Device(name, offer)

    def _read(self, found: Mapping[str, str]) -> Iterator[tuple[str, Offer]]:
        self._unread.clear()
        for name, text in found.items():
            try:
                yield name, Offer.from_json(text)
            except MeasureError as error:
                self._unread[name] = str(error)

    def _hand_out(self) -> None:
        tasks = dict.fromkeys(job.candidate.task for job in self._waiting)
        if tasks:
            self._for = for_whom(self._where, self._devices.values())
        for task in tasks:
            able = [d for d in self._devices.values() if self._obstacle(d, task) is None]
            if not able:
                self._wait_for_one(task)
                continue
            self._end_waiting()
            theirs = [d for d in able if d.name in self._for]
            others = [d for d in able if d.name not in self._for]
            self._build(task, len(theirs))
            self._share(self._idle(task, compiled=True), theirs)
            # What is compiled and not taken may be compiled again: the devices may have changed.
            self._share(self._idle(task, compiled=False) or self._idle(task, True), others)
        if not tasks:
            self._end_waiting()

    def _end_waiting(self) -> None:
        self._alone = self._alone_connected = None
        self.trouble = ""

    def _idle(self, task: Task, compiled: bool) -> list[Job]:
        """What waits for a device."""
        own = [j for j in self._waiting if j.candidate.task == task and not j.is_building]
        return [job for job in own if (job.artifact is not None) == compiled]

    def _build(self, task: Task, devices: int) -> None:
        """Begins to compile as many as keep the devices busy that are sent code."""
        present = len(self._building) + len(self._idle(task, compiled=True))
        room = max(0, 2 * _REQUESTS * _MOST * devices - present)
        more = self._idle(task, compiled=False)[:room]
        for job in more:
            job.is_building = True
            self._building[job.candidate.key] = job
        if more:
            self._builds.begin(job.candidate for job in more)

    def _share(self, jobs: list[Job], devices: Sequence[Device]) -> None:
        size = min(_MOST, max(1, -(-len(jobs) // (_REQUESTS * max(1, len(devices))))))
        while jobs and devices:
            device = min(devices, key=lambda d: (len(d.requests), d.load))
            if len(device.requests) >= _REQUESTS:
                break
            self._send(device, jobs[:size])
            jobs = jobs[size:]

    def _obstacle(self, device: Device, task: Task) -> str | None:
        return device.obstacle(task, needs_code=self._where == "tuner")

    def _wait_for_one(self, task: Task) -> None:
        """`trouble` is why nothing is measured; it is told once, after some seconds."""
        now = time.monotonic()
        self._alone = now if self._alone is None else self._alone
        self.trouble = self._nobody(task) if self._connected else _NO_CLUSTER
        if not self._is_told and now - self._alone >= _TELL_SECONDS:
            self._is_told = True
            LOGGER.warning("%s", self.trouble)
        if not self._connected:
            self._alone_connected = None
            return
        if self._alone_connected is None:
            self._alone_connected = now
        if now - self._alone_connected >= self._patience.first:
            raise MeasureError(self.trouble)

    def _nobody(self, task: Task) -> str:
        t = task.target
        why = {str(d.offer): self._obstacle(d, task) for d in self._devices.values()}
        offers = "; ".join(
            f"{name}: {text}"
            for name, text in {**why, **self._unread, **self._pool.troubles()}.items()
        )
        return (
            f"no worker of the fleet measures {task.func.name} for {t.arch} {t.model or t.cpu}: "
            f"{offers or 'there is no worker'}. Start one there with tilesmith worker"
        )

    def _send(self, device: Device, jobs: list[Job]) -> None:
        number = token_hex(8)
        own = {job.candidate.key: job for job in jobs}
        chosen = {id(job) for job in jobs}
        self._waiting = deque(job for job in self._waiting if id(job) not in chosen)
        device.requests[number] = own
        built = own.items() if device.offer.accepts_code else ()
        artifacts = {key: job.artifact for key, job in built if job.artifact is not None}
        text, code = write_request(
            device.tuner, number, self._settings, [job.candidate for job in own.values()], artifacts
        )
        ticket = self._pool.call(device.name, "submit", text, code)
        device.submitted[number] = time.monotonic()
        self._tickets[ticket] = device.name, number

    def _poll(self) -> None:
        """Every device that has something to do has one call that waits for its answers."""
        for device in self._devices.values():
            if device.requests and device.asked is None:
                device.asked = time.monotonic()
                ticket = self._pool.call(device.name, "collect", device.tuner, _POLL_SECONDS)
                self._tickets[ticket] = device.name, ""

    def _take(self, answer: Answer) -> None:
        name, number = self._tickets.pop(answer.ticket, ("", ""))
        device = self._devices.get(name)
        if device is None:
            return
        if isinstance(answer.value, Lost):
            self._lose(name, answer.value.why)
        elif number:
            if device.submitted.pop(number, None) is not None and not answer.value:
                device.taken[number] = time.monotonic()
            elif answer.value:
                self._refused(device, number, str(answer.value))
        else:
            asked, device.asked = device.asked, None
            try:
                answers = json.loads(answer.value)
                for data in answers["answers"]:
                    self._take_one(device, data)
                self._compare(device, asked or 0.0, answers["has"])
                if answers["hangs"]:
                    self._ban(device, str(answers["hangs"]))
            except UNREADABLE as error:
                self._ban(device, f"its answer cannot be read: {error}")

    def _compare(self, device: Device, asked: float, has: Sequence[str]) -> None:
        """Hands out again what a device had taken before it was asked, and does not have."""
        for number, since in list(device.taken.items()):
            if since < asked and number not in has:
                del device.taken[number]
                self._again(device.requests.pop(number, {}), "", blamed=False)

    def _take_one(self, device: Device, data: dict[str, Any]) -> None:
        number = data["number"]
        jobs = device.requests.get(number)
        if jobs is None:  # of a request that was handed out again
            return
        if "error" in data or "done" in data:
            del device.requests[number]
            device.taken.pop(number, None)
            why = str(data.get("error", "it has not answered"))
            self._again(jobs, why, broken="error" in data)
            return
        key = data["key"]
        job = jobs.pop(key, None)
        candidate = self._measured.get(key) if job is None else job.candidate
        if candidate is not None:  # else a failure of what another tuner measured
            self._answer(read_measurement(data, candidate, str(device.offer)))

    def _answer(self, m: Measurement) -> None:
        self._measured[m.candidate.key] = m.candidate
        self.results.put(m)

    def _refused(self, device: Device, number: str, why: str) -> None:
        for job in device.requests.pop(number, {}).values():
            device.refuses[job.candidate.task.statement] = why
            self._waiting.appendleft(job)

    def _notice_silence(self) -> None:
        now, limit = time.monotonic(), self._patience.answer
        for device in list(self._devices.values()):
            if now - device.waits_since(now) > limit:
                self._ban(device, f"it did not answer for {limit:g} s")

    def _ban(self, device: Device, why: str) -> None:
        """It may come back later."""
        self._banned[device.name] = time.monotonic() + _BAN_SECONDS
        if device.name in self._devices:
            self._lose(device.name, why)

    def _lose(self, name: str, why: str) -> None:
        """Hands out again what a device had. Only what it was measuring may be to blame."""
        device = self._devices.pop(name)
        if self._banned.get(name, 0.0) <= time.monotonic():  # else it may come back
            self._listed.pop(name, None)
        for place, jobs in enumerate(device.requests.values()):
            self._again(jobs, f"{device.offer}: {why}", blamed=place == 0)

    def _again(
        self, jobs: dict[str, Job], why: str, blamed: bool = True, broken: bool = False
    ) -> None:
        for job in reversed(jobs.values()):
            job.losses += blamed
            if job.losses <= self._patience.losses:
                self._waiting.appendleft(job)
            elif broken:  # it is not a candidate that has failed, but measuring
                raise MeasureError(why)
            else:
                text = f"{job.losses} workers were lost while they measured it; the last: {why}"
                self._answer(Measurement(job.candidate, failure=Failure("error", text)))


_WITHDRAW: Any = object()
_TELL_SECONDS = 4.0  # without a worker, after which that is told
_NO_CLUSTER = (
    "the fleet's Ray cluster has not answered yet; is its head running at that address and port, "
    "and is this machine a node of it (ray start --address)?"
)
