"""The page of a database: one HTML file of charts, with all scripts and data inside."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from tilesmith.report.graph_svg import clean
from tilesmith.report.plotly_text import plotly_text
from tilesmith.report.records_charts import CHARTS
from tilesmith.report.records_script import SCRIPT, START, STYLE
from tilesmith.report.records_view import RecordsView

_LEAST = 1e-15  # the smallest number on the page, and one over the largest

_HEAD = """<header><h1>{title}</h1>
<div class="cards" id="cards"></div><p id="notes"></p></header>
<nav><div>
<label>Network <select id="network"></select></label>
<label>Task <select id="task"></select></label>
<label>Filter <input id="find" type="search" placeholder="part of a task's name"></label>
<span id="live"></span>
<span id="links"><a href="#best">Progress</a><a href="#where">Latency</a>
<a href="#speed">Roofline</a><a href="#models">Predictions</a><a href="#tiles">Decisions</a>
<a href="#broken">Failures</a><a href="#code">Code</a>{comparison_link}
<a href="#tasks">Tasks</a></span>
</div></nav>
"""

_SECTIONS = """
<section id="networks"><h2>Networks: latency while they were tuned</h2>
<p>Each line is one run of tuning a network: the best times of its tasks so far, each times how
often the network runs it. Lower is better; a line that has gone flat has little left to gain.
<span id="networks-missing"></span></p>
<div class="two"><div id="network-time" class="chart"></div>
<div id="network-trials" class="chart"></div></div></section>

<section id="best"><h2>Tasks: best time so far</h2>
<p>Each line is one tuning run of a task; lower is better. On the left against time, on the right
against the number of measured candidates: a run that is steep on the right and flat on the left
waits for slow builds or a slow device.</p>
<div class="two"><div id="time" class="chart"></div><div id="trials" class="chart"></div></div>
</section>

<section id="where"><h2>Where the time goes</h2>
<p>The longest bars are the tasks worth tuning further. <span id="shares-of"></span></p>
<div id="shares"></div></section>

<section id="speed"><h2>Roofline</h2>
<p>Each large point is the best kernel of a task; the nearer it is to the lines above it, the less
there is to gain. Under the slope a kernel waits for data, under the flat part for arithmetic. The
flat part was measured when this page was made; the slopes (data in the L2 cache, data in memory)
are estimates. A kernel above the lines does with fewer operations than are counted, as Winograd's
method does. Other machines than this one have no lines.</p>
<div id="roofline" class="chart"></div></section>

<section id="models"><h2>Measured against predicted</h2>
<p>Each point is a program; on the dashed line it ran as fast as predicted. What helps a search is
the order: a rank correlation of 1 puts all programs in the right order, 0 is a guess. On the left
the analytic score, which knows no measurement. On the right a model that was trained for this page
on the programs measured <em>before</em> the point, never on the point itself. Late programs of a
search are all nearly as fast, so their order is hard to tell. <span id="predicted-of"></span></p>
<div class="two">
<div><h3>Analytic score</h3><div id="predicted-analytic" class="chart"></div></div>
<div><h3>Learned model</h3><div id="predicted-learned" class="chart"></div></div></div>
<div id="correlations"></div></section>

<section id="tiles"><h2>Decisions against speed</h2>
<p>Which tile sizes win: each point is a candidate with that value, the line is the fastest with
each, the star the fastest of all. The menu lists the decisions that explain most of the differences
first. <span id="of"></span></p>
<label>Decision <select id="column"></select></label>
<div id="decision" class="chart"></div></section>

<section id="broken"><h2>Failures</h2>
<p>Candidates that did not build, crashed, took too long or computed something wrong, by kind, with
the share of all measured. A few are normal; many waste the budget.
<span id="failures-none"></span></p>
<div id="failures"></div>
<div class="scroll" id="failures-table"><table><thead><tr><th class="text">kind</th><th>count</th>
<th class="text">first seen in</th><th class="text">first message</th></tr></thead>
<tbody id="failures-body"></tbody></table></div></section>

<section id="code"><h2>Schedule and code of the best</h2>
<p id="whose"></p>
<div class="two">
<div><h3>Schedule</h3><pre id="schedule"></pre></div>
<div><h3>What changed from the runner-up</h3><pre id="schedule-changes"></pre></div>
<div><h3>Generated code</h3><pre id="source"></pre></div>
<div><h3>What changed from the runner-up</h3><pre id="source-changes"></pre></div>
</div></section>
"""

_TABLE = """
<section id="tasks"><h2>All tasks</h2>
<p>Click a row to choose the task, a heading to sort.</p>
<div class="scroll"><table><thead><tr><th class="text" data-sort="name">task</th>
<th data-sort="best">best time</th><th data-sort="rate">GFLOP/s</th>
<th data-sort="peak">of the peak</th><th data-sort="measured">measured</th>
<th data-sort="failed">failed</th><th class="text" data-sort="machine">machine</th></tr></thead>
<tbody id="tasks-body"></tbody></table></div></section>
<footer id="made"></footer>
"""


def records_page(view: RecordsView, refresh_seconds: float = 0.0) -> str:
    """The HTML text, which loads nothing from anywhere. With `refresh_seconds` it asks the server
    it came from for `data` (see `records_json`) that often.
    """
    title = f"Tuning records of {clean(view.place)}"
    link = '<a href="#compared">Comparison</a>' if view.comparison else ""
    live = f"const live = {refresh_seconds:.3f};"
    # In a script element only "</" and "<!--" could end the text early.
    data = records_json(view).replace("<", "\\u003c")
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>",
            f"<body>\n{_HEAD.format(title=title, comparison_link=link)}<main>",
            _SECTIONS,
            _comparison(view),
            f"{_TABLE}</main>",
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>{SCRIPT}{CHARTS}{live}{START}</script>",
            # The text can be read, and menus work, before the charts come.
            f"<script>{plotly_text()}</script>\n<script>pump();</script>\n</body>\n</html>\n",
        )
    )


def records_json(view: RecordsView) -> str:
    return json.dumps(_plain(view), allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Dicts and lists. JSON has no infinities, and a logarithmic axis of hundreds of decades stops
    a browser: what no clock can have measured is left out.
    """
    if isinstance(value, float):
        return value if value == 0 or _LEAST < abs(value) < 1 / _LEAST else None
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _comparison(view: RecordsView) -> str:
    c = view.comparison
    if c is None:
        return ""
    mean = "" if c.mean is None else f" Geometric mean: {c.mean:.3f} times as fast here."
    return (
        f'<section id="compared"><h2>Compared with {clean(c.other)}</h2>\n'
        "<p>How many times as fast the best kernel here is as the best one there; bars to the "
        f"right of 1 are faster here. {clean(c.note)}{mean}</p>\n"
        '<div id="comparison"></div></section>'
    )
