"""GraphView: what there is to see of a model before it is compiled. Its groups with their work and
edges, its tasks, what runs on the host, and the memory it needs.

Of a model with open dimensions nothing but its inputs and outputs is known. Of one whose sizes
depend on what it computes, the part up to there is; all of it once it has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.model import Model
from tilesmith.graph.partition import Group, partition
from tilesmith.graph.pipeline import run_passes
from tilesmith.graph.plan import Plan, plan
from tilesmith.graph.program import HostStep, OpenGraph, Program, Signature, Stage, first_stage
from tilesmith.report.model_inputs import signatures_of
from tilesmith.task.task import Task
from tilesmith.tune.partition_choice import offered

_BY_WEIGHT = (Kind.HEAVY, Kind.REDUCTION, Kind.ELEMENTWISE, Kind.VIEW)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One kernel. `reads` are the numbers of the groups and nodes on the host, and the names of the
    model's inputs, that it reads; constants are not among them.
    """

    number: int  # from 1, in the order in which they run
    kernel: str
    kind: Kind  # of its heaviest node
    nodes: tuple[str, ...]  # of the model
    outputs: tuple[Value, ...]
    reads: tuple[int | str, ...]
    flops: int
    nbytes: int
    task: int  # number of its task


@dataclass(frozen=True, slots=True)
class TaskView:
    number: int  # from 1
    task: Task
    weight: int  # how many groups are this task
    shape: tuple[int, ...]  # of what it writes
    flops: int  # of one of them
    nbytes: int
    share: float  # of the model's FLOP, all its groups together
    places: tuple[tuple[str, ...], ...] = ()  # the nodes of each of its groups


@dataclass(frozen=True, slots=True)
class HostView:
    """A node that runs on the host. `number` and `reads` as in GroupView."""

    number: int
    op: str
    name: str
    reason: str
    reads: tuple[int | str, ...]
    num_bodies: int  # of control flow, which are compiled


@dataclass(frozen=True, slots=True)
class OutputView:
    name: str
    text: str  # its name, with dtype and shape where they are known
    reads: tuple[int | str, ...]  # as in GroupView


@dataclass(frozen=True, slots=True)
class GraphView:
    name: str
    inputs: tuple[Signature, ...]
    outputs: tuple[OutputView, ...]
    groups: tuple[GroupView, ...] = ()
    tasks: tuple[TaskView, ...] = ()
    host: tuple[HostView, ...] = ()
    arena_nbytes: int = 0
    arena_lower_bound: int = 0  # bytes that are alive at once: no arena is smaller
    unknown: str = ""  # what is not known, why, and what to do

    @property
    def steps(self) -> list[GroupView | HostView]:
        """All in the order in which they run."""
        return sorted((*self.groups, *self.host), key=lambda b: b.number)

    @property
    def flops(self) -> int:
        return sum(g.flops for g in self.groups)

    @property
    def nbytes(self) -> int:
        return sum(g.nbytes for g in self.groups)


def graph_view(source: OpenGraph, target: Target) -> GraphView:
    """Of a model that is not compiled. The tasks are those of the target."""
    if isinstance(source, Graph):
        seen = _Seen(source.name, signatures_of(source), target)
        seen.add(planned(source, target))
        return seen.view(tuple(n for n, _ in source.outputs))
    seen = _Seen(source.name, source.inputs, target)
    stage = first_stage(source)
    if stage is None:
        return seen.view(source.outputs, _open_inputs(source))
    seen.add(planned(stage.graph, target))
    if stage.host is not None:
        seen.add_host(stage.host)
    return seen.view(source.outputs, _after(stage))


def stages_view(model: Model, target: Target) -> GraphView:
    """Of a compiled model, with all that its calls needed so far."""
    seen = _Seen(model.name, model.inputs, target)
    for part in model.parts:
        match part:
            case Executor():
                seen.add(part.plan)
            case HostStep():
                seen.add_host(part)
    return seen.view(model.outputs)


def planned(graph: Graph, target: Target) -> Plan:
    """The groups whose tasks are tuned."""
    lowered = run_passes(graph)
    return plan(lowered, offered(partition, target)(lowered))


class _Seen:
    """The steps of a model so far, in the order in which they run."""

    def __init__(self, name: str, inputs: tuple[Signature, ...], target: Target) -> None:
        self.name, self.inputs, self.target = name, inputs, target
        self.groups: list[GroupView] = []
        self.hosts: list[HostView] = []
        self.steps: dict[str, list[tuple[Task, Value]]] = {}  # by the key of the task
        self.places: dict[str, list[tuple[str, ...]]] = {}
        self.arena_nbytes = self.arena_lower_bound = 0
        # By names in the model: what a value comes from, and its type where that is known.
        self.live: dict[str, tuple[int | str, ...]] = {s.name: (s.name,) for s in inputs}
        self.types: dict[str, Value] = {}

    @property
    def next(self) -> int:
        return 1 + len(self.groups) + len(self.hosts)

    def add(self, made: Plan) -> None:
        graph, maker = made.graph, dict[str, int]()
        for step in made.steps:
            number, group = self.next, step.group
            task, outputs = Task(step.func, self.target), [graph.values[x] for x in group.outputs]
            self.steps.setdefault(task.key, []).append((task, outputs[0]))
            self.places.setdefault(task.key, []).append(_origins(group.nodes))
            view = GroupView(
                number, step.func.name, _kind(graph, group), _origins(group.nodes),
                tuple(outputs), self._sources(graph, maker, group.inputs), step.func.flops,
                step.func.nbytes, [*self.steps].index(task.key) + 1,
            )  # fmt: skip
            self.groups.append(view)
            maker |= dict.fromkeys(group.outputs, number)
        self.arena_nbytes += made.arena.nbytes
        self.arena_lower_bound += made.arena.lower_bound
        for name, value in graph.outputs:
            self.live[name] = self._sources(graph, maker, (value,))
            self.types[name] = replace(graph.values[value], name=name)

    def _sources(
        self, graph: Graph, maker: Mapping[str, int], values: Sequence[str]
    ) -> tuple[int | str, ...]:
        """What values come from, perhaps under another shape or in parts."""
        found: dict[int | str, None] = {}
        stack, seen = list(values[::-1]), set[str]()
        while stack:
            x = stack.pop()
            if x in maker:
                found[maker[x]] = None
            elif x in graph.inputs:
                found |= dict.fromkeys(self.live.get(x, ()))
            elif x in graph.producer and x not in seen:
                seen.add(x)
                stack += graph.producer[x].inputs[::-1]
        return tuple(found)

    def add_host(self, step: HostStep) -> None:
        number = self.next
        reads = dict.fromkeys(r for x in step.inputs for r in self.live.get(x, ()))
        self.hosts.append(
            HostView(number, step.op, step.name, step.reason, tuple(reads), len(step.bodies))
        )
        for x in step.outputs:
            self.live[x] = (number,)
            self.types.pop(x, None)

    def view(self, outputs: Sequence[str], unknown: str = "") -> GraphView:
        total = sum(g.flops for g in self.groups)
        tasks = tuple(self._task(k, found, total) for k, found in enumerate(self.steps.values(), 1))
        returned = tuple(
            OutputView(n, str(self.types.get(n, n)), self.live.get(n, ())) for n in outputs
        )
        return GraphView(
            self.name, self.inputs, returned, tuple(self.groups), tasks, tuple(self.hosts),
            self.arena_nbytes, self.arena_lower_bound, unknown,
        )  # fmt: skip

    def _task(self, number: int, found: list[tuple[Task, Value]], total: int) -> TaskView:
        (task, output), weight = found[0], len(found)
        flops = task.func.flops
        share = flops * weight / total if total else 0.0
        return TaskView(
            number, task, weight, output.shape, flops, task.func.nbytes, share,
            tuple(self.places[task.key]),
        )  # fmt: skip


def _kind(graph: Graph, group: Group) -> Kind:
    kinds = {work_of(graph, n).kind for n in group.nodes}
    return next((k for k in _BY_WEIGHT if k in kinds), Kind.VIEW)


def _origins(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """The nodes of the model, each once: a pass may have made several nodes of one."""
    return tuple(dict.fromkeys(n.origin or n.name for n in nodes))


def _open_inputs(model: Program) -> str:
    named = {d: None for s in model.inputs for d in s.dims or () if isinstance(d, str)}
    unnamed = [str(s) for s in model.inputs if s.dims is None]
    parts = []
    if named:
        parts.append(f"its dimensions {', '.join(named)} are open; give their sizes, as in "
                     + " ".join(f"--dim {d}=1" for d in named))  # fmt: skip
    if unnamed:
        parts.append(f"the sizes of {', '.join(unnamed)} are known when it is called only")
    if not parts:
        parts.append("what it computes depends on the contents of its inputs")
    return "its groups are not known yet: " + "; ".join(parts)


def _after(stage: Stage) -> str:
    """What follows the first stage."""
    if stage.cursor is None or stage.cursor.state == ():
        return ""
    left = stage.cursor.state
    count = f"{len(left)} nodes follow" if isinstance(left, tuple) else "the rest follows"
    if stage.host is not None:
        what = f"the results of {stage.host.op} {stage.host.name!r}"
    else:
        what = f"the contents of {', '.join(sorted(stage.cursor.contents))}"
    return (
        f"{count}; their sizes depend on {what}, which are known when the model runs "
        "(show graph --random)"
    )
