"""`tilesmith report`: the page of a small database, its bounds, and wrong input."""

from __future__ import annotations

import json
import re
import resource
import socket
from dataclasses import replace
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.cli.main import app
from tilesmith.records.networks import NetworkStep
from tilesmith.report import records_page as page_module
from tilesmith.report import records_view as view_module
from tilesmith.report.decisions import decisions_of, evenly
from tilesmith.report.records_page import SCRIPTS
from tilesmith.report.records_server import PageServer
from tilesmith.report.records_view import RecordsView, records_view
from tilesmith.report.static_text import static_text
from tilesmith.report.task_view import TaskViews
from tilesmith.schedule.sample import SampleTile
from tilesmith.task.task import Moment, TuningRun

pytest.importorskip("plotly", reason="the page needs plotly: pip install 'tilesmith[report]'")

VOID = {"meta", "br", "link", "img", "input"}

# As the page names them: operator, shapes and dtype.
SMALL, LARGE = "small 16x16, 16x16 -> 16x16 float32", "large 32x32, 32x32 -> 32x32 float32"


class Page(HTMLParser):
    """Checks that the elements are nested, and keeps the addresses and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.data = ""
        self._in_data = False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [found[a] or "" for a in ("src", "href") if a in found]
        assert tag not in ("iframe", "object", "img")
        assert tag != "link" or found == {"rel": "icon", "href": "data:,"}
        if "id" in found:
            assert found["id"] not in self.ids
            self.ids.add(found["id"] or "")
        self._in_data = found.get("id") == "data"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._in_data and self.open[-1:] == ["script"]:
            self.data += data


def task_of(n: int, name: str) -> ts.Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=name), ts.cpu(1))


def candidate(task: ts.Task, rows: int) -> ts.Candidate:
    sch = ts.Schedule(task.func)
    i, j, _ = sch.loops("C")
    sch.split(i, [None, rows])
    sch.vectorize(sch.split(j, [None, 8])[1])
    size = 16 if task.func.name == "small" else 32
    tile = SampleTile("C.i", 2, decision=(size // rows, rows))
    return ts.Candidate(task, ts.Trace((tile, *sch.trace)))


def fill(place: Path, factor: float = 1.0) -> str:
    small, large = task_of(16, "small"), task_of(32, "large")
    run = TuningRun("r", "genetic </script>", "", 7, ts.Budget(trials=4), 1.0, "m")
    with ts.open_database(place) as d:
        d.add(
            [
                replace(
                    ts.Measurement(candidate(small, rows), (factor * cost,) * 3),
                    moment=Moment(run, 0.5 * trial, trial),
                )
                for trial, (rows, cost) in enumerate([(1, 4e-6), (2, 2e-6), (4, 3e-6)], 1)
            ]
        )
        d.add([ts.Measurement(candidate(large, 2), failure=ts.Failure("crash", "<b>signal 4"))])
        d.add([ts.Measurement(candidate(large, 4), (8e-6,) * 3)])
    return str(place)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app(["report", *words])
    printed = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, printed.out, printed.err


def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 5 MB take Python's parser seconds; its text is not ours to test."""
    monkeypatch.setattr(page_module, "plotly_text", lambda: "var Plotly;")


def written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, *places: str
) -> tuple[Page, dict[str, Any]]:
    file = tmp_path / "out" / "page.html"
    status, out, err = run(capsys, *places, "-o", str(file))
    assert (status, err) == (0, "")
    assert str(file) in out
    page = Page(file.read_text())
    return page, json.loads(page.data)


def test_the_page_holds_what_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    page, data = written(capsys, tmp_path, fill(tmp_path / "t.db"))
    assert all(a.startswith(("#", "data:")) for a in page.addresses)
    assert page.ids >= {a[1:] for a in page.addresses if a.startswith("#")}
    large, small = data["tasks"]  # the slowest first
    assert (large["name"], small["name"]) == (LARGE, SMALL)
    assert (large["best"], small["best"]) == (pytest.approx(8), pytest.approx(2))
    assert small["second"] == pytest.approx(3)
    assert small["flops"] == 2 * 16**3
    (curve,) = small["curves"]
    assert curve["label"] == "genetic </script>, seed 7"
    assert curve["seconds"] == [0.5, 1.0, 1.5]
    assert curve["trials"] == [1, 2, 3]
    assert curve["best"] == pytest.approx([4, 2, 2])
    assert large["failures"] == [{"kind": "crash", "count": 1, "text": "<b>signal 4"}]
    assert small["decisions"]["times"] == pytest.approx([2, 3, 4])
    assert [2, 4, 1] in [c["values"] for c in small["decisions"]["columns"]]
    assert "split" in small["text"]["schedule"]
    changes = small["text"]["schedule_changes"].splitlines()
    assert any(line.startswith("+") and "2" in line for line in changes[2:])
    assert "define" in small["text"]["source"]
    assert "for C.i.0 in" in small["text"]["loops"]
    changes = small["text"]["loops_changes"].splitlines()
    assert any(line.startswith("-") and "for C.i.0" in line for line in changes[2:])
    assert data["comparisons"] == []
    assert data["networks"] == []
    scripts = "".join(map(static_text, SCRIPTS))
    used = set(re.findall(r"(?:at|draw|bars|show|rows)\('([a-z-]+)'", scripts))
    assert page.ids >= used


def test_databases_are_compared_by_task(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    places = [fill(tmp_path / f"{k}.db", factor=f) for k, f in enumerate((1.0, 3.0, 2.0))]
    _, data = written(capsys, tmp_path, *places)
    one, two = data["comparisons"]
    ratios = {r["name"]: r["ratio"] for r in one["ratios"]}
    assert {r["name"]: (r["here"], r["other"]) for r in one["ratios"]} == {
        SMALL: (pytest.approx(2), pytest.approx(6)), LARGE: (pytest.approx(8),) * 2
    }  # fmt: skip
    assert ratios == {SMALL: pytest.approx(3.0), LARGE: pytest.approx(1.0)}
    assert one["mean"] == pytest.approx(3**0.5)
    assert two["mean"] == pytest.approx(2**0.5)
    assert [c["other"] for c in (one, two)] == [places[1], places[2]]


def test_the_limits_of_a_ratio_are_those_of_both_intervals() -> None:
    task = task_of(16, "small")
    here, there = (
        replace(ts.Measurement(candidate(task, 2), seconds), references=(1e-4,) * 3)
        for seconds in ((1e-6, 2e-6, 4e-6), (2e-6, 4e-6, 6e-6))
    )
    with ts.open_database(":memory:") as d, ts.open_database(":memory:") as o:
        d.add([here])
        o.add([there])
        (found,) = records_view(d, "d", [("o", o)]).comparisons[0].ratios
    assert (found.ratio, found.low, found.high) == (
        pytest.approx(2.0), pytest.approx(0.5), pytest.approx(6.0)
    )  # fmt: skip


def test_the_file_has_plotly_inside(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert run(capsys, fill(tmp_path / "t.db"), "-o", str(file))[0] == 0
    text = file.read_text()
    assert "plotly.js v" in text
    assert text.count("<script") - text.count('"<script') >= 3
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=\"?https?:", text)
    assert len(text) < 10e6


def test_points_are_thinned_and_the_fastest_kept() -> None:
    task = task_of(16, "small")
    base = candidate(task, 2)
    many = [ts.Measurement(base, (1e-6 * (1 + k),)) for k in range(5000)]
    kept = decisions_of(many, 100)
    assert kept.total == 5000
    assert len(kept.times) == 100
    assert list(kept.times[:50]) == pytest.approx([1.0 + k for k in range(50)])
    assert kept.times[-1] == pytest.approx(5000)
    assert evenly(range(10), 4) == [0, 3, 6, 9]
    assert evenly(range(3), 4) == [0, 1, 2]
    assert evenly(range(3), 1) == [0]
    assert evenly(range(3), 0) == []


def test_a_decision_that_matters_comes_first() -> None:
    """And one with a different value for each candidate explains nothing. Times without reference
    times are left out where others have them.
    """
    task = task_of(32, "large")

    def taken(k: int, rows: int, seconds: float, references: tuple[float, ...]) -> ts.Measurement:
        single = SampleTile("C.j", 1, decision=(k + 1,))
        trace = ts.Trace((single, *candidate(task, rows).trace))
        return ts.Measurement(ts.Candidate(task, trace), (seconds,), references=references)

    normal = [
        taken(k, rows, 1e-6 * rows * (1 + 0.01 * k), (2e-4,))
        for k, rows in enumerate((1, 2, 4, 1, 2, 4, 1, 2, 4))
    ]
    found = decisions_of([*normal, taken(99, 8, 1e-9, ())], 100)
    assert found.total == 9
    assert sorted(found.times) == pytest.approx(sorted(m.cost * 1e6 for m in normal), rel=1e-4)
    assert [c.name for c in found.columns] == ["#C.i.0", "#C.i.1", "#C.j.0"]
    assert found.columns[0].share > 0.9
    assert found.columns[2].share == 0.0


def test_the_number_of_tasks_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MAX_TASKS", 1)
    with ts.open_database(fill(tmp_path / "t.db")) as d:
        view = records_view(d, "t.db")
    assert [t.name for t in view.tasks] == [LARGE]
    assert view.notes == ("1 of 2 tasks are shown, the slowest ones.",)


def test_a_full_disk_is_named_and_leaves_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full, page = fill(tmp_path / "t.db"), tmp_path / "pages" / "page.html"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))  # the page has more
    try:
        status, out, err = run(capsys, full, "-o", str(page))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, out) == (2, "")
    assert f"{page} cannot be written: " in err
    assert len(err.splitlines()) == 1
    assert [*page.parent.iterdir()] == []


def test_wrong_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, empty = str(tmp_path / "page.html"), str(tmp_path / "empty.db")
    ts.open_database(empty).close()
    full = fill(tmp_path / "t.db")
    for words, named in (
        ((str(tmp_path / "none.db"), "-o", file), "there is no database"),
        ((empty, "-o", file), "holds no task"),
        ((full, str(tmp_path / "none.db"), "-o", file), "there is no database"),
        ((str(tmp_path), "-o", file), "is a folder"),
        (("none.db", "-o", "/dev/null/sub/page.html"), "--output /dev/null/sub/page.html cannot"),
        ((full, "-o", str(tmp_path)), "is a folder"),
        ((str(tmp_path / "none.db"), "--watch"), "there is no database"),
        ((full, "--watch", "--port", "70000"), "--port 70000 cannot be used"),
    ):
        status, out, err = run(capsys, *words)
        assert (status, out) == (2, "")
        assert named in err
        assert len(err.splitlines()) == 1
    assert not Path(file).exists()


def test_the_server_shows_what_is_new_to_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    place = tmp_path / "t.db"
    views = TaskViews()
    step = NetworkStep(("net",), 1.0, 2.0, None, 3, 4.0, label="<b>")

    def view() -> RecordsView:
        with ts.open_database(place) as d:
            return records_view(d, "t.db", views=views)

    with PageServer(view, lambda: step, seconds=0.0) as server:
        assert server.server_address[0] == "127.0.0.1"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        # A browser opens connections that it may not use; they must not keep others waiting.
        idle = socket.create_connection(("127.0.0.1", server.server_port))
        try:
            assert "holds no task" in get(server)[1]
            assert "holds no task" in json.loads(get(server, "/data")[1])["error"]
            fill(place)
            server._until = 0.0
            status, text = get(server)
            assert status == 200
            assert "const live = 0.100;" in text
            assert json.loads(Page(text).data)["place"] == "t.db"
            server._until = 0.0
            data = json.loads(get(server, "/data")[1])
            assert [t["name"] for t in data["tasks"]] == [LARGE, SMALL]
            told = json.loads(get(server, "/step")[1])
            assert (told["networks"], told["label"], told["gain"]) == (["net"], "<b>", None)
            assert get(server, host="example.org")[0] == 403
            assert get(server, path="/etc/passwd")[0] == 404
        finally:
            idle.close()
            server.shutdown()
            thread.join()


def get(server: PageServer, path: str = "/", host: str = "127.0.0.1") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
