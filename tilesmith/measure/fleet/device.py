"""A device of a fleet as a tuner sees it: what it was handed out, and what it has answered to. And
what is compiled for it on the tuner's machine, if it is slow or cannot compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from functools import cache
from secrets import token_hex

from tilesmith.base.dataclass import dataclass
from tilesmith.codegen.artifact import Artifact
from tilesmith.measure.fleet.offer import Offer, build_rate, why_not
from tilesmith.measure.messages import FORK_SERVER, Build, Exit
from tilesmith.measure.parent.build_and_run import Builders, job_of
from tilesmith.measure.this_machine import usable_cores
from tilesmith.task.task import Candidate, Failure, Task
from tilesmith.workers.pool import ForkServer

NO_CODE = "it runs only what it has compiled itself (see tilesmith worker --accept-code)"
_CHEAPER = 1.5  # code travels if the tuner compiles so many times faster than a device


@dataclass(slots=True)
class Job:
    candidate: Candidate
    losses: int = 0  # devices that were lost while they measured it
    artifact: Artifact | None = None  # if the tuner has compiled it
    is_building: bool = False  # on the tuner's machine


@dataclass(slots=True)
class Device:
    name: str
    offer: Offer
    # By which it knows this tuner. A device that comes back gets a new one, since it may still have
    # requests of the old one, which were handed out again.
    tuner: str = field(default_factory=lambda: token_hex(8))
    requests: dict[str, dict[str, Job]] = field(default_factory=dict)  # by number, then by key
    asked: float | None = None  # when the call of `collect` that it has not answered was sent
    submitted: dict[str, float] = field(default_factory=dict)  # when, without an answer, by number
    taken: dict[str, float] = field(default_factory=dict)  # when it has taken a request, by number
    refuses: dict[str, str] = field(default_factory=dict)  # why, by statement of the task

    @property
    def load(self) -> int:
        return sum(map(len, self.requests.values()))

    def waits_since(self, now: float) -> float:
        """Since when a call was not answered; now, if all were."""
        return min([*self.submitted.values(), now if self.asked is None else self.asked])

    def obstacle(self, task: Task, needs_code: bool) -> str | None:
        """Why it does not measure the task; None if it does."""
        if task.statement not in self.refuses:
            why = why_not(task.target, self.offer)
            if why is None and needs_code and not self.offer.accepts_code:
                why = NO_CODE
            if why is None:
                return None
            self.refuses[task.statement] = why
        return self.refuses[task.statement]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait for a first device, and for an answer of one; and how many devices may be
    lost with a candidate before it has failed.
    """

    first: float
    answer: float
    losses: int


_own_rate = cache(build_rate)


def for_whom(where: str, devices: Iterable[Device]) -> set[str]:
    """The names of the devices whose candidates the tuner compiles. `where` is "worker", "tuner",
    or "auto": the tuner does it for those that accept code, if it is faster than each by itself.
    """
    known = list(devices)
    if where != "auto":
        return {d.name for d in known} if where == "tuner" else set()
    accepting = [d for d in known if d.offer.accepts_code]
    if not accepting:
        return set()
    share = _own_rate() / len(accepting)
    return {d.name for d in accepting if share > _CHEAPER * d.offer.build_rate}


class TunerBuilds:
    """Builds on all cores that this process may use, in processes of their own, which are started
    with the first one.
    """

    def __init__(self, timeout: float, memory_nbytes: int) -> None:
        self._timeout, self._memory_nbytes = timeout, memory_nbytes
        self._fork_server: ForkServer[Exit] | None = None
        self._builders: Builders | None = None
        self._wanted: dict[str, tuple[Candidate, Build]] = {}
        self._failed: list[tuple[Candidate, Failure]] = []

    def begin(self, candidates: Iterable[Candidate]) -> None:
        for c in candidates:
            job = job_of(c)
            if isinstance(job, Failure):
                self._failed.append((c, job))
            else:
                self._wanted[c.key] = c, job
        self._want()

    def clear(self) -> None:
        if self._wanted:
            self._wanted.clear()
            self._want()

    def _want(self) -> None:
        if self._builders is None:
            cores = usable_cores()
            self._fork_server = ForkServer(FORK_SERVER)
            self._builders = Builders(self._fork_server, cores, self._timeout, self._memory_nbytes)
            self._builders.allow(cores, ())
        self._builders.want({key: build for key, (_, build) in self._wanted.items()})

    def finished(self) -> Iterator[tuple[Candidate, Artifact | Failure]]:
        """Those that are done since the last call. It does not wait."""
        failed, self._failed = self._failed, []
        yield from failed
        if self._builders is None or not self._wanted:
            return
        self._builders.serve()
        while (taken := self._builders.take(-1.0)) is not None:
            key, outcome = taken
            candidate, _ = self._wanted.pop(key)
            yield candidate, outcome if isinstance(outcome, Failure) else outcome.artifact

    def close(self) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
