"""The page of a database: one HTML file with everything inside, for people who would rather look
than read.
"""

from __future__ import annotations

import json
import pkgutil
from dataclasses import asdict
from html import escape

from tilesmith.base.errors import ArgumentError
from tilesmith.report.records_script import SCRIPT, STYLE
from tilesmith.report.records_view import RecordsView, TaskView

_SECTIONS = """
<nav><label>Task: <select id="task"></select></label></nav>
<h2>Best time so far</h2>
<p>Each line is a tuning run; lower is better. Left by time, right by measured candidates.</p>
<div class="two"><div id="time" class="chart"></div><div id="trials" class="chart"></div></div>
<h2>Best time of each task</h2>
<p>With its share of the sum, each task counted once.</p>
<div id="shares"></div>
<h2>Roofline</h2>
<p>Each point is the best kernel of a task; further up is faster. The dashed lines are what the
arithmetic units of this machine can do, measured when this page was written; they are missing for
tasks of other machines.</p>
<div id="roofline" class="chart"></div>
<h2>Failures</h2>
<div id="failures" class="chart"></div>
<h2>Decisions against speed</h2>
<p id="of"></p>
<label>Decision: <select id="column"></select></label>
<div id="decision" class="chart"></div>
<h2>Schedule and code of the best</h2>
<p id="whose"></p>
<div class="two">
<div><h3>Schedule</h3><pre id="schedule"></pre></div>
<div><h3>From the second best to it</h3><pre id="schedule-changes"></pre></div>
<div><h3>Generated code</h3><pre id="source"></pre></div>
<div><h3>From the second best to it</h3><pre id="source-changes"></pre></div>
</div>
"""


def records_page(view: RecordsView) -> str:
    """The HTML text, which loads nothing from anywhere."""
    title = f"Tuning records of {escape(view.place)}"
    measured, failed = sum(t.measured for t in view.tasks), sum(t.failed for t in view.tasks)
    lead = f"{len(view.tasks)} tasks, {measured} measurements, {failed} of them failed. "
    # In a script element only "</" and "<!--" could end the text early.
    data = json.dumps(asdict(view), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n<script>{_plotly()}</script>\n</head>",
            f"<body>\n<h1>{title}</h1>\n<p>{lead}{escape(' '.join(view.notes))}</p>",
            _SECTIONS,
            _comparison(view),
            "<h2>All tasks</h2>",
            _table(view),
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        )
    )


def require_plotly() -> None:
    """Raises if the charts cannot be drawn, before a database is read."""
    _plotly()


def _plotly() -> str:
    """The text of plotly.js, from the installed package."""
    try:
        script = pkgutil.get_data("plotly", "package_data/plotly.min.js")
    except (ImportError, OSError):
        script = None
    if script is None:
        raise ArgumentError("the page needs plotly; pip install 'tilesmith[report]'")
    return script.decode()


def _comparison(view: RecordsView) -> str:
    c = view.comparison
    if c is None:
        return ""
    mean = "" if c.mean is None else f" Geometric mean: {c.mean:.3f}."
    return (
        f"<h2>Compared with {escape(c.other)}</h2>\n<p>Its best time over the best time here: "
        f"above 1 is faster here. {escape(c.note)}{mean}</p>\n"
        '<div id="comparison"></div>'
    )


def _table(view: RecordsView) -> str:
    names = ("task", "key", "measured", "failed", "best, us", "GFLOP/s", "machine")
    head = "".join(f"<th>{n}</th>" for n in names)
    return (
        f'<div class="scroll"><table><tr>{head}</tr>{"".join(map(_row, view.tasks))}</table></div>'
    )


def _row(t: TaskView) -> str:
    best = "-" if t.best is None else f"{t.best:.2f}"
    rate = "-" if t.gflops is None else f"{t.gflops:.1f}"
    cells = (t.name, t.key[:12], str(t.measured), str(t.failed), best, rate, t.machine)
    return f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>"
