"""Checks kernels of thousands of random programs in small types against the oracle, at the ends of
the types' ranges: random candidates, mostly of sketches with instructions such as dot products of
bytes and tiles of AMX, on this machine's processor.

    python -m bench.typed_programs --programs 2000
    python -m bench.typed_programs --seed 1234 --programs 1 --jobs 1     # one of them again

Answers must be equal: sums of the programs are the same in any order (see
tests/support/typed_programs.py). Subnormal bfloat16 numbers are not among the inputs, since AMX
takes them as zeros. Programs run in worker processes; one that dies or hangs costs its candidate
only. It ends with code 1 if any answer is wrong, or a kernel cannot be built or run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from tests.support.typed_programs import Typed, extreme_inputs, random_typed_program
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.nodes import walk
from tilesmith.ir.pack import packed
from tilesmith.runtime.build import build
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unit import Tensorize
from tilesmith.space.spaces import SketchSpace, SketchWarning, structural_counts, with_structure
from tilesmith.space.variant import Variant, lower

Rng = np.random.Generator
Array = np.ndarray[Any, Any]

_START_SECONDS = 60.0  # that a worker may take to start
_TRIES = 20  # at a candidate: not all structures are legal
PLAIN = "no instruction"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate: right, wrong, refused (by the code generator) or failed."""

    seed: int
    mix: str
    kind: str
    instruction: str
    state: str
    text: str = ""
    trace: str = ""


def instruction_of(func: ts.Function) -> str:
    """The instructions that a scheduled Function uses."""
    found = [b.intrinsic.name for _, b in walk(func.body) if b.intrinsic is not None]
    return " + ".join(sorted({*found})) or PLAIN


def drawn(func: ts.Function, target: ts.Target, rng: Rng, count: int) -> Iterator[Variant]:
    """Variants of different instructions in turns, then one without: `count` of them if possible.
    Sums are not computed otherwise than as stated, which would round.
    """
    task = ts.Task(func, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SketchWarning)
        sketches = SketchSpace(accuracy=0).sketches(task)
    groups: dict[str, list[Trace]] = {}
    for s in sketches:
        used = sorted({x.intrinsic.name for x in s.steps if isinstance(x, Tensorize)})
        groups.setdefault(" + ".join(used), []).append(s)
    plain = groups.pop("", [])
    order = [g for k in rng.permutation(len(groups)) for g in [[*groups.values()][k]]]
    turns = [*order, *order, *order][: max(0, count - 1)] + [plain or sketches] * count
    for group in turns:
        if not count:
            return
        for _ in range(_TRIES):
            sketch = group[int(rng.integers(len(group)))]
            picked = [int(rng.integers(n)) for n in structural_counts(sketch)]
            try:
                yield lower(task, with_structure(sketch, picked))
            except ts.ScheduleError:
                continue
            count -= 1
            break


def check(seed: int, count: int, begin: Callable[[Outcome], object]) -> list[Outcome]:
    """The outcomes of some candidates of the program with this seed. `begin` is told of each before
    it is built.
    """
    rng = np.random.default_rng(seed)
    typed = random_typed_program(rng)
    arrays = extreme_inputs(typed.func, rng)
    want = evaluate(typed.func, *arrays)
    target = ts.cpu(num_cores=1 if seed % 4 else 2)
    out = []
    for variant in drawn(typed.func, target, rng, count):
        rows = variant.sample(rng, 1)
        if not len(rows):
            continue
        used = instruction_of(variant.func)
        trace = variant.decided(rows[0]).to_json()
        begin(Outcome(seed, typed.mix, typed.kind, used, "began", "", trace))
        state, text = _ran(typed, variant.function(rows[0]), target, arrays, want)
        out.append(Outcome(seed, typed.mix, typed.kind, used, state, text, trace))
    return out


def _ran(
    typed: Typed, scheduled: ts.Function, target: ts.Target, arrays: Sequence[Array], want: Array
) -> tuple[str, str]:
    try:
        kernel = build(scheduled, target)
        pairs = zip(scheduled.inputs, arrays, strict=True)
        got = kernel(*(packed(b, a, "typed") for b, a in pairs))
    except ts.BuildError as error:
        return "refused", str(error)
    except Exception:  # whatever it is, the next candidate is to be checked
        return "failed", traceback.format_exc()
    if got.dtype != want.dtype or got.shape != want.shape:
        return "wrong", f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    # Infinities of narrow results are equal, too; there is no NaN.
    bad = got != want
    if not bad.any():
        return "right", ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return "wrong", f"{list(at)} is {got[at]}, not {want[at]}; {int(bad.sum())} of {bad.size}"


# processes ---------------------------------------------------------------------------------------


def serve(pipe: Connection, count: int) -> None:
    """Checks the programs whose seeds come through the pipe."""
    while (seed := pipe.recv()) is not None:
        pipe.send(check(seed, count, pipe.send))


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    heard: float = 0.0  # when it last said something
    seed: int = -1
    last: Outcome | None = None


@dataclass
class Pool:
    """Workers that each check a program at a time."""

    jobs: int
    count: int
    work: Callable[[Connection, int], None] = serve
    hangs: float = 60.0  # seconds without a word from a worker
    workers: list[_Worker] = field(default_factory=list)

    def run(self, seeds: Sequence[int], ends: float) -> Iterator[Outcome]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.typed_programs"])
        left = list(reversed(seeds))
        try:
            while (left or self.workers) and time.monotonic() < ends:
                while left and len(self.workers) < self.jobs:
                    here, there = context.Pipe()
                    process = context.Process(
                        target=self.work, args=(there, self.count), daemon=True
                    )
                    process.start()
                    there.close()
                    worker = _Worker(process, here)
                    self.workers.append(worker)
                    self._next(worker, left)
                    worker.heard += _START_SECONDS
                ready = wait([w.pipe for w in self.workers], 1.0)
                for w in list(self.workers):
                    if w.pipe in ready:
                        yield from self._heard(w, left)
                    elif time.monotonic() - w.heard > self.hangs:
                        w.process.kill()
                        yield from self._lost(w, "it hung")
        finally:
            for w in self.workers:
                w.process.kill()
                w.process.join()

    def _next(self, w: _Worker, left: list[int]) -> None:
        """Gives the worker another program, or lets it end."""
        if left:
            w.seed, w.last, w.heard = left.pop(), None, time.monotonic()
            w.pipe.send(w.seed)
        else:
            w.pipe.send(None)
            w.process.join()
            self.workers.remove(w)

    def _heard(self, w: _Worker, left: list[int]) -> Iterator[Outcome]:
        try:
            said = w.pipe.recv()
        except (EOFError, ConnectionResetError):
            w.process.join()
            yield from self._lost(w, f"the process ended with code {w.process.exitcode}")
            return
        w.heard = time.monotonic()
        if isinstance(said, Outcome):
            w.last = said
            return
        yield from said
        self._next(w, left)

    def _lost(self, w: _Worker, how: str) -> Iterator[Outcome]:
        self.workers.remove(w)
        w.process.join()
        last = w.last or Outcome(w.seed, "", "", "", "began")
        yield Outcome(w.seed, last.mix, last.kind, last.instruction, "failed", how, last.trace)


def table(outcomes: Sequence[Outcome]) -> str:
    states = ("right", "wrong", "refused", "failed")
    lines = [f"{'':44}{''.join(f'{s:>9}' for s in states)}"]
    for what in ("mix", "instruction"):
        counts = Counter((getattr(o, what), o.state) for o in outcomes)
        for name in sorted({n for n, _ in counts}):
            lines.append(f"{name:44}" + "".join(f"{counts[name, s]:9}" for s in states))
        lines.append("")
    total = Counter(o.state for o in outcomes)
    lines.append(f"{'all':44}" + "".join(f"{total[s]:9}" for s in states))
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--each", type=int, default=4, help="candidates of a program")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; others follow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=540, help="seconds for everything")
    parser.add_argument("--json", type=Path, help="write failures, with their traces, to this file")
    options = parser.parse_args(words)
    began = time.monotonic()
    seeds = range(options.seed, options.seed + options.programs)
    print(f"{ts.cpu().cpu}: {', '.join(sorted(ts.cpu().features))}", flush=True)
    outcomes: list[Outcome] = []
    failures: list[Outcome] = []
    for o in Pool(options.jobs, options.each).run(seeds, began + options.limit):
        outcomes.append(o)
        if o.state != "right":
            failures.append(o)
            print(
                f"{o.state} seed {o.seed}: {o.mix} {o.kind}, {o.instruction}: {o.text}", flush=True
            )
    print(table(outcomes))
    done = len({o.seed for o in outcomes})
    print(f"{done} of {options.programs} programs in {time.monotonic() - began:.0f} s")
    for o in failures[:5]:
        print(f"\nagain: python -m bench.typed_programs --seed {o.seed} --programs 1\n{o.trace}")
    if options.json:
        rows = [{k: getattr(o, k) for k in Outcome.__slots__} for o in failures]
        options.json.write_text(json.dumps(rows, indent=1))
    raise SystemExit(1 if failures or done < options.programs else 0)


if __name__ == "__main__":
    main()
