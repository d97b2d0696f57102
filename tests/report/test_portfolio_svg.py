"""The picture of a portfolio: the strip says what calls choose, points lie where the times say."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.report.portfolio_svg import COLOURS, panels, portfolio_svg, served
from tilesmith.report.records_view import records_view
from tilesmith.runtime.dispatch import Region, choice_of, member_of
from tilesmith.runtime.kernel import Origin
from tilesmith.tune.open_build import limits_of, samples_of
from tilesmith.tune.portfolio import Portfolio, covering

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("1")</script>&\x00'


def portfolio(seed: int, *sizes: ts.Int) -> Portfolio:
    """Of random times, of which some are missing."""
    x = ts.placeholder((*sizes, 8), name="X")
    func = ts.function([x, ts.ops.relu(x)], name="relu")
    samples, rng = samples_of(func), np.random.default_rng(seed)
    times = 10.0 ** rng.uniform(-7, -2, (rng.integers(1, 14), len(samples)))
    times[1:][rng.random(times[1:].shape) < 0.1] = math.nan
    seconds, weights = tuple(map(tuple, times.tolist())), tuple(samples.values())
    kinds = tuple(f"{HOSTILE} {k}" for k in range(len(times)))
    members = covering(seconds, weights)
    origins = tuple(map(Origin, kinds))
    return Portfolio(func, tuple(samples), weights, kinds, seconds, members, (), origins)


def sizes_of(case: int) -> tuple[ts.Int, ...]:
    return (
        (ts.size("n", range=(1, 512), samples={16: 1, 64: 2, 128: 4, 384: 1}),),
        (ts.size("n", range=(0, 9)), ts.size("m", range=(5, 4000))),
        (ts.size("a"), ts.size("b", range=(3, 3)), ts.size("c", range=(2, 70))),
    )[case]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", range(3))
def test_the_strip_is_what_calls_choose(case: int, seed: int) -> None:
    p = portfolio(seed, *sizes_of(case))
    numbers = {k: i for i, k in enumerate(p.members)}
    regions = [Region(s, numbers[k]) for s, k in zip(p.samples, p.chosen, strict=True)]
    choice = choice_of(regions, limits_of(p.func))
    shown = panels(p)
    assert shown
    rng = np.random.default_rng(seed)
    for panel in shown:
        low, high = limits_of(p.func)[panel.size]
        pieces = served(p, panel)
        assert (pieces[0].low, pieces[-1].high) == (low, high)
        assert all(a.high + 1 == b.low and a.member != b.member for a, b in pairwise(pieces))
        ends = [v for piece in pieces for v in (piece.low, piece.high)]
        for v in (*ends, *rng.integers(low, high + 1, 20).tolist()):
            (piece,) = (x for x in pieces if x.low <= v <= x.high)
            assert piece.member == member_of(choice, {**panel.at, panel.size: v})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", range(3))
def test_points_lie_where_the_times_say(case: int, seed: int) -> None:
    p = portfolio(seed, *sizes_of(case))
    root = ElementTree.fromstring(portfolio_svg(p))  # so it is well-formed whatever the names are
    groups = root.findall(f"{SVG}g")
    shown = panels(p)
    assert len(groups) == len(shown) + 1
    for panel, group in zip(shown, groups, strict=False):
        at = []
        for c in group.findall(f"{SVG}circle"):
            hover = c[0].text or ""
            found = re.search(rf"at {panel.size} = (\d+): (\S+) µs", hover)
            assert found, hover
            at.append((int(found[1]), float(found[2]), float(c.attrib["cx"]), float(c.attrib["cy"]),
                       c.attrib["r"], c.attrib["fill"]))  # fmt: skip
        timed = {
            (dict(p.samples[s])[panel.size], float(f"{row[s] * 1e6:.4g}"))
            for row in p.seconds for s in panel.samples if not math.isnan(row[s])
        }  # fmt: skip
        assert {(v, us) for v, us, *_ in at} == timed
        by_time = sorted(at, key=lambda a: a[1])
        assert all(a[3] >= b[3] for a, b in pairwise(by_time))
        gaps = [math.log(b[1] / a[1]) for a, b in pairwise(by_time)]
        drops = [a[3] - b[3] for a, b in pairwise(by_time)]
        scale = sum(drops) / sum(gaps)
        np.testing.assert_allclose(drops, [scale * g for g in gaps], atol=0.2)
        assert all(a[2] <= b[2] for a, b in pairwise(sorted(at)))
        chosen = {(a[0], a[5]) for a in at if float(a[4]) > 4}
        numbers = {k: i for i, k in enumerate(p.members)}
        assert chosen == {
            (dict(p.samples[s])[panel.size], COLOURS[numbers[p.chosen[s]]]) for s in panel.samples
        }
        strip = [r for r in group.findall(f"{SVG}rect") if r.attrib.get("class") == "served"]
        assert [r.attrib["fill"] for r in strip] == [COLOURS[x.member] for x in served(p, panel)]
        assert all(float(r.attrib["width"]) >= 1 for r in strip)
    text = portfolio_svg(p)
    assert "<script" not in text
    assert "\x00" not in text


def test_one_sample_has_no_picture() -> None:
    assert portfolio_svg(portfolio(0, ts.size("n", range=(1, 8), samples={4: 1}))) == ""


def test_a_database_has_the_pictures_of_its_portfolios(tmp_path: Path, short_drafts: None) -> None:
    n = ts.size("n", range=(1, 8), samples={2: 1, 8: 1})
    x = ts.placeholder((n, 16), name="X")
    func = ts.function([x, ts.ops.softmax(x)], name="rows")
    with ts.open_database(tmp_path / "t.db") as db:
        ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=2), database=db, quiet=True)
        view = records_view(db, "t.db")
    (one,) = view.portfolios
    assert one.name == "rows, n 1 to 8"
    assert "the worst regret at a sample is" in one.text
    assert ElementTree.fromstring(one.picture).tag == f"{SVG}svg"
