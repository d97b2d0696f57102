"""Templates: the same Schedule, with decisions left to the tuner. Numbers stay open as size
variables; structural decisions are gone through one after the other by running the function again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.dependence import all_loops
from tilesmith.schedule.kinds import Annotate
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.require import Require
from tilesmith.schedule.sample import NumericSample, SampleChoice, SamplePermutation, SampleTile
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import domain_of
from tilesmith.task.task import Task

_MOST_STRUCTURES = 4096


class TemplateSchedule(Schedule):
    """What a template is given: a Schedule that can also ask for decisions."""

    def __init__(self, task: Task, picks: Sequence[int] = ()) -> None:
        super().__init__(task.func)
        self.task = task
        self.target = task.target
        self._picks = list(picks)
        self._options: list[int] = []  # how many there were at each structural decision
        self._count = 0

    def sample_tile(
        self, loop: str, parts: int, *, policy: str = "divisors", max_innermost: int = 0,
        candidates: Sequence[Sequence[int]] = (), where: Callable[[tuple[int, ...]], bool] | None =
        None,
    ) -> tuple[str, ...]:  # fmt: skip
        """Factors for a split, outermost first. `where` keeps only the tuples it accepts."""
        step = SampleTile(
            loop, parts, policy, max_innermost, candidates=tuple(map(tuple, candidates))
        )
        if where is not None:
            step = self._filtered(step, where)
        self.apply(step)
        return step.columns

    def _filtered(self, step: SampleTile, where: Callable[[tuple[int, ...]], bool]) -> SampleTile:
        extent = self.extent(step.loop)
        if not isinstance(extent, int):
            raise ScheduleError(f"sample_tile of {step.loop} with a filter needs a known extent")
        table = domain_of(step, extent).table
        rows = [tuple(int(x) for x in row) for row in table]
        kept = tuple(r for r in rows if where(r))
        if not kept:
            raise ScheduleError(f"sample_tile of {step.loop}: the filter accepts nothing")
        return SampleTile(step.loop, step.parts, step.policy, step.max_innermost, candidates=kept)

    def sample_choice(self, values: Sequence[int], name: str = "") -> str:
        """One of some numbers: a size variable to be used wherever a number can be."""
        column = f"#{name or f'choice.{self._count}'}"
        self._count += 1
        self.apply(SampleChoice(column, tuple(values)))
        return column

    def sample_permutation(
        self, loops: Sequence[str], orders: Sequence[Sequence[str]] | None = None
    ) -> tuple[str, ...]:
        """The loops, reordered; all orders unless some are given."""
        allowed = tuple(map(tuple, orders)) if orders is not None else tuple(permutations(loops))
        picked = allowed[self._pick(len(allowed))]
        self.apply(SamplePermutation(allowed, picked))
        return picked

    def sample_location(self, block: str, places: Sequence[str] | None = None) -> str:
        """A loop in which the block can be computed, or "root"; all legal ones unless some are
        given. Pass it on to compute_at or reverse_compute_at.
        """
        allowed = list(places) if places is not None else ["root", *self._legal(block)]
        if not allowed:
            raise ScheduleError(f"there is no place where {block} can be computed")
        return allowed[self._pick(len(allowed))]

    def _legal(self, block: str) -> Iterator[str]:
        for loop in all_loops(self.func.body):
            for step in (ComputeAt(block, loop.name), ReverseComputeAt(block, loop.name)):
                try:
                    step.apply(self.func)
                except ScheduleError:
                    continue
                yield loop.name
                break

    def require(self, expression: str, most: int | None = None, least: int = 0) -> None:
        """A bound across decisions, such as f"{i2} * {j2}": candidates beyond it are never made."""
        step = Require(expression, most, least)
        known = {c for s in self._steps if isinstance(s, NumericSample) for c in s.columns}
        unknown = sorted(n for n in step.value.names - known if n not in self.func.sizes)
        if unknown:
            raise ScheduleError(
                f"require({expression!r}): {unknown[0]} is no decision; so far there are "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        self.apply(step)

    def _pick(self, options: int) -> int:
        at = len(self._options)
        self._options.append(options)
        return self._picks[at] if at < len(self._picks) else 0

    # what a decision changes
    def compute_at(self, block: str, loop: str) -> None:
        if loop == "inline":
            self.inline(block)
        elif loop != "root":
            super().compute_at(block, loop)

    def reverse_compute_at(self, block: str, loop: str) -> None:
        if loop != "root":
            super().reverse_compute_at(block, loop)

    def unroll(self, *loops: str | int) -> None:
        """unroll(k, 16), or with a sampled number: loops inside k are written out up to so many
        copies.
        """
        if len(loops) == 2 and (isinstance(loops[1], int) or loops[1].startswith("#")):
            self.apply(Annotate(str(loops[0]), "unroll_depth", loops[1]))
            return
        super().unroll(*(str(x) for x in loops))


def structures(task: Task, template: Callable[[TemplateSchedule], None]) -> Iterator[Trace]:
    """One open trace for every way the structural decisions can go; refused ones are left out."""
    pending: list[tuple[int, ...]] = [()]
    runs = made = 0
    first: ScheduleError | None = None
    while pending:
        picks = pending.pop(0)
        runs += 1
        if runs > _MOST_STRUCTURES:
            raise ScheduleError(
                f"the template {template.__name__} has more than {_MOST_STRUCTURES} structures; "
                "sample fewer locations or orders"
            )
        sch = TemplateSchedule(task, picks)
        refused = False
        try:
            template(sch)
        except ScheduleError as e:
            if not sch._options:
                raise ScheduleError(f"the template {template.__name__}: {e}") from None
            first = first or e
            refused = True
        # what was decided by default beyond the given picks opens further runs
        full = [*picks, *([0] * (len(sch._options) - len(picks)))]
        for at in range(len(picks), len(sch._options)):
            for other in range(1, sch._options[at]):
                pending.append((*full[:at], other))
        if not refused:
            made += 1
            yield sch.trace
    if not made:
        raise ScheduleError(
            f"the template {template.__name__} refuses every structure of {task.func.name}; the "
            f"first: {first}"
        )
