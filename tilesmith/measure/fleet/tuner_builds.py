"""Compiles candidates on the tuner's machine, for devices of a fleet that are slow or cannot
compile. The target may be of another architecture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from tilesmith.codegen.artifact import Artifact
from tilesmith.measure.fleet.device import Device
from tilesmith.measure.fleet.offer import build_rate
from tilesmith.measure.messages import Build
from tilesmith.measure.parent.builders import Builders
from tilesmith.measure.parent.cores import usable_cores
from tilesmith.measure.parent.fork_server_client import ForkServerClient
from tilesmith.measure.parent.jobs import job_of
from tilesmith.task.task import Candidate, Failure

_CHEAPER = 1.5  # code travels if the tuner compiles so many times faster than a device

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
        self._fork_server: ForkServerClient | None = None
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
            self._fork_server = ForkServerClient()
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
