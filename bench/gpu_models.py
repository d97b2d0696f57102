"""Whole networks on a GPU: their time untuned and tuned, where it goes, and PyTorch's time."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np

import tilesmith as ts
from bench.gpu_table import FINISH_SECONDS, Table
from tilesmith.graph.device_executor import DeviceExecutor
from tilesmith.graph.profile import Profile
from tilesmith.ir.function import Function
from tilesmith.task.network import ModelTuning

_SLOWEST = 10  # kernels that a row shows
_BUILD_SECONDS = 12.0  # left for building a tuned network
_UNITS = ("wgmma", "mma.sync", "__dp4a")  # instructions that the source of a kernel tells


def models(options: argparse.Namespace, target: ts.Target, table: Table) -> None:
    """A row for each network, precision and time of tuning; then one for each network's peers."""
    pairs = [(n, p) for n in options.networks.split(",") for p in options.precision.split(",")]
    database = ts.open_database(options.db) if options.db else None
    try:
        for name, precision in pairs:
            todo = [float(s) for s in options.seconds.split(",")]
            todo = [s for s in todo if not table.has(row_name(name, precision, s))]
            made = None
            for seconds in todo:
                if table.is_over:
                    break
                row = row_name(name, precision, seconds)
                try:
                    made = made or _Network(name, options.small)
                    table.add(row, **made.row(precision, seconds, target, database, table))
                except ts.TilesmithError as error:
                    table.add(row, error=f"{type(error).__name__}: {error}")
            if target.kind == "cuda" and options.peers and not table.is_over:
                _add_peers(name, precision, options, table)
    finally:
        if database is not None:
            database.close()


def row_name(network: str, precision: str, seconds: float) -> str:
    return f"{network} {precision} {f'tuned {seconds:g} s' if seconds else 'untuned'}"


class _Network:
    def __init__(self, name: str, small: bool) -> None:
        import torch

        from tilesmith_contest.networks import catalogue

        self.net = catalogue.network(name, small)
        module, self.inputs = self.net.module(), self.net.inputs()
        given = tuple(torch.from_numpy(a) for a in self.inputs.values())
        self.graph = ts.from_torch(module, given, name=name)
        self.want = catalogue.in_float64(self.net, module, self.inputs)

    def row(
        self, precision: str, seconds: float, target: ts.Target, database: Any, table: Table
    ) -> dict[str, Any]:
        began = time.monotonic()
        how = {"database": database, "precision": precision}
        if seconds > 0:
            budget = ts.Budget(seconds=min(seconds, max(1.0, table.left - _BUILD_SECONDS)))
            model = ts.tune_model(self.graph, target, budget=budget, quiet=True, **how)
        else:
            model = ts.compile_model(self.graph, target, **how)
        feeds = {s.name: a for s, a in zip(model.inputs, self.inputs.values(), strict=True)}
        got = dict(zip(self.net.outputs, model(feeds).values(), strict=True))
        row: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
        (executor,) = model.executors
        assert isinstance(executor, DeviceExecutor)
        row["us"] = round(statistics.median(executor.seconds() for _ in range(20)) * 1e6, 1)
        row["error_norms"] = {
            k: float(np.linalg.norm(got[k] - w) / np.linalg.norm(w)) for k, w in self.want.items()
        }
        row["kernels"] = len(executor.kernels)
        row["origins"] = Counter(k.origin.kind for k in executor.kernels)
        row["why_naive"] = sorted(
            {k.origin.why for k in executor.kernels if k.origin.kind == "naive"}
        )
        profile = model.profile(feeds, runs=3)
        row["sum_us"] = round(profile.seconds * 1e6, 1)
        row["slowest"] = slowest(executor, profile)
        if model.tuning is not None:
            row |= _tuning(model.tuning)
        return row


def shapes(func: Function) -> str:
    """The sizes of a function's parameters, the last of which are written."""
    return " ".join("x".join(str(s) for s in p.shape) or "()" for p in func.params)


def slowest(executor: DeviceExecutor, profile: Profile) -> list[str]:
    """The tasks with most time in one call: how often each runs, the share of all, microseconds of
    a kernel in place and in its record, and the launches.
    """
    times: dict[str, list[float]] = {}
    steps: dict[str, int] = {}
    for k, timed in enumerate(profile.kernels):
        key = executor.plan.steps[k].func.digest
        times.setdefault(key, []).append(timed.seconds)
        steps.setdefault(key, k)
    lines = []
    for key in sorted(times, key=lambda x: -sum(times[x]))[:_SLOWEST]:
        k, own = steps[key], times[key]
        kernel, func = executor.kernels[k], executor.plan.steps[k].func
        us = statistics.median(own) * 1e6
        record = kernel.origin.seconds
        launches = [(x.grid, x.threads) for x in kernel.artifact.entries[0].launches]
        units = [u for u in _UNITS if u in kernel.artifact.source]
        lines.append(
            f"{100 * sum(own) / profile.seconds:4.1f} % {len(own):3} x {us:7.2f} us "
            f"({'draft' if record is None else f'{record * 1e6:.2f}'}) "
            f"{func.flops / us / 1e6:6.2f} TFLOP/s {func.name} {shapes(func)} "
            f"{' '.join(units)} {launches}"
        )
    return lines


def _tuning(tuning: ModelTuning) -> dict[str, Any]:
    """How the estimate fell, and what each task got."""
    curve = tuning.latency
    picked = curve[:: max(1, len(curve) // 12)] + curve[-1:]
    tasks = sorted(tuning.tasks, key=lambda t: -t.latency)
    return {
        "trials": tuning.trials,
        "curve": [[round(s, 1), round(1e6 * us, 1)] for s, us in picked],
        "tasks": [
            f"{t.weight} x {t.task.func.name} {shapes(t.task.func)}: {t.first * 1e6:.2f} to "
            f"{t.best * 1e6:.2f} us, {t.trials} trials in {t.seconds:.1f} s"
            for t in tasks
        ],
    }


def _add_peers(name: str, precision: str, options: argparse.Namespace, table: Table) -> None:
    row = f"{name} {precision} PyTorch"
    if table.has(row):
        return
    limit = min(options.peer_seconds, table.left - FINISH_SECONDS)
    question = {
        "network": name, "precision": precision, "small": options.small,
        "peers": options.peers.split(","),
    }  # fmt: skip
    times = _asked(question, limit)
    known = [v for v in times.values() if isinstance(v, float)]
    own = [r for r in table.rows if r["name"].startswith(f"{name} {precision} ") and "us" in r]
    ratios = {r["name"]: round(min(known) / r["us"], 3) for r in own} if known else {}
    table.add(row, times=times, ratios=ratios)


def _asked(question: dict[str, Any], limit: float) -> dict[str, Any]:
    """What a process with PyTorch answers until the time is up."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.gpu_torch"], stdin=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    out: dict[str, Any] = {}
    try:
        text, errors = process.communicate(json.dumps(question) + "\n", timeout=limit)
        out["errors"] = errors[-300:]
    except subprocess.TimeoutExpired as late:
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        out["late"] = f"stopped after {limit:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the compiler's processes
        process.wait()
    for line in text.splitlines():
        if line.startswith("{") and line.endswith("}"):
            out |= json.loads(line)
    if "error" not in out:
        out.pop("errors", None)
    return out
