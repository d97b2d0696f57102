"""What `bench.everyday` and `bench.zoo` share: contestants on a CPU that take turns, our time on a
GPU, the error of an answer, and the lines under a table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from timeit import timeit
from typing import Any

import numpy as np

from tilesmith.base.errors import MeasureError
from tilesmith.graph.device_executor import DeviceExecutor
from tilesmith_contest.pairs import Turns, contest, geometric_mean
from tilesmith_contest.process import ContestantProcess, Make

OWN = ("tilesmith", "untuned")
REFERENCE = "PyTorch"  # its answer is taken for right


def distance(got: Any, want: Any) -> float:
    """Of two answers, relative to the norm; infinite where shapes or infinities differ."""
    if got.shape != want.shape:
        return float("inf")
    got, want = got.astype(np.float32).ravel(), want.astype(np.float32).ravel()
    difference = float(np.linalg.norm(got - want))
    norm = float(np.linalg.norm(want))
    return difference / norm if norm > 0 else difference


@dataclass(frozen=True)
class Compared:
    """Seconds of one call and the error of each contestant's answer; the fastest peer, and how much
    faster we are, tuned and untuned.
    """

    seconds: dict[str, float]
    errors: dict[str, float]
    peer: str
    ratio: float
    untuned: float
    failed: dict[str, str]  # peers that could not run, and why

    @property
    def error(self) -> float:
        """The larger one of ours."""
        return max(e for name, e in self.errors.items() if name in OWN)


def compared(
    recipes: Mapping[str, Make], process_of: Callable[[str], ContestantProcess], turns: Turns,
    near: float,
) -> Compared:  # fmt: skip
    """Contestants made in processes of their own, which then take turns. Peers whose answer is
    further than `near` from PyTorch's are left out.
    """
    samplers, answers, failed = {}, {}, {}
    for name, recipe in recipes.items():
        process = process_of(name)
        try:
            for made in process.make(recipe):
                label = made if name == "torch" else name  # it makes one for each layout
                samplers[label], answers[label] = process.sampler(made), process.answer(made)
        except MeasureError as error:
            if name in OWN or name == "torch":
                raise
            failed[name] = str(error)[:200]
    errors = {n: distance(np.asarray(a), answers[REFERENCE]) for n, a in answers.items()}
    base = next(name for name in OWN if name in samplers)
    right = {n: s for n, s in samplers.items() if errors[n] < near or n == base}
    result = contest(right.pop(base), right, turns)
    seconds = {**result.times, base: result.ours}
    peers = {n: t for n, t in seconds.items() if n not in OWN}
    best = min(peers, key=lambda n: peers[n])
    duels = {d.peer: d.ratio for d in result.duels}
    ratio = duels.get(best, peers[best] / result.ours)
    untuned = peers[best] / seconds["untuned"] if "untuned" in seconds else float("nan")
    return Compared(seconds, errors, best, round(ratio, 3), round(untuned, 3), failed)


def on_device(model: Any, given: Sequence[Any], want: Any) -> tuple[float, float]:
    """The microseconds of our model on a GPU, and the error of its answer. Copies count only where
    a part runs on the host.
    """
    feeds = {s.name: t for s, t in zip(model.inputs, given, strict=True)}
    got = next(iter(model(feeds).values()))
    got = got.float().numpy() if hasattr(got, "numpy") else np.asarray(got)
    timed = [e for e in model.executors if isinstance(e, DeviceExecutor)]

    def kernels() -> float:
        return sum(e.seconds() for e in timed)

    apart = bool(model.host_steps) or len(timed) < len(model.executors)
    run = partial(timeit, lambda: model(feeds), number=1) if apart else kernels
    return sorted(run() for _ in range(9))[4] * 1e6, distance(got, want)


def mean_line(rows: Sequence[dict[str, Any]], what: str, wanted: float, least: float) -> str:
    """Of rows that have a ratio: the means, the worst, and how many are below `least`."""
    mean = geometric_mean(r["ratio"] for r in rows)
    drafts = geometric_mean(r["untuned"] for r in rows)
    worst = min(rows, key=lambda r: r["ratio"])
    return (
        f"{len(rows)} {what}, mean {mean:.3f} (wanted {wanted}), untuned {drafts:.3f}, worst "
        f"{worst['ratio']} {worst['name']}, {sum(r['ratio'] < least for r in rows)} below {least}"
    )


def parser_of(description: str | None, seconds: float, peers: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--seconds", type=float, default=seconds, help="of tuning; 0: drafts only")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", default=peers)
    parser.add_argument("--json", help="write one row per case; cases already there are skipped")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds; then nothing is begun")
    return parser
