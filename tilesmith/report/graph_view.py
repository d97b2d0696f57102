"""GraphView: what there is to see of a model before it is compiled. Its groups with their work and
edges, its tasks, what runs on the host, and the memory it needs.

Of a model with open dimensions nothing but its inputs and outputs is known. Of one whose sizes
depend on what it computes, the part up to there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.base.target import Target
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.memory import Arena
from tilesmith.graph.partition import Group, partition
from tilesmith.graph.pipeline import run_passes
from tilesmith.graph.plan import Step, plan
from tilesmith.graph.program import HostStep, Program, Signature, Stage
from tilesmith.graph.source import OpenGraph, first_stage
from tilesmith.report.model_inputs import signatures_of
from tilesmith.task.task import Task

_BY_WEIGHT = (Kind.HEAVY, Kind.REDUCTION, Kind.ELEMENTWISE, Kind.VIEW)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One kernel. `reads` are the numbers of the groups and the names of the model's inputs that it
    reads; constants are not among them.
    """

    number: int  # from 1, in the order in which they run
    kernel: str
    kind: Kind  # of its heaviest node
    nodes: tuple[str, ...]  # of the model
    ops: tuple[str, ...]  # of the graph
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


@dataclass(frozen=True, slots=True)
class HostView:
    """A node that runs on the host, behind the groups. `reads` as in GroupView."""

    op: str
    name: str
    reason: str
    reads: tuple[int | str, ...]
    num_bodies: int  # of control flow, which are compiled


@dataclass(frozen=True, slots=True)
class OutputView:
    name: str
    text: str  # its name, with dtype and shape where they are known
    read: int | str | None  # the group or input that it comes from; None for a constant


@dataclass(frozen=True, slots=True)
class GraphView:
    name: str
    inputs: tuple[Signature, ...]
    outputs: tuple[OutputView, ...]
    groups: tuple[GroupView, ...] = ()
    tasks: tuple[TaskView, ...] = ()
    host: tuple[HostView, ...] = ()
    arena: Arena | None = None
    unknown: str = ""  # what is not known, why, and what to do

    @property
    def flops(self) -> int:
        return sum(g.flops for g in self.groups)

    @property
    def nbytes(self) -> int:
        return sum(g.nbytes for g in self.groups)


def graph_view(model: OpenGraph, target: Target) -> GraphView:
    """The tasks are those of the target."""
    if isinstance(model, Graph):
        return _Seen(model, target).view(signatures_of(model))
    stage = first_stage(model)
    if stage is None:
        outputs = tuple(OutputView(n, n, None) for n in model.outputs)
        return GraphView(model.name, model.inputs, outputs, unknown=_open_inputs(model))
    seen = _Seen(stage.graph, target)
    host = () if stage.host is None else (seen.host(stage.host),)
    outputs = tuple(OutputView(n, n, seen.named.get(n)) for n in model.outputs)
    return seen.view(model.inputs, outputs, host, _after(stage))


class _Seen:
    """A graph after its passes, in groups."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = run_passes(graph)
        self.plan = plan(self.graph, partition(self.graph))
        made = {x: k for k, s in enumerate(self.plan.steps, 1) for x in s.group.outputs}
        self.maker: Mapping[str, int] = made
        self.tasks: dict[str, list[Step]] = {}
        self.number: dict[str, int] = {}
        self.target = target
        # What a value of the model comes from, by its name there.
        self.named = {n: s for n, v in self.graph.outputs if (s := self.source(v)) is not None}

    def source(self, value: str) -> int | str | None:
        """The group that makes a value, or the input that it is, perhaps under another shape."""
        while value not in self.maker and value in self.graph.producer:
            value = self.graph.producer[value].inputs[0]
        if value in self.maker:
            return self.maker[value]
        return value if value in self.graph.inputs else None

    def view(
        self, inputs: tuple[Signature, ...], outputs: tuple[OutputView, ...] | None = None,
        host: tuple[HostView, ...] = (), unknown: str = "",
    ) -> GraphView:  # fmt: skip
        groups = tuple(self._group(k, s) for k, s in enumerate(self.plan.steps, 1))
        total = sum(g.flops for g in groups)
        tasks = tuple(self._task(steps, total) for steps in self.tasks.values())
        if outputs is None:
            outputs = tuple(self._output(*pair) for pair in self.graph.outputs)
        return GraphView(
            self.graph.name, inputs, outputs, groups, tasks, host, self.plan.arena, unknown
        )

    def _group(self, number: int, step: Step) -> GroupView:
        key = Task(step.func, self.target).key
        self.tasks.setdefault(key, []).append(step)
        task = self.number.setdefault(key, len(self.number) + 1)
        group = step.group
        reads = (self.source(x) for x in group.inputs)
        return GroupView(
            number, step.func.name, _kind(self.graph, group), _origins(group.nodes),
            tuple(n.op for n in group.nodes), tuple(self.graph.values[x] for x in group.outputs),
            tuple(dict.fromkeys(r for r in reads if r is not None)),
            step.func.flops, step.func.nbytes, task,
        )  # fmt: skip

    def _task(self, steps: list[Step], total: int) -> TaskView:
        task = Task(steps[0].func, self.target)
        flops = task.func.flops
        share = flops * len(steps) / total if total else 0.0
        shape = self.graph.values[steps[0].group.outputs[0]].shape
        number = self.number[task.key]
        return TaskView(number, task, len(steps), shape, flops, task.func.nbytes, share)

    def _output(self, name: str, value: str) -> OutputView:
        text = str(Value(name, self.graph.values[value].shape, self.graph.values[value].dtype))
        return OutputView(name, text, self.source(value))

    def host(self, step: HostStep) -> HostView:
        inputs = {x: x for x in self.graph.inputs}
        reads = (self.named.get(x, inputs.get(x)) for x in step.inputs)
        found = tuple(dict.fromkeys(r for r in reads if r is not None))
        return HostView(step.op, step.name, step.reason, found, len(step.bodies))


def _kind(graph: Graph, group: Group) -> Kind:
    kinds = {work_of(graph, n).kind for n in group.nodes}
    return next((k for k in _BY_WEIGHT if k in kinds), Kind.VIEW)


def _origins(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """The nodes of the model, each once: a pass may have made several nodes of one."""
    return tuple(dict.fromkeys(n.origin or n.name for n in nodes))


def _open_inputs(model: Program) -> str:
    named = {d: None for s in model.inputs for d in s.dims or () if isinstance(d, str) and d != "?"}
    unnamed = [str(s) for s in model.inputs if s.dims is None or "?" in s.dims]
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
    return f"{count}; their sizes depend on {what}, which are known when the model runs"
