"""Trials per second of a fleet on this machine with 1, 2, 4, ... workers.

    python -m bench.fleet --workers 1,2,4,8 --seconds 20

Each number of workers gets a Ray cluster of its own on a loopback address. A worker has the same
number of cores in all of them, so that the machine is full with the most workers. Candidates of a
small matrix product are drawn before, so that the search takes no part; a first batch, during which
the workers' processes start, is not counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import numpy as np

import tilesmith as ts
from tilesmith.testing.ray_cluster import Cluster

_SIZE = 64
_JOIN_SECONDS = 300.0


def task(cores: int) -> ts.Task:
    a, b = ts.placeholder((_SIZE, _SIZE), name="A"), ts.placeholder((_SIZE, _SIZE), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    return ts.Task(func, ts.cpu(cores))


def rate(workers: int, cores: int, seconds: float, candidates: list[ts.Candidate]) -> float:
    """Measured candidates per second."""
    cluster = Cluster()
    try:
        for k in range(workers):
            cluster.worker(f"worker{k}", cores, k * cores)
        which = candidates[0].task
        with ts.FleetMeasurer(cluster.address, wait=300.0).open(which) as run:
            run.submit(candidates[:1])
            run.collect(which)
            until = time.monotonic() + _JOIN_SECONDS
            while run.devices < workers:
                if time.monotonic() > until:
                    raise TimeoutError(f"{run.devices} of {workers} workers have joined")
                time.sleep(0.1)
            at = 1 + 16 * workers
            run.submit(candidates[1:at])
            while run.under_way(which):
                run.collect(which)
            began, done = time.monotonic(), 0
            while time.monotonic() - began < seconds and at < len(candidates):
                if run.under_way(which) < 2 * run.capacity:
                    run.submit(candidates[at : at + run.capacity])
                    at += run.capacity
                done += len(run.collect(which, 1.0))
            return done / (time.monotonic() - began)
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
    options = parser.parse_args()
    numbers = [int(n) for n in options.workers.split(",")]
    cores = max(1, len(os.sched_getaffinity(0)) // max(numbers))
    candidates = draw(task(1), options.candidates)
    print(f"{len(candidates)} candidates; {cores} core{'s' * (cores > 1)} for each worker")
    first = None
    for n in numbers:
        found = rate(n, cores, options.seconds, candidates)
        first = first or found
        print(f"{n} workers: {found:.1f} trials per second, {found / first:.2f} times", flush=True)


if __name__ == "__main__":
    main()
