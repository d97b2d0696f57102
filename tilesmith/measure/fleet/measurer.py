"""FleetMeasurer: measures candidates on the devices that the workers of a Ray cluster offer.

Each device measures as LocalMeasurer does there. Times of several machines of a model are compared
by the reference kernel that every one of them times beside each sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import field
from math import inf
from queue import Empty

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError, TilesmithError
from tilesmith.base.given import checks_given
from tilesmith.measure.fleet.device import Patience
from tilesmith.measure.fleet.dispatch import Dispatcher
from tilesmith.measure.fleet.messages import Settings
from tilesmith.measure.fleet.pool import Pool, RayPool
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.measure.protocol import Results, StreamRun, Upcoming, Winner, given
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Candidate, Measurement, Task

BUILD = ("auto", "worker", "tuner")
_LOOK_SECONDS = 1.0  # between two looks at whether there is trouble
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


class FleetRun(StreamRun):
    """Candidates are handed out at once, and their measurements come in any order. So a search goes
    on with what is there, while a slow device is busy.
    """

    def __init__(self, settings: FleetMeasurer, pool: Pool) -> None:
        s = settings
        self._dispatcher = Dispatcher(
            pool,
            Settings(s.timeout, s.cold, s.memory_nbytes, s.confirm, s.seed, s.rules),
            Patience(s.wait, s.patience, s.retries),
            s.build,
        )
        self._wanted: dict[str, Candidate] = {}  # submitted last, not given yet
        self._under_way: dict[str, Candidate] = {}
        self._held: dict[str, Measurement] = {}  # measured, and not given yet
        self._failed: list[Measurement] = []  # of candidates that ran well before
        self._error: MeasureError | None = None
        self._any = False  # whether anything was measured

    @property
    def devices(self) -> int:
        """The number of devices that this run knows of."""
        return self._dispatcher.devices

    @property
    def capacity(self) -> int:
        return self._dispatcher.capacity

    def prepare(self, task: Task) -> None:
        """A device evaluates a task when it is handed out the first candidate."""

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._wanted = {c.key: c for c in candidates}
        self._hand_out(candidates)

    def _hand_out(self, candidates: Sequence[Candidate]) -> None:
        """Those that are under way already are not measured twice."""
        if self._error is not None:
            raise self._error
        for c in candidates:
            if c.key not in self._under_way and c.key not in self._held:
                _require_portable(c)
                self._under_way[c.key] = c
                self._dispatcher.submit(c)

    def results(
        self, task: Task, until: float | None = None, upcoming: Upcoming | None = None,
        every: bool = False,
    ) -> Results:  # fmt: skip
        """The upcoming candidates are handed out at once, so that no device waits for the slowest
        one of this batch. Unless all are asked for, it ends as soon as there is anything, be it of
        the upcoming ones: the caller submits those next.
        """
        error: Exception | None = None
        ahead: Sequence[Candidate] = ()
        if upcoming is not None and (every or len(self._under_way) < self.capacity):
            try:
                ahead = upcoming()
                self._hand_out(ahead)
            except Exception as e:  # raised when the batch is measured
                error = e
        end, any_given = inf if until is None else until, False
        while True:
            own = [key for key, c in self._wanted.items() if c.task == task]
            there = [self._held.pop(key) for key in own if key in self._held]
            for m in there:
                del self._wanted[m.candidate.key]
            any_given, failed, self._failed = any_given or bool(there), self._failed, []
            yield from given([*there, *failed])
            own = [key for key in own if key in self._wanted]
            # A worker that has begun may have some time more; one that is not there has not.
            hopeful = not self._any and not self._dispatcher.trouble
            now, last = time.monotonic(), end + _GRACE_SECONDS if hopeful else end
            any_ahead = any(c.key in self._held for c in ahead)
            if not own or now >= last or (not every and (any_given or any_ahead)):
                break
            self._receive(min(last - now, _LOOK_SECONDS))
        if own and now >= last:  # the time is up
            if not self._any and self._dispatcher.trouble:
                raise MeasureError(self._dispatcher.trouble)
            self._dispatcher.withdraw()
            self._under_way.clear()
            self._wanted.clear()
        if error is not None:
            raise error

    def left(self, task: Task) -> Sequence[Candidate]:
        return [c for c in self._wanted.values() if c.task == task]

    def winner(self, task: Task) -> Winner | None:
        """Devices compare side by side, but not with each other."""
        return None

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
                    self._failed.append(result)
                result = self._dispatcher.results.get_nowait()
        except Empty:
            return

    def close(self) -> None:
        if self._error is None:
            self._error = MeasureError("this run of a measurer is closed; open another one")
        self._dispatcher.close()


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
