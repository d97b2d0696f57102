"""Damaged models tried in a child process with limits of memory and time: each ends in arrays or in
a TilesmithError, or is reported.

As a program, `python -m tests.support.onnx_trials FIRST LAST STEP MODE` is the child: it prints
a line before and after each trial, so that whoever reads them knows which one it died of.
"""

from __future__ import annotations

import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.onnx_mutations import mutation
from tests.support.onnx_seeds import seeds
from tilesmith.base.errors import TilesmithError
from tilesmith.frontends.onnx.load import load
from tilesmith.graph.graph import Graph
from tilesmith.graph.limits import LIMITS
from tilesmith.graph.oracle import evaluate_program
from tilesmith.graph.program import Signature
from tilesmith.graph.stages import checked_feeds
from tilesmith.tune.compile_model import compile_model

MEMORY = 6 << 30  # of addresses, most of which are libraries and threads' stacks
VALUE_NBYTES = 32 << 20  # larger values are refused, so that a trial takes little time
SECONDS = 30.0  # of the processor's time, so that a busy machine changes nothing
_WALL_SECONDS = 600.0  # for what waits instead of computing
SEED_COUNT = len(seeds())
_SMALL = 3  # for dimensions that the model leaves open
_MOST = 20_000  # elements of an input: who calls with more expects to wait


@dataclass(frozen=True, slots=True)
class Trial:
    number: int
    outcome: str  # "ran", "refused", "raised", "differs", "died", "hung"
    text: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.outcome in ("ran", "refused")


def trials(first: int, last: int, mode: str = "oracle", step: int = 1) -> Iterator[Trial]:
    """The trials with these numbers, in one child after the other. `mode` "compiled" compares
    what is compiled with the oracle.
    """
    at = first
    while at < last:
        for trial in _child(at, last, step, mode):
            yield trial
            at = trial.number + step


def _child(first: int, last: int, step: int, mode: str) -> Iterator[Trial]:
    """Until the child ends or has to be ended."""
    command = [sys.executable, "-m", __name__]
    command += [str(first), str(last), str(step), mode]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as child,
    ):
        assert child.stdout is not None
        current, began, rest = first, time.monotonic(), b""
        watch = selectors.DefaultSelector()
        watch.register(child.stdout, selectors.EVENT_READ)
        try:
            while True:
                if not watch.select(max(0.0, began + _WALL_SECONDS - time.monotonic())):
                    yield Trial(current, "hung", f"{_WALL_SECONDS} s", _WALL_SECONDS)
                    return
                got = child.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not got:
                    break
                *lines, rest = (rest + got).split(b"\n")
                for line in lines:
                    number, outcome, text = line.decode().split("\t", 2)
                    if outcome == "begins":
                        current, began = int(number), time.monotonic()
                    else:
                        yield Trial(int(number), outcome, text, time.monotonic() - began)
                        current = int(number) + step
            if current < last:
                child.wait()
                errors.seek(0)
                tail = errors.read().decode(errors="replace")[-2000:]
                if child.returncode == -signal.SIGPROF:
                    yield Trial(current, "hung", f"{SECONDS} s", SECONDS)
                    return
                yield Trial(current, "died", f"with status {child.returncode}: {tail}")
        finally:
            child.kill()


def trial(number: int, mode: str, folder: Path) -> Trial:
    what, data, files = mutation(number)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    path = folder / "model.onnx"
    path.unlink(missing_ok=True)  # an old one may still be mapped
    path.write_bytes(data)
    try:
        model = load(path)
        feeds = _feeds(model)
        wanted = evaluate_program(model, feeds)
        if mode == "compiled":
            got = compile_model(model)(feeds)
            if why := _difference(got, wanted):
                return Trial(number, "differs", f"{what}: {why}")
        return Trial(number, "ran", what)
    except TilesmithError as error:
        hidden = f" [{type(error.__cause__).__name__}]" if error.__cause__ else ""
        return Trial(number, "refused", f"{what}: {type(error).__name__}{hidden}: {error}")
    except Exception as error:
        where = traceback.format_tb(error.__traceback__)[-3:]
        return Trial(number, "raised", f"{what}: {type(error).__name__}: {error} {where}")


def _feeds(model: Any) -> dict[str, Any]:
    if isinstance(model, Graph):
        values = (model.values[x] for x in model.inputs)
        inputs = [Signature(v.name, v.dtype, v.shape) for v in values]
    else:
        inputs = list(model.inputs)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for s in inputs:
        shape = tuple(_SMALL if isinstance(d, str) else d for d in s.dims or ())
        if prod(max(n, 1) for n in shape) > _MOST:
            raise TilesmithError(f"the input {s} is too large to try")
        numbers = rng.standard_normal(shape) if s.dtype.is_float else rng.integers(0, 3, shape)
        feeds[s.name] = np.asarray(numbers).astype(s.dtype.numpy)
    return checked_feeds(inputs, feeds, "the model")


def _difference(got: Any, wanted: Any) -> str:
    for name, b in wanted.items():
        a = got[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} is {a.dtype}{a.shape}, and {b.dtype}{b.shape} by the oracle"
        x, y = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            scale = np.abs(y[np.isfinite(y)]).max(initial=1e-6)
            if not np.allclose(x, y, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
                return f"{name} is {a.ravel()[:4]}, and {b.ravel()[:4]} by the oracle"
    return ""


def main() -> None:
    first, last, step = map(int, sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    LIMITS.nbytes, LIMITS.turns = VALUE_NBYTES, 100
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, last, step):
            print(number, "begins", "", sep="\t", flush=True)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # which ends the process
            done = trial(number, sys.argv[4], Path(folder))
            text = " ".join(done.text.split())[:1500]
            print(number, done.outcome, text, sep="\t", flush=True)


if __name__ == "__main__":
    main()
