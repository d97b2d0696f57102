"""`tilesmith show graph`: what a model becomes, as text and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilesmith.base.target import cpu
from tilesmith.base.whole_file import write_whole
from tilesmith.cli.arguments import require_file
from tilesmith.cli.graph_text import graph_lines
from tilesmith.cli.model_arguments import DimOption, loaded, require_model
from tilesmith.cli.table import Wide, output_width, printable
from tilesmith.report.graph_html import graph_html
from tilesmith.report.graph_svg import graph_svg
from tilesmith.report.graph_view import graph_view, stages_view
from tilesmith.report.model_inputs import random_inputs
from tilesmith.tune.compile_model import compile_model


def graph(
    model: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="the ONNX file to look at")],
    dim: DimOption = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="draw it as a picture in this file")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="draw it as a page with hover text and zoom"),
    ] = None,
    random: Annotated[
        bool,
        typer.Option(
            "--random",
            help="compile and run it once on random numbers, to see also what depends on results",
        ),
    ] = False,
    wide: Wide = False,
) -> None:
    """Print what a model becomes: its groups, one kernel each, and their tasks.

    Each group has a line with its kernel, the shape it writes, its arithmetic (FLOP), the bytes it
    reads and writes, its task, and the nodes of the model that it computes. Equal groups are one
    task. Then come the memory that is needed and what runs on the host.

    Example: tilesmith show graph model.onnx --dim batch=1 --html model.html
    """
    require_model(model)
    for option, path in (("--svg", svg), ("--html", html)):
        if path is not None:
            require_file(option, path)
    source, _ = loaded(model, dim)
    if random:
        compiled = compile_model(source, sizes="each")
        compiled(random_inputs(compiled.inputs))
        view = stages_view(compiled, cpu())
    else:
        view = graph_view(source, cpu())
    for line in graph_lines(view, None if wide else output_width()):
        print(printable(line))
    if svg is not None:
        write_whole(svg, graph_svg(view))
    if html is not None:
        write_whole(html, graph_html(view))
