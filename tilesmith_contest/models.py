"""A model file in, a row out that says how our compiled model does beside the engines: each in a
process of its own, in turns, with outputs compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.base.target import Target
from tilesmith.measure.this_machine import usable_cores
from tilesmith_contest.compare import machine_of
from tilesmith_contest.engine import Engine, ModelFile
from tilesmith_contest.engine_tilesmith import (
    ARENA_BYTES,
    KERNEL_SECONDS,
    WHOLE_OVER_KERNELS,
    TilesmithEngine,
)
from tilesmith_contest.engines import (
    engine_recipe,
    engine_versions,
    prepared,
)
from tilesmith_contest.model_rows import MAIN_ENGINE, EngineResult, ModelRow
from tilesmith_contest.pairs import Contest, Sampler, Turns, contest
from tilesmith_contest.peer import Start
from tilesmith_contest.problems import Array
from tilesmith_contest.process import ContestantProcess, Make, cores_for

OURS = "tilesmith"
# An error above this is no rounding: whoever makes it is not compared with. Quantised networks with
# random weights lose more than trained ones.
WRONG = {"float32": 5e-3, "float16": 5e-2, "bfloat16": 2e-1, "int8": 8e-1}
_BUSY_CORE = 0.95  # of its time a contestant should have at least one core to itself
TURNS = Turns(rounds=11, sample_seconds=0.05, most_seconds=40.0, paired=(MAIN_ENGINE,))


@dataclass(frozen=True, eq=False)
class Asked:
    """What to compare. `reference` are the right outputs and what they come from; without one it is
    the first engine that answers. `ours` is None to compare the engines alone.
    """

    model: ModelFile
    engines: tuple[str, ...]
    ours: Engine | None
    reference: tuple[str, Mapping[str, Array]] | None = None
    restart: bool = True  # also time the first start, with an empty cache


def relative_error(got: Mapping[str, Array], want: Mapping[str, Array]) -> float:
    """The largest difference over the largest value, of the worst output; infinite where names,
    shapes or NaNs differ.
    """
    if set(got) != set(want):
        return float("inf")
    return max((_error(got[k], want[k]) for k in want), default=0.0)


def _error(a: Array, b: Array) -> float:
    if a.shape != b.shape:
        return np.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not differs.any():
        return 0.0
    worst = float(np.max(np.abs(a - b)[differs]))
    largest = float(np.max(np.abs(b)))
    return worst / largest if np.isfinite(worst) and largest > 0 else np.inf


class _Ready:
    """A contestant that is ready: its process, its outputs and its facts."""

    def __init__(self, process: ContestantProcess, recipe: Make) -> None:
        self._process = process
        (self.name,) = process.make(recipe)
        self.outputs = process.outputs(self.name)
        self.start = process.start(self.name) or Start(0.0, 0.0)

    @property
    def sampler(self) -> Sampler:
        return self._process.sampler(self.name)

    def facts(self) -> dict[str, float]:
        return self._process.facts(self.name)

    def busy_threads(self) -> int:
        return self._process.busy_threads()


class _Comparison:
    """All contestants of one comparison; those that fail say why."""

    def __init__(self, asked: Asked, threads: int, stack: ExitStack) -> None:
        self._cores, self._stack = cores_for(threads), stack
        self.contestants: dict[str, _Ready] = {}
        self.failed: dict[str, str] = {}
        for name in asked.engines:
            self._start(name, engine_recipe(name, asked.model, threads))
        if asked.ours is not None:
            self._start(OURS, Make(prepared, (asked.ours, asked.model, threads)))

    def _start(self, name: str, recipe: Make) -> None:
        process = self._stack.enter_context(ContestantProcess(name, self._cores))
        try:
            self.contestants[name] = _Ready(process, recipe)
        except MeasureError as e:
            self.failed[name] = str(e)

    def errors(self, reference: Mapping[str, Array], most: float) -> dict[str, float]:
        """Of everyone; those with wrong outputs, above `most`, are removed from the comparison."""
        errors = {n: relative_error(s.outputs, reference) for n, s in self.contestants.items()}
        for name, error in errors.items():
            if not error <= most:
                self.failed[name] = f"its outputs differ by {error:.1e} of the largest value"
                del self.contestants[name]
        return errors


def compare_ours(
    model: ModelFile, engines: Sequence[str], target: Target, database: str,
    reference: tuple[str, Mapping[str, Array]] | None = None, turns: Turns = TURNS,
    parts: str = "",
) -> ModelRow:  # fmt: skip
    """Our model beside the engines. Its cache of kernels is empty at first."""
    with tempfile.TemporaryDirectory(prefix="tilesmith-bench-") as cache:
        ours = TilesmithEngine(database, cache, parts)
        return compare_model(Asked(model, tuple(engines), ours, reference), target, turns)


def compare_model(asked: Asked, target: Target, turns: Turns = TURNS) -> ModelRow:
    """Starts everyone, compares their outputs, and times them in turns. What goes wrong with one
    engine is said in its place of the row.
    """
    threads = target.num_cores
    model, precision = asked.model.path.stem, asked.model.precision
    narrow = "" if precision == "float32" else f"{precision}, "
    row = ModelRow(
        f"{model}, {narrow}{threads} thread{'s' * (threads > 1)}",
        None,
        model=model,
        threads=threads,
        precision=precision,
        machine=machine_of(target),
        versions=engine_versions(asked.engines),
    )
    with ExitStack() as stack:
        if asked.ours is not None and asked.restart:
            row = replace(row, first_start_seconds=_first_start(asked, threads))
        comparison = _Comparison(asked, threads, stack)
        who, right = asked.reference or _first_answer(comparison)
        errors = comparison.errors(right, WRONG[asked.model.precision])
        if not comparison.contestants:
            return _described(row, asked, comparison, errors, None, who)
        base = OURS if OURS in comparison.contestants else next(iter(comparison.contestants))
        samplers = {name: contestant.sampler for name, contestant in comparison.contestants.items()}
        result = contest(samplers.pop(base), samplers, turns)
        row = replace(row, note="; ".join(_notes(result, comparison, base, threads)))
        row = _described(row, asked, comparison, errors, result, who)
        return _with_facts(row, comparison.contestants[OURS].facts()) if base == OURS else row


def _first_answer(comparison: _Comparison) -> tuple[str, Mapping[str, Array]]:
    return next(((n, s.outputs) for n, s in comparison.contestants.items()), ("nobody", {}))


def _first_start(asked: Asked, threads: int) -> float | None:
    """On all cores, as a user starts a model. It fills the cache for the start that follows."""
    with ContestantProcess(OURS, usable_cores()) as process:
        try:
            return _Ready(process, Make(prepared, (asked.ours, asked.model, threads))).start.seconds
        except MeasureError:
            return None  # the start that follows says why


def _described(
    row: ModelRow, asked: Asked, comparison: _Comparison, errors: Mapping[str, float],
    result: Contest | None, reference: str,
) -> ModelRow:  # fmt: skip
    ours = OURS in comparison.contestants
    duels = {d.peer: d for d in result.duels} if result is not None and ours else {}
    times = dict(result.times) if result is not None else {}
    if result is not None and not ours:
        times[next(iter(comparison.contestants))] = result.ours
    engines = []
    for name in asked.engines:
        start = comparison.contestants[name].start if name in comparison.contestants else None
        duel = duels.get(name)
        engines.append(
            EngineResult(
                name,
                ms=times[name] * 1e3 if name in times else None,
                ratio=duel.ratio if duel else None,
                spread=duel.spread if duel else None,
                error=errors.get(name),
                start_seconds=start.seconds if start else None,
                start_processor_seconds=start.processor_seconds if start else None,
                failed=comparison.failed.get(name),
            )
        )
    row = replace(row, reference=reference, engines=tuple(engines), error=errors.get(OURS))
    if not ours:
        return replace(row, failed=comparison.failed.get(OURS))
    second = comparison.contestants[OURS].start
    row = replace(
        row,
        second_start_seconds=second.seconds,
        second_start_processor_seconds=second.processor_seconds,
    )
    if result is None:
        return row
    row = replace(row, value=result.ours * 1e3)
    if not result.duels:
        return row
    best = result.duels[0]
    return replace(
        row, peer=best.peer, peer_value=best.theirs * 1e3, ratio=best.ratio, spread=best.spread
    )


def _with_facts(row: ModelRow, facts: Mapping[str, float]) -> ModelRow:
    kernels = facts.get(KERNEL_SECONDS)
    return replace(
        row,
        kernels_ms=None if kernels is None else kernels * 1e3,
        whole_over_kernels=facts.get(WHOLE_OVER_KERNELS),
        arena_bytes=facts.get(ARENA_BYTES),
    )


def _notes(result: Contest, comparison: _Comparison, base: str, threads: int) -> list[str]:
    notes = []
    for name, share in result.shares.items():
        if share < _BUSY_CORE:
            notes.append(f"{name or base} had {share:.2f} of a core: the machine was busy")
    for name, contestant in comparison.contestants.items():
        if (count := contestant.busy_threads()) > threads:
            notes.append(f"{name} used {count} threads")
    return notes
