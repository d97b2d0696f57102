"""FleetMeasurer: measures candidates on the devices that the workers of a Ray cluster offer.

Each device measures as LocalMeasurer does there. Times of several machines of a model are compared
by the reference kernel that every one of them times beside each sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from queue import Empty
from typing import Self

from tilesmith.base.errors import MeasureError, TilesmithError
from tilesmith.base.given import checks_given
from tilesmith.measure.fleet.device import Patience
from tilesmith.measure.fleet.dispatch import Dispatcher
from tilesmith.measure.fleet.messages import Settings
from tilesmith.measure.fleet.pool import Pool, RayPool
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.measure.protocol import Listener, Upcoming
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Candidate, Measurement, Task

BUILD = ("auto", "worker", "tuner")
_GRACE_SECONDS = 15.0  # for a run that has measured nothing when its time is up


@checks_given
@dataclass(frozen=True)
class FleetMeasurer:
    """Measures on the devices that the workers of a Ray cluster offer (`tilesmith worker`). It
    needs `tilesmith[fleet]`. Tasks with parts of your own need workers that have the same ones
    (`tilesmith worker --parts module:object`).

    - `address`: that of a Ray cluster, as "10.0.0.1:6379"; "auto" is the one that this machine
      belongs to.
    - `timeout`, `cold`, `memory_nbytes`, `confirm`, `rules`, `seed`: as in LocalMeasurer.
    - `build`: where candidates are compiled: on the "worker" that measures them, on the "tuner",
      which takes workers that accept code, or, with "auto", for each worker that accepts code where
      it is faster.
    - `retries`: a candidate is measured elsewhere if its worker is lost, and has failed when that
      has happened more often than this.
    - `patience`: a worker is lost when it has not answered for so many seconds.
    - `wait`: for how many seconds there may be no worker for the target.

    Example:

        measurer = ts.FleetMeasurer(address="auto")    # of the cluster that this machine is part of
        result = ts.tune(func, ts.cpu(num_cores=1), measurer=measurer)
    """

    address: str = "auto"
    timeout: float = 10.0
    cold: bool = False
    memory_nbytes: int = 2 << 30
    confirm: bool = True
    rules: TimingRules = field(default_factory=TimingRules)
    seed: int = 0
    build: str = "auto"
    retries: int = 3
    patience: float = 30.0
    wait: float = 60.0

    def __post_init__(self) -> None:
        if self.build not in BUILD:
            raise MeasureError(
                f"build={self.build!r} is unknown; it is 'auto', 'worker' or 'tuner'"
            )

    def open(self, task: Task) -> FleetRun:
        """Joins the cluster; the task is the first that will be measured."""
        return FleetRun(self, self.pool())

    def pool(self) -> Pool:
        """The connection to the cluster."""
        return RayPool(self.address)


class FleetRun:
    """`submit` hands out candidates without waiting, and `collect` returns what is measured."""

    def __init__(self, settings: FleetMeasurer, pool: Pool) -> None:
        s = settings
        self._dispatcher = Dispatcher(
            pool,
            Settings(s.timeout, s.cold, s.memory_nbytes, s.confirm, s.seed, s.rules),
            Patience(s.wait, s.patience, s.retries),
            s.build,
        )
        self._listener: Listener | None = None
        self._under_way: dict[str, Candidate] = {}
        self._held: dict[str, Measurement] = {}  # measured ahead, and not asked for yet
        self._error: MeasureError | None = None
        self._any = False  # whether anything was measured

    def report_to(self, listener: Listener) -> None:
        self._listener = listener

    def under_way(self, task: Task) -> int:
        """The number of candidates that were submitted and not collected."""
        flying = sum(c.task == task for c in self._under_way.values())
        return flying + sum(m.candidate.task == task for m in self._held.values())

    @property
    def devices(self) -> int:
        """The number of devices that this run knows of."""
        return self._dispatcher.devices

    @property
    def capacity(self) -> int:
        return self._dispatcher.capacity

    def submit(self, candidates: Sequence[Candidate]) -> None:
        """Those that are under way already are not measured twice."""
        self._require_open()
        for c in candidates:
            if c.key not in self._under_way and c.key not in self._held:
                _require_portable(c)
                self._under_way[c.key] = c
                self._dispatcher.submit(c)

    def collect(self, task: Task, seconds: float | None = None) -> list[Measurement]:
        """What is measured of the task since the last call, as soon as there is anything; nothing
        if nothing is under way, or `seconds` are over.
        """
        self._require_open()
        end = inf if seconds is None else time.monotonic() + seconds
        while True:
            own = [key for key, m in self._held.items() if m.candidate.task == task]
            flying = any(c.task == task for c in self._under_way.values())
            if own or not flying or time.monotonic() > end:
                break
            self._receive(end - time.monotonic())
        measured = [self._held.pop(key) for key in own]
        self._report(measured)
        return measured

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[Measurement]:
        """The upcoming candidates are handed out at once, so that no device waits for the slowest
        one of this batch.
        """
        end = inf if seconds is None else time.monotonic() + seconds
        self.submit(candidates)
        error: Exception | None = None
        if upcoming is not None:
            try:
                self.submit(upcoming())
            except Exception as e:  # raised when the batch is measured
                error = e
        left = dict.fromkeys(c.key for c in candidates)
        measured: dict[str, Measurement] = {}
        while True:
            ours = [self._held.pop(key) for key in list(left) if key in self._held]
            for m in ours:
                measured[m.candidate.key] = m
                del left[m.candidate.key]
            self._report(ours)
            now, until = time.monotonic(), end if self._any else end + _GRACE_SECONDS
            if not left or now >= until:
                break
            self._receive(until - now)
        if left:  # the time is up
            self._dispatcher.withdraw()
            self._under_way.clear()
        if error is not None:
            raise error
        return [measured[c.key] for c in candidates if c.key in measured]

    def _report(self, measured: list[Measurement]) -> None:
        if measured and self._listener is not None:
            self._listener(measured)

    def _receive(self, seconds: float) -> None:
        """Waits for one result, and takes all that are there."""
        wait: float | None = None if seconds == inf else max(0.0, seconds)
        try:
            result = self._dispatcher.results.get(timeout=wait)
            while True:
                if isinstance(result, MeasureError):
                    self._error = result
                    raise result
                self._any = self._any or result.failure is None
                if self._under_way.pop(result.candidate.key, None) is not None:
                    self._held[result.candidate.key] = result
                elif result.failure is not None:  # it ran well before, in an earlier batch
                    self._report([result])
                result = self._dispatcher.results.get_nowait()
        except Empty:
            return

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if self._error is None:
            self._error = MeasureError("this run of a measurer is closed; open another one")
        self._dispatcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _require_portable(c: Candidate) -> None:
    """Raises if workers cannot read the trace."""
    text = c.trace.to_json()
    try:
        read = Trace.from_json(text, c.task.parts)
    except TilesmithError as error:
        raise MeasureError(
            f"the workers of a fleet know the built-in parts and those of --parts: {error}"
        ) from None
    if read.to_json() != text:
        raise MeasureError(f"a schedule of {c.task.func.name} changes when it is sent as JSON")
