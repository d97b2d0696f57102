"""Builds on all cores: BuildRequests in, BuildResults out, large numbers of them by processes of
their own. The caller's process is never forked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilesmith.base.errors import BuildError
from tilesmith.base.identity import packed
from tilesmith.measure.this_machine import usable_cores
from tilesmith.measure.wire import Channel, Gone, pair, ready
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.kernel import Origin
from tilesmith.tune.build_request import BuildRequest, BuildResult, fulfil, plain_schedule

_MODULE = "tilesmith.tune.build_worker"
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Starting a process and loading LLVM in it takes about half a second; small builds a hundredth. So
# the first ones are built here, until so much time has passed that the rest is worth processes.
_ALONE_SECONDS = 1.0
_MIN_REQUESTS = 3
_SECONDS = 600.0  # after which a build is given up

Report = Callable[[int, int], None]  # how many are built, of how many


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: Channel
    job: int | None = None


def build_all(
    requests: Sequence[BuildRequest], report: Report, num_workers: int | None = None
) -> list[BuildResult]:
    """In the order of the requests. The first are built here; if that takes long, the rest are
    built by one process per core.
    """
    wanted = len(usable_cores()) if num_workers is None else num_workers
    results: list[BuildResult] = []
    until = time.monotonic() + _ALONE_SECONDS
    for k, request in enumerate(requests):
        report(k, len(requests))
        left = len(requests) - k
        alone = wanted < 2 or left < _MIN_REQUESTS or time.monotonic() < until
        if not alone and packed(request.task.parts) is not None:  # processes can import them
            rest = _Pool(requests[k:], partial(_shifted, report, k), min(wanted, left))
            return results + rest.run()
        results.append(fulfil(request))
    report(len(requests), len(requests))
    return results


def _shifted(report: Report, before: int, done: int, total: int) -> None:
    report(before + done, before + total)


class _Pool:
    def __init__(self, requests: Sequence[BuildRequest], report: Report, size: int) -> None:
        self._requests, self._report = requests, report
        # The largest first, so that none of them is left to the end alone.
        order = sorted(range(len(requests)), key=lambda k: requests[k].task.func.flops)
        self._waiting = order
        self._results: dict[int, BuildResult] = {}
        self._tries = [0] * len(requests)
        self._workers = [_start() for _ in range(size)]

    def run(self) -> list[BuildResult]:
        try:
            while len(self._results) < len(self._requests):
                self._report(len(self._results), len(self._requests))
                self._step()
            self._report(len(self._requests), len(self._requests))
        finally:
            for w in self._workers:
                _stop(w)
        return [self._results[k] for k in range(len(self._requests))]

    def _step(self) -> None:
        for w in self._workers:
            if w.job is None and self._waiting:
                w.job = self._waiting.pop()
                self._tries[w.job] += 1
                try:
                    w.channel.send(self._requests[w.job])
                except Gone:
                    self._died(w)
        busy = [w for w in self._workers if w.job is not None]
        answered = ready([w.channel for w in busy], _SECONDS)
        if not answered:
            raise BuildError(
                f"no kernel was built within {_SECONDS:.0f} s; is the machine overloaded?"
            )
        for w in busy:
            if w.channel in answered and w.job is not None:
                self._receive(w, w.job)

    def _receive(self, w: _Worker, job: int) -> None:
        try:
            answer = w.channel.receive()
        except Gone:
            self._died(w)
            return
        w.job = None
        if isinstance(answer, BuildResult):
            self._results[job] = answer
        else:
            raise BuildError(f"{self._requests[job].task.func.name!r} cannot be built: {answer}")

    def _died(self, w: _Worker) -> None:
        """Its job is tried once more, then built as the plain loop nest."""
        job = w.job
        assert job is not None
        _stop(w)
        self._workers[self._workers.index(w)] = _start()
        if self._tries[job] < 2:
            self._waiting.append(job)
            return
        request, why = self._requests[job], "the process that built it ended"
        plain = compile_for(request.task, plain_schedule(request.built, request.task.target))
        self._results[job] = BuildResult(plain, Origin("naive", why=why), (why,))


def _start() -> _Worker:
    ours, theirs = pair()
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
        )
    finally:
        theirs.close()
    return _Worker(process, ours)


def _stop(w: _Worker) -> None:
    w.channel.close()
    w.process.kill()
    w.process.wait()
