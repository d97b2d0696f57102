"""A fleet in this process, whose devices can be killed, hung and slowed down; and machines whose
kernels have simulated times.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import tilesmith as ts
from tilesmith.measure.fleet.host import DeviceHost
from tilesmith.measure.fleet.measurer import FleetMeasurer
from tilesmith.measure.fleet.messages import Settings
from tilesmith.measure.fleet.pool import Answer, Lost
from tilesmith.testing.measurers import FakeMeasurer, FakeRun


@dataclass
class Machine:
    """Counts what it has measured. A candidate takes `seconds`. It measures while `gate` is open; a
    run that is closed does not wait for it.
    """

    name: str
    seconds: float = 0.001
    gate: threading.Event | None = None
    measured: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)  # names of the functions, as they were measured

    def takes(self, candidate: ts.Candidate) -> None:
        """Called for each candidate, before it is counted."""

    def __call__(self, settings: Settings) -> MachineMeasurer:
        return MachineMeasurer(self)


class MachineMeasurer(FakeMeasurer):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        object.__setattr__(self, "machine", machine)

    def open(self, task: ts.Task) -> FakeRun:
        machine: Machine = self.__dict__["machine"]

        class Run(FakeRun):
            def _one(self, c: ts.Candidate) -> ts.Measurement:
                while machine.gate is not None and not machine.gate.wait(0.01):
                    if self._closed:
                        raise ts.MeasureError("this run of a measurer is closed")
                time.sleep(machine.seconds)
                machine.takes(c)
                machine.measured[c.key] += 1
                machine.order.append(c.task.func.name)
                return super()._one(c)

        return Run(self)


class LocalPool:
    """Hosts by name. The text of an offer can be changed on its way."""

    def __init__(self, hosts: Mapping[str, DeviceHost]) -> None:
        self.hosts = dict(hosts)
        self.dead: set[str] = set()
        self.hung: set[str] = set()
        self.head_is_dead = False
        self.offers: dict[str, str] = {}
        self._told: dict[str, str] | None = None
        self._tickets = 0
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._threads = ThreadPoolExecutor(64)
        self._lock = threading.Lock()

    def devices(self) -> dict[str, str] | None:
        found = {
            name: self.offers.get(name, host.describe())
            for name, host in self.hosts.items()
            if name not in self.dead
        }
        if found == self._told:
            return None
        self._told = found
        return dict(found)

    def troubles(self) -> dict[str, str]:
        return {}

    def call(self, device: str, method: str, *args: Any) -> int:
        _require_plain(args)
        self._tickets += 1
        self._threads.submit(self._one, self._tickets, device, method, args)
        return self._tickets

    def _one(self, ticket: int, device: str, method: str, args: tuple[Any, ...]) -> None:
        if device in self.dead:
            self._answers.put(Answer(ticket, Lost("it died")))
            return
        value = getattr(self.hosts[device], method)(*args)
        while device in self.hung:
            time.sleep(0.01)
        lost = device in self.dead
        self._answers.put(Answer(ticket, Lost("it died") if lost else value))

    def wait(self, seconds: float) -> list[Answer]:
        if self.head_is_dead:
            raise ts.MeasureError("the Ray cluster at 'here' is gone: its head does not answer")
        try:
            answers = [self._answers.get(timeout=seconds)]
            while True:
                answers.append(self._answers.get_nowait())
        except Empty:
            return locals().get("answers", [])

    def close(self) -> None:
        self.hung.clear()
        self._threads.shutdown(wait=False)


def _require_plain(value: Any) -> None:
    """What travels is text, bytes and numbers."""
    if isinstance(value, list | tuple):
        for v in value:
            _require_plain(v)
        return
    assert type(value) in (str, bytes, int, float), type(value)


@dataclass(frozen=True)
class LocalFleet(FleetMeasurer):
    """A FleetMeasurer on hosts in this process, which several runs share."""

    hosts: Mapping[str, DeviceHost] = field(default_factory=dict)
    pools: list[LocalPool] = field(default_factory=list)

    def pool(self) -> LocalPool:
        self.pools.append(LocalPool(self.hosts))
        return self.pools[-1]


def fleet(machines: Sequence[Machine], **settings: Any) -> LocalFleet:
    """Waits long for a first device: all may be thought lost where this process hardly runs."""
    hosts = {m.name: DeviceHost("cpu", m) for m in machines}
    return LocalFleet(**{"wait": 300.0, **settings}, hosts=hosts)
