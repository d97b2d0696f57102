"""The page of a database: one HTML file of charts, with all scripts and data inside."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from tilesmith.records.networks import NetworkStep
from tilesmith.report.graph_svg import clean
from tilesmith.report.plotly_text import plotly_text
from tilesmith.report.records_view import RecordsView
from tilesmith.report.static_text import static_text

SCRIPTS = ("records.js", "records_charts.js", "records_decisions.js", "records_layers.js")
_LEAST = 1e-15  # the smallest number on the page, and one over the largest


def records_page(view: RecordsView, refresh_seconds: float = 0.0) -> str:
    """The HTML text, which loads nothing from anywhere. With `refresh_seconds` it asks the server
    it came from for `data` and `step` (see `records_json`) that often.
    """
    title = f"Tuning records of {clean(view.place)}"
    body = static_text("records.html", title=title)
    scripts = "".join(map(static_text, SCRIPTS))
    live = f"const live = {refresh_seconds:.3f};"
    # In a script element only "</" and "<!--" could end the text early.
    data = records_json(view).replace("<", "\\u003c")
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">',
            f"<title>{title}</title>\n<style>{static_text('records.css')}</style>\n</head>",
            body,
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>{scripts}{live}{static_text('records_start.js')}</script>",
            # The text can be read, and menus work, before the charts come.
            f"<script>{plotly_text()}</script>\n<script>pump();</script>\n</body>\n</html>\n",
        )
    )


def records_json(view: RecordsView | NetworkStep | None) -> str:
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
