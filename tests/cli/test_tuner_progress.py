"""bench.tuners: what the other tuner had reached is read from its records, and it always ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench is not part of the package

from bench.metaschedule import Moment, costs_of, recorded, tuned
from bench.tuners import over_time


def line(*seconds: float) -> str:
    return json.dumps([0, [[], list(seconds), {}, []]]) + "\n"


def test_costs_are_means_of_the_candidates_that_ran() -> None:
    lines = [line(0.5, 1.5), line(1e10), json.dumps([0, [[], None, {}, []]]) + "\n", line(2.0)]
    assert costs_of(lines) == [1.0, 2.0]


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    assert recorded(tmp_path) == []
    (tmp_path / "database_tuning_record.json").write_text(line(1.0) + line(2.0)[:-9])
    assert recorded(tmp_path) == [1.0]


def test_a_tuner_ends_after_its_limit(tmp_path: Path) -> None:
    result = tuned((8, 8, 8), 4, tmp_path, limit=0.0)
    assert result.progress == ()
    assert result.ended == "ended after the limit of 0 s"


def test_only_better_kernels_are_shown() -> None:
    moments = [Moment(float(k), k, best) for k, best in enumerate((4.0, 4.0, 2.0, 3.0, 1.0), 1)]
    rows = over_time("Ours", 8.0, moments)
    assert [(r.name, r.value) for r in rows] == [
        ("Ours after 1.0 s, 1 trials", 2.0),
        ("Ours after 3.0 s, 3 trials", 4.0),
        ("Ours after 5.0 s, 5 trials", 8.0),
    ]
    assert len(over_time("Ours", 8.0, [Moment(k, k, 1 / k) for k in range(1, 50)], shown=4)) == 4
