"""Runs one case of the suite: tunes our Functions for an operator and compares the best kernel with
the peers, as one row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError, TilesmithError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.records.database import Database
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import Kernel
from tilesmith.task.task import Budget, Task
from tilesmith.tune.build import best_kernel
from tilesmith.tune.tune import tune
from tilesmith_contest.pairs import Contest, Turns, contest
from tilesmith_contest.peer import Contestant
from tilesmith_contest.peers import contestants_of, versions
from tilesmith_contest.problems import (
    Array,
    Question,
    disagreement,
    from_layout,
    question_of,
    to_layout,
)
from tilesmith_contest.process import ContestantProcess, Make, cores_for
from tilesmith_contest.rows import Row

_STATE = "bench"  # the name under which a database keeps the tuning time spent on a task
_DISTURBED = 0.05  # a larger difference between the time in turns and the time alone is noted
_BUSY_CORE = 0.95  # a contestant should have at least this share of a core
_ENOUGH = 1.0  # seconds; tuning is not started for less than this


@dataclass(frozen=True)
class Case:
    """`functions` are ours by layout; `plain` is the same computation with channels first, as the
    peers take it; `numbers` are the operator's sizes by name.
    """

    op: str
    operator: str
    shape: tuple[int, ...]
    batch: int
    numbers: Mapping[str, int]
    plain: Function
    functions: Mapping[str | None, Function]

    @property
    def work(self) -> int:
        """The operations that the result needs, without the products with zeros that the Function
        of a transposed convolution may contain.
        """
        if self.operator != "conv2d-transpose":
            return self.plain.flops
        n = self.numbers
        return 2 * n["N"] * n["H"] ** 2 * n["CI"] * n["CO"] * n["K"] ** 2

    def name(self, threads: int) -> str:
        shape = ",".join(map(str, self.shape))
        batch = f" batch {self.batch}" if self.batch > 1 else ""
        return f"{self.op} {shape}{batch}, {threads} thread{'s' * (threads > 1)}"


@dataclass(frozen=True)
class Tuned:
    kernel: Kernel
    cost: float
    seconds: float
    near: float  # seconds of tuning until it was within 10 % of its best
    trials: int


def machine_of(target: Target) -> str:
    return f"{target.name}, {target.vector_bits}-bit vectors"


def _spent(state: bytes | None) -> tuple[float, float]:
    """The seconds of tuning so far, and those until the best was near; 0 if they cannot be read."""
    try:
        before = {"seconds": 0.0, "near": 0.0, **(json.loads(state) if state else {})}
        return float(before["seconds"]), float(before["near"])
    except (ValueError, TypeError, OverflowError, RecursionError):
        return 0.0, 0.0


def tuned(func: Function, target: Target, seconds: float, database: Database) -> Tuned:
    """The best kernel in the database, after tuning for the rest of the seconds. Without any time,
    and without a record, it is the schedule with the best analytic score.
    """
    task = Task(func, target)
    state = database.load_state(task, _STATE)
    spent, near = _spent(state)
    if seconds - spent >= _ENOUGH:
        budget = Budget(seconds=seconds - spent)
        result = tune(func, target, budget=budget, database=database, quiet=True)
        near = spent + result.near if result.near else near
        spent += result.seconds
        database.save_state(task, _STATE, json.dumps({"seconds": spent, "near": near}).encode())
    best = database.best(task)
    if best is None:
        kernel = best_kernel(func, target, database=database)
        return Tuned(kernel, kernel.time(repeats=3).median, spent, near, database.count(task))
    kernel = kernel_of(compile_for(best.candidate.task, best.candidate.trace.apply(func)))
    return Tuned(kernel, best.normal_cost, spent, near, database.count(task))


def inputs_of(func: Function, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(tuple(e.number for e in b.shape), dtype=np.float32) for b in func.inputs
    ]


class Contestants:
    """The processes for one number of threads: ours and those of the named peers. They are reused
    for many cases, because loading a library takes seconds.
    """

    def __init__(self, peers: Sequence[str], threads: int) -> None:
        self.peers = tuple(peers)
        self.threads = threads
        cores = cores_for(threads)
        self._ours = ContestantProcess("tilesmith", cores)
        self._others = {name: ContestantProcess(name, cores) for name in peers}

    def __enter__(self) -> Contestants:
        return self

    def __exit__(self, *_: object) -> None:
        for p in (self._ours, *self._others.values()):
            p.close()

    def contest(
        self, artifact: Artifact, arrays: Sequence[Array], layout: str | None,
        question: Question, turns: Turns,
    ) -> tuple[Contest, list[str]]:  # fmt: skip
        """The outcome, and notes about it. Raises if the answers differ."""
        (own,) = self._ours.make(Make(our_contestants, (artifact, tuple(arrays), layout)))
        answer = self._ours.answer(own)
        samplers, process_of = {}, {"": self._ours}
        for name, process in self._others.items():
            for c in process.make(Make(contestants_of, (name, question.problem, self.threads))):
                if why := disagreement(answer, question.restore(process.answer(c))):
                    raise MeasureError(f"ours and {c}: {why}")
                samplers[c], process_of[c] = process.sampler(c), process
        result = contest(self._ours.sampler(own), samplers, turns)
        notes = []
        for c, disturbance in result.disturbance.items():
            if abs(disturbance - 1) > _DISTURBED:
                how = f"{disturbance:.2f} of its time alone"
                notes.append(f"{c or 'ours'} takes {how} when in turns")
            if (count := process_of[c].busy_threads()) > self.threads:
                notes.append(f"{c or 'ours'} used {count} threads")
        idle = [c or "ours" for c, share in result.shares.items() if share < _BUSY_CORE]
        if idle:
            names = ", ".join(idle)
            notes.append(f"the machine was busy: {names} had less than {_BUSY_CORE} of a core")
        return result, notes


def our_contestants(
    artifact: Artifact, arrays: Sequence[Array], layout: str | None
) -> list[Contestant]:
    """Runs in our own process. Constant inputs are packed ahead of time, as the peers' are."""
    kernel = Kernel(artifact)
    names = [p.name for p in artifact.inputs]
    call = kernel.bind(*map(kernel.pack, names, arrays))
    return [Contestant("tilesmith", call, lambda: from_layout(layout, call()))]


def compare(
    case: Case,
    contestants: Contestants,
    target: Target,
    database: Database,
    seconds: float,
    turns: Turns | None = None,
) -> Row:
    """Tunes, checks that all answers agree, and times side by side. An error in one case is stored
    in its row.
    """
    row = Row(
        case.name(target.num_cores),
        None,
        op=case.op,
        shape=",".join(map(str, case.shape)),
        batch=case.batch,
        threads=target.num_cores,
        budget_seconds=seconds,
        machine=machine_of(target),
        versions=versions(contestants.peers),
    )
    try:
        kernels = {
            layout: tuned(func, target, seconds / len(case.functions), database)
            for layout, func in case.functions.items()
        }
    except TilesmithError as e:
        return replace(row, error=f"not tuned: {e}")
    layout = min(kernels, key=lambda name: kernels[name].cost)
    row = replace(
        row,
        layout=layout,
        tuning_seconds=round(sum(t.seconds for t in kernels.values()), 1),
        near_seconds=round(kernels[layout].near, 1),
        trials=sum(t.trials for t in kernels.values()),
    )
    plain = inputs_of(case.plain)
    question = question_of(case.operator, case.numbers, plain)
    arrays = to_layout(case.operator, layout, plain)
    artifact = kernels[layout].kernel.artifact
    try:
        result, notes = contestants.contest(artifact, arrays, layout, question, turns or Turns())
    except MeasureError as e:
        return replace(row, error=str(e))
    return _filled(replace(row, note="; ".join(notes)), case, result)


def _filled(row: Row, case: Case, result: Contest) -> Row:
    row = replace(
        row,
        value=result.ours * 1e6,
        gflops=case.work / result.ours / 1e9,
        share=result.shares[""],
        peers={name: s * 1e6 for name, s in result.times.items()},
    )
    if not result.duels:
        return row
    hardest = result.duels[0]
    return replace(
        row,
        peer=hardest.peer,
        peer_value=hardest.theirs * 1e6,
        ratio=hardest.ratio,
        spread=hardest.spread,
        peer_share=result.shares[hardest.peer],
    )
