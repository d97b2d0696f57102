"""Rows through JSON, tables, means, pages and charts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith_contest.page import page
from tilesmith_contest.rows import (
    Row,
    is_done,
    means,
    ordered,
    read_rows,
    table,
    with_row,
    write_rows,
)

ROWS = [
    Row(
        "C2D 7,3,5,3,1,1, 1 thread", 10.0, "us", "torch", 20.0, 2.0, 0.1, "C2D", "7,3,5,3,1,1",
        layout="NHWC", gflops=3.0, budget_seconds=60.0, tuning_seconds=60.2, near_seconds=12.3,
        trials=700, share=0.99, peer_share=1.98, note="torch used 2 threads",
        peers={"torch": 20.0}, machine="a machine", versions="torch 2",
    ),
    Row(
        "C2D 5,3,5,3,1,1, 1 thread", 10.0, "us", "numpy", 5.0, 0.5, 0.1, "C2D", "5,3,5,3,1,1",
        gflops=3.0, machine="a machine", versions="torch 2",
    ),
    Row(
        "GMM 4,4,4, 2 threads", 1.0, "us", "numpy", 3.0, 3.0, 0.1, "GMM", "4,4,4", threads=2,
        machine="a machine", versions="torch 2",
    ),
    Row(
        "GMM 5,5,5, 2 threads", None, op="GMM", shape="5,5,5", threads=2, machine="a machine",
        error="ours and torch: differ by 3",
    ),
]  # fmt: skip


def test_rows_come_back_and_begin_with_the_fields_of_every_bench(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.json"
    assert read_rows(path) == []
    write_rows(path, ROWS)
    assert read_rows(path) == ROWS
    first = json.loads(path.read_text())[0]
    assert list(first)[:7] == ["name", "value", "unit", "peer", "peer_value", "ratio", "spread"]
    assert [p.name for p in path.parent.iterdir()] == ["rows.json"]


@pytest.mark.parametrize("text", ["{", "{}", "[3]", '[{"value": 1}]'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(ts.ArgumentError, match=r"rows\.json does not hold rows of a benchmark"):
        read_rows(path)


def test_a_case_is_done_on_its_own_machine_and_only_without_an_error() -> None:
    assert is_done(ROWS, ROWS[0].name, "a machine")
    assert not is_done(ROWS, ROWS[0].name, "another")
    assert not is_done(ROWS, ROWS[3].name, "a machine")
    mended = replace(ROWS[3], error=None, value=1.0)
    assert with_row(ROWS, mended) == [*ROWS[:3], mended]
    other = replace(ROWS[0], machine="another")
    assert with_row(ROWS, other) == [*ROWS, other]


def test_means_are_by_operator_and_threads_and_leave_out_what_failed() -> None:
    assert means(ROWS) == [
        ("C2D", 1, pytest.approx(1.0), 0.5, 2),
        ("all", 1, pytest.approx(1.0), 0.5, 2),
        ("GMM", 2, pytest.approx(3.0), 3.0, 1),
        ("all", 2, pytest.approx(3.0), 3.0, 1),
    ]


def test_the_suite_gives_the_order() -> None:
    a, b, c = (
        replace(ROWS[0], op=op, shape=shape)
        for op, shape in (("C2D", "56,64,64,1,1,0"), ("C2D", "224,3,64,7,2,3"), ("GMM", "1,2,3"))
    )
    two = replace(b, threads=2)
    assert ordered([two, c, a, b]) == [b, a, c, two]


def test_the_table() -> None:
    lines = table(ROWS).splitlines()
    assert lines[1].split() == [
        "C2D", "7,3,5,3,1,1", "1", "10.0", "3.0", "torch", "20.0", "2.00", "0.10", "0.99",
        "/", "1.98", "60", "12",
        "700",
    ]  # fmt: skip
    assert "differ by 3" in lines[4]
    assert lines[5] == "C2D 7,3,5,3,1,1, 1 thread: torch used 2 threads"
    assert lines[-1] == "geometric mean all, 2 threads: 3.00 (least 3.00, 1 cases)"
    assert table([]) == "no rows"


def test_the_page_says_what_where_and_how(tmp_path: Path) -> None:
    text = page(ROWS, Path("out/rows.json"), Path("docs/page.md"), Path("docs/page.png"))
    assert "| C2D | 7,3,5,3,1,1 | 1 | 10.0 |" in text
    assert "](page.png)" in text
    assert "- a machine: torch 2" in text
    assert "- C2D 7,3,5,3,1,1, 1 thread: torch used 2 threads" in text
    assert "--json out/rows.json --page docs/page.md" in text
    table_lines = [line for line in text.splitlines() if line.startswith("| C2D | 7")]
    assert table_lines[0].count("|") == 14
    assert "![" not in page(ROWS, Path("rows.json"), Path("page.md"))
    text = page(ROWS, tmp_path / "build" / "rows.json", tmp_path / "docs" / "page.md")
    assert str(tmp_path) not in text
    assert "--json build/rows.json --page docs/page.md" in text


def test_the_chart_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tilesmith_contest.chart import draw

    for rows in (ROWS, ROWS[3:], []):
        path = tmp_path / "chart.png"
        draw(path, rows)
        assert path.read_bytes().startswith(b"\x89PNG")
        path.unlink()
