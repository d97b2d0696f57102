"""Trials per second of a fleet on this machine with 1, 2, 4, ... workers.

    python -m bench.fleet --workers 1,2,4,8 --seconds 20

Each number of workers gets a Ray cluster of its own on a loopback address. A worker has the same
number of cores in all of them, so that the machine is full with the most workers; hardware threads
of one core belong to one worker. Candidates of a small matrix product are drawn before, so that the
search takes no part; the first ones, during which the workers' processes start, are not counted.
The column `busy` says how much of the time the tuner's process took of a processor. With --tune, a
run of ts.tune with its default search follows on the same workers, which shows whether that keeps
up with them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np

import tilesmith as ts
from tests.support.ray_cluster import Cluster
from tilesmith.measure.this_machine import siblings

_SIZE = 64
_JOIN_SECONDS = 180.0
_ANSWER_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Rate:
    trials: int
    seconds: float
    processor_seconds: float  # of the tuner
    by_worker: tuple[int, ...]
    tuned: float  # trials per second of ts.tune; 0 if not asked for

    @property
    def per_second(self) -> float:
        return self.trials / self.seconds


def task(cores: int) -> ts.Task:
    a, b = ts.placeholder((_SIZE, _SIZE), name="A"), ts.placeholder((_SIZE, _SIZE), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    return ts.Task(func, ts.cpu(cores))


def shares(workers: int) -> list[list[int]]:
    """The cores of this machine for so many workers."""
    usable = os.sched_getaffinity(0)
    adjacent = list(dict.fromkeys(c for core in sorted(usable) for c in sorted(siblings(core))))
    own = [c for c in adjacent if c in usable]
    each = max(1, len(own) // workers)
    return [[own[(k * each + j) % len(own)] for j in range(each)] for k in range(workers)]


def tuned(which: ts.Task, address: str, seconds: float) -> float:
    """Trials per second of ts.tune, from its first measurements on."""
    seen: list[tuple[float, int]] = []

    def observe(progress: ts.Progress) -> None:
        seen.append((time.monotonic(), progress.trials))

    ts.tune(
        which.func, which.target, measurer=ts.FleetMeasurer(address), quiet=True,
        budget=ts.Budget(seconds=seconds), observers=[observe],
    )  # fmt: skip
    (began, first), (end, last) = seen[0], seen[-1]
    return (last - first) / max(end - began, 1e-9)


def rate(
    cores: list[list[int]], seconds: float, candidates: list[ts.Candidate], tune: bool
) -> Rate:
    cluster = Cluster()
    try:
        for k, own in enumerate(cores):
            cluster.worker(f"worker{k}", cores=own)
        which = candidates[0].task
        with ts.FleetMeasurer(cluster.address, wait=_JOIN_SECONDS).open(which) as run:
            at = 16 * len(cores)
            run.submit(candidates[:at])
            until = time.monotonic() + _JOIN_SECONDS
            while run.devices < len(cores):
                cluster.require_running()
                if time.monotonic() > until:
                    raise TimeoutError(f"{run.devices} of {len(cores)} workers have joined")
                time.sleep(0.5)
            at *= 2
            run.submit(candidates[:at])
            answers = [*run.results(which, time.monotonic() + _ANSWER_SECONDS, every=True)]
            if len(answers) < at:
                raise TimeoutError(f"{len(answers)} of {at} measured in {_ANSWER_SECONDS:g} s")
            began, busy = time.monotonic(), time.process_time()
            done: list[ts.Measurement] = []
            while time.monotonic() - began < seconds and at < len(candidates):
                run.submit([*run.left(which), *candidates[at : at + run.capacity]])
                at += run.capacity
                done += run.results(which, began + seconds)
            took = time.monotonic() - began
            machines = [m.machine for m in done]
            each = tuple(sorted(machines.count(name) for name in set(machines)))
            busy = time.process_time() - busy
        also = tuned(which, cluster.address, seconds) if tune else 0.0
        return Rate(len(done), took, busy, each, also)
    finally:
        cluster.close()


def draw(which: ts.Task, count: int) -> list[ts.Candidate]:
    sketches = ts.SketchSpace().sketches(which)
    search = ts.Random().start(which, sketches, np.random.default_rng(0))
    drawn: list[ts.Candidate] = []
    while len(drawn) < count and (asked := search.ask(min(256, count - len(drawn)))):
        drawn += asked
    return drawn


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clusters are closed in any case
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--candidates", type=int, default=20000)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    numbers = [int(n) for n in options.workers.split(",")]
    cores = shares(max(numbers))
    candidates = draw(task(1), options.candidates)
    print(f"{len(candidates)} candidates; cores of the workers: {cores}")
    print("workers  trials/s  times  busy  trials by worker" + "  tuning trials/s" * options.tune)
    first = None
    for n in numbers:
        found = rate(cores[:n], options.seconds, candidates, options.tune)
        first = first or found.per_second
        print(
            f"{n:7} {found.per_second:9.1f} {found.per_second / first:6.2f} "
            f"{found.processor_seconds / found.seconds:5.0%}  "
            f"{found.by_worker[0]:6} to {found.by_worker[-1]:<6}"
            + f"  {found.tuned:15.1f}"
            * options.tune,
            flush=True,
        )


if __name__ == "__main__":
    main()
