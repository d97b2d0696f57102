"""`bench.attention --target cpu`: attention of float32 beside PyTorch, ONNX Runtime and OpenVINO,
each in a process of its own; all take turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import tilesmith as ts
from bench.attention_cases import Case, by_engine, by_torch, ours
from bench.gpu_table import Table
from bench.module_rows import compared
from tilesmith_contest.pairs import Turns, geometric_mean
from tilesmith_contest.process import ContestantProcess, Make, cores_for

_TURNS = Turns(rounds=11, sample_seconds=0.02, most_seconds=20.0)
_LENGTHS = (128, 197, 512, 1024, 2048, 4096)
_TOKENS = 4096  # tokens of all heads together, at least


def plain_cases() -> list[Case]:
    """From 128 to 4096 tokens, with fewer heads where there are more of them."""
    return [
        Case(form, heads, heads, n, n, size, size)
        for size in (64, 128) for form in ("full", "causal") for n in _LENGTHS
        for heads in [max(2, min(12, _TOKENS // n))]
    ]  # fmt: skip


VARIANTS = [
    Case("window", 4, 4, 2048, 2048, 64, 64), Case("softcap", 4, 4, 1024, 1024, 64, 64),
    Case("alibi", 4, 4, 1024, 1024, 64, 64), Case("document", 4, 4, 1024, 1024, 64, 64),
    Case("causal", 32, 8, 512, 512, 128, 128), Case("full", 8, 8, 1024, 1024, 192, 128),
    *(Case("full", 32, 8, 1, keys, 128, 128) for keys in (4096, 32768)),
    *(Case("full", 8, 8, 1, keys, 64, 64) for keys in (1024, 4096)),
]  # fmt: skip


class Bench:
    """Ours and each peer are in a process of their own for all cases."""

    def __init__(self, threads: int, peers: Sequence[str], processor_time: bool) -> None:
        self._threads, self._peers = threads, peers
        self._turns = replace(_TURNS, processor_time=processor_time)
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        names = dict.fromkeys(("tilesmith", "untuned", *peers))
        self._processes = {
            n: self._stack.enter_context(ContestantProcess(n, cores_for(threads))) for n in names
        }

    def close(self) -> None:
        self._stack.close()

    def row(self, case: Case, seconds: float) -> dict[str, Any]:
        threads, row = self._threads, dict[str, Any]()
        recipes = {"untuned": Make(ours, (case, threads, ""))}
        if seconds:
            path = self._folder / f"{time.monotonic_ns()}.db"
            with ts.open_database(path) as database:
                budget = ts.Budget(seconds=seconds)
                result = ts.tune(
                    case.function(), ts.cpu(threads), budget=budget, quiet=True, database=database
                )
            row["trials"] = result.trials
            row["rolled"] = "roll" in {s.name for s in result.best.candidate.trace}
            recipes["tilesmith"] = Make(ours, (case, threads, str(path)))
        recipes["torch"] = Make(by_torch, (case, threads, "flex" in self._peers))
        for engine in ("onnxruntime", "openvino"):
            if engine in self._peers:
                recipes[engine] = Make(
                    by_engine, (case, threads, engine, str(self._folder / f"{engine}.onnx"))
                )
        them = compared(recipes, self._processes.__getitem__, self._turns, near=1e-3)
        us = {n: round(t * 1e6, 1) for n, t in them.seconds.items()}
        mine = us["tilesmith" if seconds else "untuned"]
        return {
            "us": us, "peer": them.peer, "ratio": them.ratio, "untuned": them.untuned,
            "gflops": round(case.work / mine / 1e3, 1), "error": them.error, **row, **them.failed,
        }  # fmt: skip


def linearity(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Time per score that counts, at each length relative to that at 512 tokens."""
    lines = []
    for form in ("full", "causal"):
        for size in (64, 128):
            rates = {
                int(r["name"].split("x")[2]): r["gflops"] for r in rows
                if r["name"].startswith(f"{form} ") and r["name"].endswith(f"x{size}")
                and "/" not in r["name"] and ":" not in r["name"] and "gflops" in r
            }  # fmt: skip
            if 512 in rates:
                parts = (f"{n}: {rates[512] / rate:.2f}" for n, rate in sorted(rates.items()))
                lines.append(f"time per score, {form} x{size}, of that at 512: {', '.join(parts)}")
    return lines


def run(options: Any) -> None:
    table = Table(None if options.json is None else str(options.json), options.limit)
    cases = [*plain_cases(), *VARIANTS]
    wanted = [x.strip() for x in options.only.split(",") if x.strip()]
    bench = Bench(options.threads, options.peers.split(","), options.processor_time)
    try:
        for case in cases:
            if wanted and not any(w in case.name for w in wanted):
                continue
            if table.has(case.name):
                continue
            if table.is_over:
                break
            try:
                table.add(case.name, **bench.row(case, options.seconds))
            except ts.TilesmithError as error:
                table.add(case.name, error=f"{type(error).__name__}: {error}"[:500])
    finally:
        bench.close()
    timed = [r for r in table.rows if "ratio" in r]
    if timed:
        mean = geometric_mean(r["ratio"] for r in timed)
        drafts = geometric_mean(r["untuned"] for r in timed)
        worst = min(timed, key=lambda r: r["ratio"])
        below = sum(r["ratio"] < 1.2 for r in timed)
        print(
            f"{len(timed)} cases, mean {mean:.2f}, untuned {drafts:.2f}, worst {worst['ratio']} "
            f"({worst['name']}), {below} below 1.2"
        )
    for line in linearity(table.rows):
        print(line)
