"""What a front end hands to compile_model: a Graph if all sizes are known and one stage covers the
model, else a Program.
"""

from __future__ import annotations

from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.program import Program, Stage

OpenGraph = Graph | Program


def first_stage(program: Program) -> Stage | None:
    """The first stage, if all inputs have known shapes and their contents are not needed."""
    if any(s.is_open for s in program.inputs) or program.start.contents:
        return None
    types = {s.name: Value(s.name, s.dims, s.dtype) for s in program.inputs}  # type: ignore[arg-type]
    return program.stage(program.start, types, {})


def closed(program: Program) -> OpenGraph:
    """The program as one Graph, where that is possible."""
    stage = first_stage(program)
    if stage is None or stage.cursor is not None:
        return program
    return stage.graph
