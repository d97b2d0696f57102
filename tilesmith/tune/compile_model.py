"""ts.compile_model and ts.extract_tasks: a graph in, a Model out, with the best known kernel of
every group and drafts by the analytic score elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import GraphError
from tilesmith.base.target import Target, cpu
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Graph
from tilesmith.graph.model import Model
from tilesmith.graph.partition import Partition, partition
from tilesmith.graph.pipeline import PASSES, Pass, run_passes
from tilesmith.graph.plan import plan
from tilesmith.graph.program import Program
from tilesmith.records.database import Database
from tilesmith.runtime.kernel import Kernel
from tilesmith.task.task import Task
from tilesmith.tune.build import best_kernel


def compile_model(
    graph: Graph | Program,
    target: Target | None = None,
    *,
    database: Database | None = None,
    strict: bool = False,
    passes: Sequence[Pass] = PASSES,
    groups: Partition = partition,
) -> Model:
    """A Model with the best known kernels; with `strict`, only with recorded ones."""
    machine = cpu() if target is None else target
    kernels: dict[str, Kernel] = {}

    def compile_graph(one: Graph) -> Executor:
        lowered = run_passes(one, passes)
        made = plan(lowered, groups(lowered))
        found = []
        for step in made.steps:
            key = step.func.digest
            if key not in kernels:
                kernels[key] = best_kernel(step.func, machine, database=database, strict=strict)
            found.append(kernels[key])
        return Executor(made, found)

    return Model(graph, compile_graph)


def extract_tasks(
    graph: Graph | Program,
    target: Target | None = None,
    *,
    passes: Sequence[Pass] = PASSES,
    groups: Partition = partition,
) -> list[tuple[Task, int]]:
    """The tasks of a graph, each with the number of times it occurs."""
    if not isinstance(graph, Graph):
        open_inputs = [str(s) for s in graph.inputs if s.is_open]
        what = f"its inputs {', '.join(open_inputs)} are open" if open_inputs else "it has stages"
        raise GraphError(
            f"{graph.name} has no tasks yet: {what}; give the sizes, as in "
            'ts.load_onnx(path, dims={"batch": 1})'
        )
    machine = cpu() if target is None else target
    lowered = run_passes(graph, passes)
    found: dict[str, tuple[Task, int]] = {}
    for step in plan(lowered, groups(lowered)).steps:
        task = Task(step.func, machine)
        before = found.get(task.key)
        found[task.key] = (task, 1) if before is None else (before[0], before[1] + 1)
    return list(found.values())
