"""The page of a database in a real browser: it loads nothing from elsewhere, nothing in it breaks,
menus and hovers work, and it follows a run.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from bench.chromium import BROWSER, Chromium
from tilesmith.records.networks import (
    LayerUse,
    NetworkStep,
    NetworkUse,
    store_network_step,
    store_network_uses,
)
from tilesmith.report.network_view import NetworkView, RunCurve, TaskUse
from tilesmith.report.plotly_text import read_once, with_bars_only
from tilesmith.report.portfolio_svg import portfolio_svg
from tilesmith.report.predictions import Predictions
from tilesmith.report.records_page import records_json, records_page
from tilesmith.report.records_view import (
    POINTS,
    Comparison,
    PortfolioView,
    Ratio,
    RecordsView,
    records_view,
)
from tilesmith.report.roofs import Roof
from tilesmith.schedule.sample import SampleTile
from tilesmith.task.task import Moment, TuningRun
from tilesmith.tune.portfolio import Portfolio

pytest.importorskip("plotly", reason="the page needs plotly: pip install 'tilesmith[report]'")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium")

CHARTS = {
    "network-time", "network-trials", "time", "trials", "shares", "roofline", "predicted-analytic",
    "predicted-learned", "decision", "parallel",
}  # fmt: skip
SMALL, LARGE = (f"{name} {n}x{n}, {n}x{n} -> {n}x{n} float32" for n, name in (
    (16, "small"), (32, "large")))  # fmt: skip
PLACES = (("aten.addmm.default layer.0.fc", "aten.relu.default layer.0.act"),)
IN_PLACE = f"{SMALL}layer.0.{{fc, act}}"  # as the table shows it, on two lines
HOSTILE = (
    '</script><script>window.injected = 1</script><img src=x onerror="window.injected=1">\'%{x}&'
)
NARROW = (LayerUse(PLACES[0][0], "int8", 0.0113, 0.6, HOSTILE),)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    b = Chromium(tmp_path_factory.mktemp("profile"))
    yield b
    b.close()


def task_of(n: int, name: str, target: ts.Target | None = None) -> ts.Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    product = ts.ops.matmul(a, b, name="C")
    return ts.Task(ts.function([a, b, product], name=name), target or ts.cpu(1))


def measured(task: ts.Task, run: str, rows: int, trial: int, seconds: float) -> ts.Measurement:
    sch = ts.Schedule(task.func)
    i, j, _ = sch.loops("C")
    sch.split(i, [None, rows])
    sch.vectorize(sch.split(j, [None, 8])[1])
    trace = ts.Trace((SampleTile("C.i", 2, decision=(32 // rows, rows)), *sch.trace))
    tuning = TuningRun(run, "evolution", "", 7, ts.Budget(trials=4), 100.0, "m")
    return replace(
        ts.Measurement(ts.Candidate(task, trace), (seconds,) * 3, when=100.0 + trial),
        moment=Moment(tuning, 1.0 * trial, trial),
    )


def fill(place: Path, factor: float = 1.0, name: str = "large") -> Path:
    """Two tasks of two networks, which share the small one."""
    small, large = task_of(16, "small"), task_of(32, name)
    with ts.open_database(place) as d:
        for task, scale in ((small, 1.0), (large, 4.0)):
            run = f"r{scale}"
            times = enumerate([(1, 4e-6), (2, 3e-6), (4, 2e-6), (8, 5e-6)], 1)
            d.add([measured(task, run, r, k, scale * factor * s) for k, (r, s) in times])
            uses = [NetworkUse("both", 2, 100.0, run)]
            if task is small:
                uses.append(NetworkUse("all", 1, 100.0, run, PLACES, 1, NARROW))
            store_network_uses(d, task, 100.0, uses)
        failed = measured(large, "r4.0", 16, 5, 1.0)
        failure = ts.Failure("crash", f"signal 11 {HOSTILE}")
        d.add([replace(failed, seconds=(), failure=failure)])
    return place


def view_of(place: Path, other: Path | None = None) -> RecordsView:
    with ts.open_database(place) as d:
        if other is None:
            return records_view(d, "t.db")
        with ts.open_database(other) as o:
            return records_view(d, "t.db", [("o.db", o)])


def with_predictions(view: RecordsView) -> RecordsView:
    """As a search leaves them, without the hundred records that it takes."""
    times = (4.0, 2.0, 3.0, 1.0)
    found = Predictions(times, (3.0, 2.0, 3.0, 1.5), (None, 2.0, 2.5, 1.0), 0.9, 1.0, 9)
    return replace(view, tasks=tuple(replace(t, predictions=found) for t in view.tasks))


def opened(browser: Chromium, folder: Path, view: RecordsView) -> None:
    file = folder / "page.html"
    file.write_text(records_page(view), encoding="utf-8")
    browser.open(file.as_uri())
    assert browser.requests == [file.as_uri()]
    require_no_error(browser)


def swapped(browser: Chromium, view: RecordsView) -> None:
    """Other data on the page that is open, as `--watch` brings them: plotly.js takes a second."""
    browser.run(
        f"data = {records_json(view)}; at('find').value = '';"
        "choose({network: 'all', task: 'all', find: '', column: ''}); scrollTo(0, 0)"
    )
    require_no_error(browser)


def require_no_error(browser: Chromium) -> None:
    assert browser.run("window.injected") is None
    assert browser.errors == []


def paint_all(browser: Chromium) -> dict[str, Any]:
    """Draws what is out of sight, too; the traces and the layout of each chart."""
    browser.run("for (const id of [...waiting.keys()]) paint(id)")
    text = browser.run(
        "JSON.stringify(Object.fromEntries([...document.querySelectorAll('.js-plotly-plot')]"
        ".map(c => [c.id, [c.data, c.layout]])))"
    )
    require_no_error(browser)
    found: dict[str, Any] = json.loads(text)
    return found


def choose(browser: Chromium, menu: str, text: str) -> None:
    done = browser.run(
        f"(() => {{const m = at({menu!r});"
        f"const o = [...m.options].find(o => o.textContent === {text!r});"
        "m.value = o.value; m.dispatchEvent(new Event('change')); return true})()"
    )
    assert done


def texts(browser: Chromium, selector: str) -> list[str]:
    found: list[str] = browser.run(
        f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)"
    )
    return found


@pytest.fixture
def page(browser: Chromium, tmp_path: Path) -> Chromium:
    """The browser with a page of two tasks."""
    view = with_predictions(view_of(fill(tmp_path / "t.db")))
    if browser.run("typeof drawAll === 'function'"):
        swapped(browser, view)
    else:
        opened(browser, tmp_path, view)
    return browser


def test_every_chart_is_drawn_without_the_network(browser: Chromium, tmp_path: Path) -> None:
    from plotly.graph_objects import Figure

    opened(browser, tmp_path, with_predictions(view_of(fill(tmp_path / "t.db"))))
    charts = paint_all(browser)
    assert charts.keys() >= CHARTS | {"failures", "correlations"}
    for traces, layout in charts.values():
        Figure(traces, layout)  # raises for a property that plotly does not have
        assert traces
    assert texts(browser, "#cards div")[:3] == ["2tasks", "2networks", "9measurements"]
    (curve,) = [t for t in charts["time"][0] if t["name"].startswith("small ")]
    assert (curve["x"], curve["y"]) == ([1, 2, 3, 4], pytest.approx([4, 3, 2, 2]))
    by_network = {t["name"]: t for t in charts["network-trials"][0]}
    # both = 2 x large and 2 x small; after the first two trials, one of each
    assert by_network["both"]["y"] == pytest.approx([40, 30, 20, 20])
    assert by_network["all"]["y"] == pytest.approx([4, 3, 2, 2])
    assert charts["failures"][0][0]["x"] == [1]
    assert charts["predicted-learned"][0][1]["x"] == [2, 2.5, 1]
    assert "rank correlation 0.90" in str(charts["predicted-analytic"][1])
    # by the outer tile: 4, 8, 16 and 32 rows
    assert charts["decision"][0][1]["y"] == pytest.approx([20, 8, 12, 16])
    assert "split" in texts(browser, "#schedule")[0]
    assert any("+" in t for t in texts(browser, "#schedule-changes .add"))


def test_portfolios_are_drawn_where_there_are_some(page: Chromium, tmp_path: Path) -> None:
    shown = "getComputedStyle(at('sizes')).display"
    assert page.run(shown) == "none"
    n = ts.size("n", range=(1, 9), samples={1: 1, 9: 1})
    x = ts.placeholder((n, 8), name="X")
    func = ts.function([x, ts.ops.relu(x)], name="relu")
    found = Portfolio(
        func, ((("n", 1),), (("n", 9),)), (1.0, 1.0), (HOSTILE, HOSTILE),
        ((1e-6, 9e-6), (2e-6, 6e-6)), (0, 1),
    )  # fmt: skip
    one = PortfolioView(HOSTILE, HOSTILE, portfolio_svg(found))
    swapped(page, replace(view_of(fill(tmp_path / "p.db")), portfolios=(one,)))
    assert page.run(shown) == "block"
    assert texts(page, "#portfolios h3") == [HOSTILE]
    assert texts(page, "#portfolios rect.served title") == [
        "kernel 0 runs for n from 1 to 3", "kernel 1 runs for n from 4 to 9",
    ]  # fmt: skip
    assert page.run("document.querySelector('svg.portfolio').getBoundingClientRect().height") > 200


def test_the_types_of_layers_are_a_table(page: Chromium) -> None:
    assert page.run("at('precision').style.display") == ""
    assert texts(page, "#precision-of") == ["all"]
    assert texts(page, "#precision-counts") == ["1 in int8"]
    cells = [PLACES[0][0], "int8", "2 µs", "0.011", "60 %", HOSTILE]
    assert texts(page, "#precision-body td") == cells
    page.run("document.querySelector('#precision-body tr').click()")
    assert texts(page, "#precision-body .on td") == cells
    choose(page, "network", "both")  # it has no layers in narrow numbers
    assert page.run("at('precision').style.display") == "none"
    require_no_error(page)


def test_menus_filter_and_the_table_chooses(page: Chromium) -> None:
    browser = page
    assert texts(browser, "#task option") == ["all (2)", LARGE, SMALL]
    choose(browser, "network", "both")
    assert "as often as both runs it. In all: 20 µs" in texts(browser, "#shares-of")[0]
    assert texts(browser, "#network option") == ["all", "both", "all"]  # the last is its name
    browser.run("at('network').selectedIndex = 2; at('network').dispatchEvent(new Event('change'))")
    assert texts(browser, "#task option") == ["all (1)", SMALL]
    browser.run("choose({network: 'all'})")
    browser.run("at('find').value = 'LARG'; at('find').dispatchEvent(new Event('input'))")
    assert texts(browser, "#tasks-body td:first-child") == [LARGE]
    for words, found in (("16x16 FLOAT32", [IN_PLACE]), ("layer.0", [IN_PLACE])):
        browser.run(f"choose({{find: {words!r}}})")
        assert texts(browser, "#tasks-body td:first-child") == found
    browser.run("choose({find: ''})")
    browser.run("document.querySelectorAll('#tasks-body tr')[1].click()")
    assert f"Task {SMALL}, layer.0.{{fc, act}}: 2 µs" in texts(browser, "#whose")[0]
    assert browser.run("location.hash").endswith(browser.run("at('task').value"))
    assert paint_all(browser)["decision"][0][1]["y"] == pytest.approx([5, 2, 3, 4])
    assert texts(browser, "#failures-none") == ["Nothing failed."]
    columns = texts(browser, "#column option")
    choose(browser, "column", columns[-1])
    assert columns[-1].startswith(paint_all(browser)["decision"][1]["xaxis"]["title"]["text"])
    browser.run("document.querySelector('#tasks th').click()")
    assert texts(browser, "#tasks-body td:first-child") == [IN_PLACE, LARGE]
    require_no_error(browser)


def test_a_hover_says_what_a_point_is(page: Chromium, tmp_path: Path) -> None:
    browser = page
    swapped(browser, view_of(fill(tmp_path / "h.db", name=f"large {HOSTILE}")))
    paint_all(browser)
    for chart, mark, says in (
        ("roofline", ".point", "GFLOP/s at"), ("shares", ".point path", "1 × 8 µs"),
    ):  # fmt: skip
        browser.run(f"at('{chart}').scrollIntoView({{block: 'center'}})")
        browser.wait_for(f"document.querySelector('#{chart} {mark}') !== null")
        x, y = browser.run(
            f"(() => {{const b = document.querySelector('#{chart} {mark}').getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        browser.move(x - 3, y)
        browser.move(x, y)
        browser.wait_for(f"document.querySelector('#{chart} .hovertext') !== null")
        text = " ".join(texts(browser, f"#{chart} .hovertext"))
        assert says in text
        assert "<img src=x" in text  # the name as text
        assert browser.run("document.querySelectorAll('img').length") == 0
    require_no_error(browser)


def test_many_lines_are_drawn_together_and_told_apart(page: Chromium, tmp_path: Path) -> None:
    view = view_of(fill(tmp_path / "l.db"))
    tasks = tuple(replace(view.tasks[0], name=f"task {k}", key=str(k)) for k in range(16))
    swapped(page, replace(view, tasks=tasks, networks=()))
    traces = paint_all(page)["time"][0]
    assert len(traces) == 7  # colours
    assert traces[1]["x"] == [1, 2, 3, 5, None, 1, 2, 3, 5, None, 1, 2, 3, 5]
    assert [t.split(",")[0] for t in traces[1]["text"][::5]] == ["task 1", "task 8", "task 15"]
    # The curves are equal, so that the last one drawn is seen.
    page.run("at('time').scrollIntoView({block: 'center'})")
    x, y = page.run(
        "(() => {const c = at('time'), b = c.getBoundingClientRect();"
        "const {xaxis, yaxis} = c._fullLayout;"
        "return [b.x + xaxis._offset + xaxis.d2p(2), b.y + yaxis._offset + yaxis.d2p(12)]})()"
    )
    page.move(x - 3, y)
    page.move(x, y)
    page.wait_for("document.querySelector('#time .hovertext') !== null")
    (said,) = texts(page, "#time .hovertext")
    assert said.startswith("12 µs after 2 stask ")
    require_no_error(page)


def test_two_databases_side_by_side(browser: Chromium, tmp_path: Path) -> None:
    other = fill(tmp_path / "o.db", factor=4.0)
    opened(browser, tmp_path, view_of(fill(tmp_path / "t.db"), other))
    (marks,) = paint_all(browser)["comparison"][0]
    assert marks["x"] == pytest.approx([4, 4])
    assert marks["text"] == ["4 × as fast here (4 to 4)"] * 2
    assert sorted(marks["hovertext"]) == ["here 2 µs, there 8 µs", "here 8 µs, there 32 µs"]
    assert "Geometric mean: 4.000" in texts(browser, "#compared p")[0]
    browser.run("choose({find: 'small'})")
    assert paint_all(browser)["comparison"][0][0]["customdata"] == [escape(SMALL)]


def test_small_differences_look_small_and_show_what_is_uncertain(
    page: Chromium, tmp_path: Path
) -> None:
    """Of several databases: 0.8 % is no bar of full width, and open where it may be none."""
    view = view_of(fill(tmp_path / "t.db"))
    unclear, clear = (
        Comparison(name, (Ratio(SMALL, 2.0, 2.016, 1.008, low, 1.02),), 1.008, "1 of 2 tasks.")
        for name, low in (("monday.db", 0.99), ("tuesday.db", 1.004))
    )
    swapped(page, replace(view, comparisons=(unclear, clear)))
    traces, layout = paint_all(page)["comparison"]
    assert [t["marker"]["symbol"] for t in traces] == [["circle-open"], ["circle"]]
    assert [t["error_x"]["arrayminus"][0] for t in traces] == pytest.approx([0.018, 0.004])
    assert [t["error_x"]["array"][0] for t in traces] == pytest.approx([0.012, 0.012])
    low, high = (10**v for v in layout["xaxis"]["range"])
    assert high / low == pytest.approx(1.25)
    assert low * high == pytest.approx(1)
    swapped(page, replace(view, tasks=tuple(
        replace(t, curves=(RunCurve("r", "", (0.0, 1.0), (1, 2), (100.0, 99.2)),))
        for t in view.tasks
    )))  # fmt: skip
    low, high = (10**v for v in paint_all(page)["time"][1]["yaxis"]["range"])
    assert high / low == pytest.approx(1.25)


def test_ticks_stand_at_1_2_5_in_order_and_numbers_are_plain(
    page: Chromium, tmp_path: Path
) -> None:
    def ticks(low: float, high: float, most: int = 8) -> list[str]:
        found: list[str] = page.run(f"ticked([{low}, {high}].map(Math.log10), {most}).ticktext")
        assert [float(t) for t in found] == sorted(float(t) for t in found)
        return found

    assert ticks(3, 70) == ["5", "10", "20", "50"]
    assert ticks(0.9, 1500, 4) == ["1", "10", "100", "1000"]
    assert ticks(0.0006, 0.03) == ["0.001", "0.002", "0.005", "0.01", "0.02"]
    assert ticks(94.9, 131) == ["95", "100", "105", "110", "115", "120", "125", "130"]
    assert ticks(1e-9, 1e9, 4) == ["1e-5", "1", "100000"]
    assert page.run("[159.4, 1234.5, 0.0123456].map(v => digits(v))") == ["159", "1230", "0.0123"]
    # Where points lie far right, both slopes are in view.
    view = view_of(fill(tmp_path / "t.db"))
    tasks = tuple(replace(t, intensity=1000.0 * t.intensity) for t in view.tasks)
    swapped(page, replace(view, tasks=tasks, roofs=(Roof("here", 80.0, 160.0, 20.0),)))
    traces, layout = paint_all(page)["roofline"]
    assert [t["name"] for t in traces[:2]] == [
        "L2 cache: 160 GB/s, 80 GFLOP/s", "memory: 20 GB/s, 80 GFLOP/s"
    ]  # fmt: skip
    low, high = (10**v for v in layout["xaxis"]["range"])
    for slope, knee in zip(traces[:2], (0.5, 4.0), strict=True):
        first, bend, last = slope["x"]
        assert low < first < bend == knee < last < high
        assert slope["y"][0] < slope["y"][1] == slope["y"][2] == 80
    # After a zoom the ticks fit the new range.
    page.run("Plotly.relayout('roofline', {'xaxis.range': [0, 1]}).then(() => 0)")
    assert page.run("at('roofline').layout.xaxis.ticktext") == ["1", "2", "5", "10"]


def test_layers_of_a_network_are_as_wide_as_their_share(page: Chromium, tmp_path: Path) -> None:
    view = view_of(fill(tmp_path / "t.db"))
    number = {t.name: k for k, t in enumerate(view.tasks)}
    uses = (
        TaskUse(number[LARGE], 2, (("stem", "conv"), ("head", "fc"))),
        TaskUse(number[SMALL], 2, (("stem", "act"), ("head", "act"))),
    )
    swapped(page, replace(view, networks=(NetworkView("net", uses, (), 0),)))
    every = "[...document.querySelectorAll('#flame div')]"
    boxes = page.run(f"{every}.map(b => [b.title, b.offsetWidth])")
    total = boxes[0][1]
    shares = {title.split(":")[0]: width / total for title, width in boxes}
    assert shares == {
        "net": 1, "head": pytest.approx(0.5, abs=0.01), "stem": pytest.approx(0.5, abs=0.01),
        "head › fc": pytest.approx(0.4, abs=0.01), "head › act": pytest.approx(0.1, abs=0.01),
        "stem › conv": pytest.approx(0.4, abs=0.01), "stem › act": pytest.approx(0.1, abs=0.01),
    }  # fmt: skip
    assert f"head › fc: {LARGE}: 8 µs, 40 %" in [title for title, _ in boxes]
    rows = texts(page, "#layers-body tr")
    assert rows[0] == f"head › act{SMALL}2 µs10 % "
    assert len(rows) == 4
    page.run(f"{every}[1].click()")  # enlarges the head
    wide = page.run(f"{every}.map(b => b.title.split(':')[0])")
    assert wide == ["net", "head", "head › act", "head › fc"]
    page.run(f"{every}[3].click()")
    assert texts(page, "#task option:checked") == [LARGE]
    require_no_error(page)


def test_runs_and_decisions_are_compared(page: Chromium, tmp_path: Path) -> None:
    view = view_of(fill(tmp_path / "t.db"))
    first, second = (
        RunCurve(f"seed {k}", "2026-01-02 03:04:05", (0.0, 5.0, 9.0), (1, 20, 40), (8.0, 4.0, end))
        for k, end in ((1, 4.0), (2, 5.0))
    )
    tasks = tuple(
        replace(
            t, curves=(first, second) if t.name == SMALL else (),
            decisions=replace(t.decisions, total=8),
        )
        for t in view.tasks
    )  # fmt: skip
    swapped(page, replace(view, tasks=tasks, networks=()))
    cells = texts(page, "#runs-body td")
    assert cells[1:8] == [
        "2026-01-02 03:04:05", "40", "9", "8 µs", "4 µs", "best", "5 s"
    ]  # fmt: skip
    assert cells[14] == "25.0 %"
    # The rows of a tile decide the time of both tasks.
    heads = texts(page, "#importance th")
    assert {"C.i.0", "C.i.1"} & set(heads) or {"i.0", "i.1"} <= set(heads)
    page.run("document.querySelectorAll('#importance-body tr')[2].querySelector('[title]').click()")
    assert texts(page, "#task option:checked") == [SMALL]
    traces, layout = paint_all(page)["parallel"]
    assert layout["xaxis"]["ticktext"][-1] == "time, µs"
    drawn = [(x, y) for t in traces for x, y in zip(t["x"], t["y"], strict=True)]
    ends = [y for x, y in drawn if x == len(layout["xaxis"]["ticktext"]) - 1]
    assert len(ends) == 4  # a line for each candidate
    assert (max(ends), min(ends)) == (1, 0)


OVERLAPS = """(() => {
  const out = [];
  const see = e => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
  for (const chart of document.querySelectorAll('.js-plotly-plot')) {
    const all = [...chart.querySelectorAll('.infolayer text, .xtick text, .ytick text')]
      .filter(e => e.textContent.trim() && !e.closest('.modebar') && see(e))
      .map(e => [e.textContent, e.getBoundingClientRect()]);
    const box = chart.getBoundingClientRect();
    all.forEach(([t, a], i) => {
      if (a.left < box.left - 1 || a.right > box.right + 1 || a.bottom > box.bottom + 1)
        out.push(chart.id + ': ' + t + ' is cut');
      all.slice(i + 1).forEach(([s, b]) => {
        const over = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (over > 1 && down > 3) out.push(chart.id + ': ' + t + ' | ' + s);
      });
    });
  }
  const parts = [...document.querySelectorAll('section > *, .two > *, dl > *, nav label, nav a')]
    .filter(e => see(e) && e.offsetHeight);
  parts.forEach((e, i) => parts.slice(i + 1).forEach(f => {
    if (e.contains(f) || f.contains(e) || e.closest('nav') !== f.closest('nav')) return;
    const a = e.getBoundingClientRect(), b = f.getBoundingClientRect();
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3 && getComputedStyle(
      (e.closest('nav') || document.body)).position !== 'sticky')
      out.push((e.id || e.textContent.slice(0, 40)) + ' | ' + (f.id || f.textContent.slice(0, 40)));
  }));
  return out;
})()"""
OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => {
  const b = e.getBoundingClientRect();
  return b.width && (b.right > innerWidth + 1 || b.left < -1) && !e.closest('.scroll, pre, svg')
    && e.checkVisibility();
}).map(e => e.tagName + ' ' + (e.id || e.className))"""


@pytest.mark.turns(2)
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_fits_the_window(page: Chromium, tmp_path: Path, width: int) -> None:
    """What is wanted has a size, nothing hangs out at the side, and no text lies on another."""
    view = with_predictions(view_of(fill(tmp_path / "t.db"), fill(tmp_path / "o.db", factor=1.1)))
    long_name = (
        "conv2d_bias_relu_add 1x224x224x64, 3x3x64x128, 1x112x112x128 -> 1x112x112x128 float32"
    )
    places = ((("features", "0", "conv, bn"),), (("classifier", "fc"),))
    tasks = tuple(
        replace(t, name=f"{long_name} {k}", decisions=replace(t.decisions, total=8))
        for k, t in enumerate(view.tasks)
    )
    uses = tuple(TaskUse(k, 1, p) for k, p in enumerate(places))
    networks = tuple(replace(n, uses=uses) for n in view.networks)
    step = NetworkStep(
        ("net",), time.time(), 12.0, 60.0, 40, 1e-3, tasks[0].key, long_name, 3, 1e-4, 5e-5,
        "its last steps have gained most", 1e-5,
    )  # fmt: skip
    compared = tuple(
        replace(c, ratios=tuple(map(lambda r, t: replace(r, name=t.name), c.ratios, tasks)))
        for c in view.comparisons
    )
    view = replace(view, tasks=tasks, networks=networks, comparisons=compared)
    page.resize(width, 900)
    try:
        opened(page, tmp_path, view)
        page.run(f"step = {records_json(step)}; drawStep()")
        charts = paint_all(page)
        page.run("new Promise(done => setTimeout(done, 300))")
        assert charts.keys() >= CHARTS | {"comparison", "failures", "correlations"}
        assert page.run("document.documentElement.scrollWidth") == width
        assert page.run(OUTSIDE) == []
        assert page.run(OVERLAPS) == []
        sizes = page.run(
            "Object.fromEntries([...document.querySelectorAll("
            "'section, .chart, #flame, pre, table')].filter(e => !e.closest('details')"
            "&& !e.closest('#sizes, #precision'))"
            ".map(e => [e.id || e.closest('section').id + ' ' + e.tagName,"
            "[e.offsetWidth, e.offsetHeight]]))"
        )
        least = 0.8 * min(width, 1180)
        for name, (wide, high) in sizes.items():
            part = 0.4 if width > 1000 and name not in ("flame",) else 0.9
            assert wide > part * least, name
            assert high > 30, name
        for name in charts:  # plots, beside their labels and titles
            wide, high = page.run(f"(({{w, h}}) => [w, h])(at('{name}')._fullLayout._size)")
            assert wide > 100, name
            assert high > 60, name
        for box in page.run("[...document.querySelectorAll('#flame div')].map(b => b.offsetWidth)"):
            assert box > 20
    finally:
        page.resize(1280, 900)
        page.open("about:blank")


def test_a_plotly_that_is_not_known_is_taken_as_it_is() -> None:
    """The one that is installed is known; the other tests draw with it."""
    whole = (pkgutil.get_data("plotly", "package_data/plotly.min.js") or b"").decode()
    assert read_once(whole) != whole
    assert with_bars_only(whole) != whole
    for other in (whole.replace("Plotly=(()=>{", "Plotly = (()=>{"), whole + "\n"):
        assert read_once(other) == other
    for other in (whole.replace('name:"bar"', 'name:"bars"'), whole * 2):
        assert with_bars_only(other) == other


def test_no_record_breaks_the_page(browser: Chromium, tmp_path: Path) -> None:
    """Names of any kind and length, tasks of a GPU, networks without times, one failure alone."""
    place = tmp_path / "t.db"
    with ts.open_database(place) as d:
        for k, name in enumerate((HOSTILE, f"{HOSTILE}2", "n" * 5000, "é\n\x00\u2028", "", "a\\")):
            task = task_of(16 + k, name, ts.Target.named("nvidia-h200") if k % 2 else None)
            first = measured(task, HOSTILE, 1, 1, (5e-324, 1e3, 1e-6, 1e300, 1e-9, 1e-6)[k])
            d.add([replace(first, machine=HOSTILE)])
            moment = replace(first.moment, run=replace(first.moment.run, strategy=HOSTILE))
            failure = ts.Failure(HOSTILE, HOSTILE * 50)
            second = measured(task, "q", 2, 2, 1.0)
            d.add([replace(second, seconds=(), failure=failure, moment=moment)])
            store_network_uses(
                d, task, 1.0,
                [NetworkUse(n, 3, 1.0, HOSTILE, ((HOSTILE, "w" * 3000),) * 2)
                 for n in (HOSTILE, "w" * 3000)],
            )  # fmt: skip
    view = replace(with_predictions(view_of(place, place)), place=HOSTILE)
    opened(browser, tmp_path, view)
    assert texts(browser, "h1") == [f"Tuning records of {HOSTILE}"]
    for name in (HOSTILE, "w" * 3000):
        browser.run(f"choose({{network: '=' + {name!r}}})")
        assert paint_all(browser).keys() >= CHARTS
    for k in range(0, len(view.tasks), 2):
        browser.run(f"choose({{network: 'all', task: data.tasks[{k}].key}})")
        paint_all(browser)
    browser.run("choose({find: 'nothing has this name'})")
    paint_all(browser)
    assert browser.run("document.querySelectorAll('img').length") == 0

    place = tmp_path / "failure.db"
    with ts.open_database(place) as d:
        failure = ts.Failure("build", "no compiler")
        one = measured(task_of(16, "only"), "r", 1, 1, 1.0)
        d.add([replace(one, seconds=(), failure=failure)])
    swapped(browser, view_of(place, place))
    charts = paint_all(browser)
    assert charts["failures"][0][0]["x"] == [1]
    assert "no candidate has run yet" in texts(browser, "#schedule")[0]


def test_a_page_of_100_000_records_loads(browser: Chromium, tmp_path: Path) -> None:
    """As many points as a page may have, whatever the number of records."""
    small = view_of(fill(tmp_path / "t.db"))
    each, tasks = 2000, []
    values = tuple(2 ** (i % 7) for i in range(each))
    times = tuple(1000.0 + (i * 7919) % 5000 for i in range(each))
    curve = RunCurve("run", "", tuple(map(float, range(each))), tuple(range(each)), times)
    for k in range(POINTS // each):
        t = small.tasks[k % 2]
        first = t.decisions.columns[0]
        columns = tuple(replace(first, name=f"#c{n}", values=values) for n in range(24))
        tasks.append(
            replace(
                t,
                name=f"task {k}",
                key=str(k),
                measured=100_000 * each // POINTS,
                curves=(curve,),
                decisions=replace(t.decisions, times=times, columns=columns, total=10_000),
                predictions=Predictions(times[:512], times[:512], times[:512], 1.0, 1.0, each),
            )
        )
    network = NetworkView("n", tuple(TaskUse(k, 1) for k in range(len(tasks))), (), 0)
    view = replace(small, tasks=tuple(tasks), networks=(network,))
    opened(browser, tmp_path, view)
    assert (tmp_path / "page.html").stat().st_size < 10e6
    assert texts(browser, "#cards div")[2] == "100,000measurements"
    browser.run("paint('decision')")
    assert browser.run("at('decision').data[0].x.length") == each
    require_no_error(browser)


def test_watch_follows_a_run(browser: Chromium, tmp_path: Path) -> None:
    place = fill(tmp_path / "t.db")
    words = [sys.executable, "-u", "-m", "tilesmith", "report", str(place), "--watch"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        browser.open(address)
        assert {*browser.requests} <= {address, f"{address}step"}
        browser.run("window.same = 1; choose({task: data.tasks[1].key})")
        task = task_of(16, "small")
        with ts.open_database(place) as d:
            d.add([replace(measured(task, "r1.0", 16, 9, 1e-6), when=time.time())])
            step = NetworkStep(
                ("both",), time.time(), 12.0, 60.0, 9, 20e-6, task.key, "small 16x16 fc", 2, 2e-6,
                1e-6, "its last steps have gained most", 5e-7,
            )  # fmt: skip
            store_network_step(d, task, step)
        browser.wait_for("at('whose').textContent.includes('act}: 1000 ns')")
        browser.wait_for("at('now').offsetHeight > 50")
        assert dict(zip(texts(browser, "#step dt"), texts(browser, "#step dd"), strict=True)) == {
            "task": "small 16x16 fc",
            "why": "its last steps have gained most",
            "best so far": "2 µs, 2 times its lower bound of 1000 ns; the network runs it 2 times",
            "expected, at best": "1500 ns a call, which takes 1000 ns or 5 % off the whole",
            "the run": "both: 20 µs after 9 trials in 12 s of 60 s",
        }
        with ts.open_database(place) as d:
            store_network_step(d, task, replace(step, when=time.time(), label=""))
        browser.wait_for("at('now').style.display === 'none'")
        assert browser.run("window.same") == 1  # drawn in place: nothing was loaded again
        assert texts(browser, "#live") == ["● live"]
        require_no_error(browser)
    finally:
        server.kill()
        server.wait()
    browser.wait_for("at('live').className === 'stale'")
