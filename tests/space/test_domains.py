"""Domains and the rows of a variant: counts, drawing, small changes, indexing."""

from __future__ import annotations

from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from suite import FOUR_CORES, sketches_of, task_of

import tilesmith as ts
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.space.domains import Domain, domain_of, tile_table
from tilesmith.space.spaces import variants


def tiles(extent: int, parts: int, policy: str = "divisors", most: int = 0, **more: int) -> Domain:
    return domain_of(SampleTile("i", parts, policy, most, **more), extent)


# TUNERS.md 2.4: ordered factorisations with the innermost at most 64, by how many inner lengths.
ANSOR = {
    512: (7, 49, 210), 1024: (7, 56, 266), 224: (10, 60, 220), 56: (8, 30, 80), 7: (2, 3, 4),
}  # fmt: skip


@pytest.mark.parametrize("extent", ANSOR)
def test_as_many_tiles_as_ansor_counts(extent: int) -> None:
    assert tuple(tiles(extent, k + 1, most=64).size for k in (1, 2, 3)) == ANSOR[extent]


def brute(extent: int, parts: int) -> set[tuple[int, ...]]:
    """Every tuple of inner factors, with the outermost that it takes."""
    every = product(range(1, extent + 1), repeat=parts - 1)
    return {(-(-extent // prod(r)), *r) for r in every}


@pytest.mark.parametrize("extent", [1, 2, 7, 12, 30])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_divisors_are_all_there_are(extent: int, parts: int) -> None:
    found = set(map(tuple, tiles(extent, parts).table.tolist()))
    assert found == {r for r in brute(extent, parts) if prod(r) == extent}


@pytest.mark.parametrize("extent", [5, 12, 31])
def test_any_tile_wastes_a_quarter_at_most(extent: int) -> None:
    found = set(map(tuple, tiles(extent, 2, "any").table.tolist()))
    assert found == {r for r in brute(extent, 2) if prod(r) <= 1.25 * extent}


@pytest.mark.parametrize("extent", [1, 3, 13, 48, 100])
def test_policies_keep_what_they_promise(extent: int) -> None:
    powers = tiles(extent, 3, "powers").table[:, 1:]
    assert (powers & (powers - 1) == 0).all()
    either = tiles(extent, 2, "both").table[:, 1]
    assert all(extent % n == 0 or n & (n - 1) == 0 for n in either.tolist())
    lanes = tiles(extent, 2, "vector", 32, lanes=4).table[:, 1]
    assert all(n % 4 == 0 or n in (1, 2, extent) for n in lanes.tolist())
    for policy in SampleTile.POLICIES:
        d = tiles(extent, 3, policy, 8)
        assert d.size > 0
        assert d.table[:, -1].max() <= 8
        inner = d.table[:, 1:].prod(axis=1)
        assert (d.table[:, 0] == -(-extent // inner)).all()
        assert len(np.unique(d.table, axis=0)) == d.size


def test_candidates_must_cover_the_loop() -> None:
    def domain(*rows: tuple[int, int]) -> Domain:
        return domain_of(SampleTile("i", 2, candidates=rows), 10)

    assert domain((5, 2), (4, 3), (2, 3), (9, 3)).table.tolist() == [[5, 2], [4, 3]]
    with pytest.raises(ts.ScheduleError, match="none of the candidates for i covers its 10"):
        domain((2, 3))


def test_what_a_domain_contains() -> None:
    d = tiles(512, 3, most=64)
    assert d.contains(d.table).all()
    strange = np.array([[512, 1, 1], [4, 1, 128], [3, 5, 7], [0, 0, 0], [1, 512, 1]], np.int32)
    assert d.contains(strange).tolist() == [True, False, False, False, True]
    assert d.index(strange[:2]).tolist() == [d.table.tolist().index([512, 1, 1]), -1]


def test_drawing_is_uniform() -> None:
    d = tiles(56, 4, most=64)
    n = 80 * 200
    counts = np.bincount(d.index(d.sample(np.random.default_rng(0), n)), minlength=d.size)
    chi = ((counts - 200) ** 2 / 200).sum()
    assert 40 < chi < 135  # 79 degrees of freedom; five standard deviations either way


@pytest.mark.parametrize(("extent", "policy"), [(512, "divisors"), (100, "any"), (96, "both")])
def test_mutation_is_a_small_change(extent: int, policy: str) -> None:
    d = tiles(extent, 4, policy, 64)
    rng = np.random.default_rng(0)
    rows = d.sample(rng, 2000)
    new = d.mutate(rng, rows)
    assert d.contains(new).all()
    changed = (new != rows).sum(axis=1)
    assert (changed > 0).all()
    assert (changed <= 2).all()
    if policy == "divisors":  # a factor moved: one level lost what another won
        assert (new.prod(axis=1) == extent).all()


@pytest.mark.parametrize(("extent", "policy"), [(56, "divisors"), (35, "any"), (12, "any")])
def test_neighbours_are_all_small_changes(extent: int, policy: str) -> None:
    """A prime factor moves to another level, or an inner factor changes a little."""
    d = tiles(extent, 3, policy)
    rows = {tuple(r) for r in d.table.tolist()}
    for row in d.table[:: max(1, len(d.table) // 20)].tolist():
        near = set()
        for a, b in permutations(range(3), 2):
            prime = next((p for p in range(2, row[a] + 1) if row[a] % p == 0), 1)
            moved = list(row)
            moved[a], moved[b] = moved[a] // prime, moved[b] * prime
            near.add(tuple(moved))
        for c in (1, 2) if policy == "any" else ():
            for n in (row[c] + 1, row[c] - 1, row[c] * 2, row[c] // 2):
                nudged = [*row[:c], max(n, 1), *row[c + 1 :]]
                nudged[0] = -(-extent // (nudged[1] * nudged[2]))
                near.add(tuple(nudged))
        found = {tuple(r) for r in d.neighbours(np.array(row, np.int32)).tolist()}
        assert found == (near & rows) - {tuple(row)}


def test_a_choice_mutates_to_another_one() -> None:
    d = domain_of(SampleChoice("#u", (0, 16, 64)), None)
    rng = np.random.default_rng(0)
    rows = d.sample(rng, 500)
    new = d.mutate(rng, rows)
    assert (new != rows).all()
    assert set(new.ravel().tolist()) == {0, 16, 64}


def small_variant() -> ts.Variant:
    def template(sch: ts.TemplateSchedule) -> None:
        i, j, _ = sch.loops("C")
        sch.split(i, sch.sample_tile(i, 2), exact=True)
        sch.split(j, [None, sch.sample_choice([2, 3, 4])])

    a, b = ts.placeholder((12, 4), name="A"), ts.placeholder((4, 9), name="B")
    task = ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")]), FOUR_CORES)
    (sketch,) = ts.TemplateSpace(template).sketches(task)
    (v,) = variants(task, sketch)
    return v


def test_an_index_enumerates_every_row_once() -> None:
    v = small_variant()
    rows = {tuple(v.row(k).tolist()) for k in range(v.size)}
    assert v.size == 6 * 3 == len(rows)
    assert v.valid(np.array(sorted(rows), np.int32)).all()


def test_a_size_that_follows_is_computed() -> None:
    v = small_variant()
    assert v.columns == ("#C.i.0", "#C.i.1", "#choice.0", "#C.j.0")
    rng = np.random.default_rng(0)
    a = v.sample(rng, 50)
    for rows in (a, v.mutate(rng, a), v.cross(rng, a, a[::-1])):
        assert (rows[:, 3] == -(-9 // rows[:, 2])).all()
        for row in rows[:5]:
            assert v.function(row) == v.decided(row).apply(v.task.func)


def test_a_large_space_is_indexed_without_being_enumerated() -> None:
    task = task_of("conv2d", FOUR_CORES)
    v = next(variants(task, sketches_of(task, "default")[0]))
    assert v.size > 10**9
    last, middle = v.row(v.size - 1), v.row(v.size // 2)
    for d, span in zip(v.domains, v.spans, strict=True):
        assert last[span].tolist() == d.table[-1].tolist()
        assert d.contains(middle[None, span]).all()
    with pytest.raises(IndexError):
        v.row(v.size)


def test_sampling_is_uniform_over_valid_rows() -> None:
    v = small_variant()
    rng = np.random.default_rng(1)
    _, counts = np.unique(v.sample(rng, 18 * 300), axis=0, return_counts=True)
    assert len(counts) == 18
    assert ((counts - 300) ** 2 / 300).sum() < 50  # 17 degrees of freedom


def test_a_child_has_each_node_from_one_parent() -> None:
    task = task_of("matmul-chain", FOUR_CORES)
    v = next(variants(task, sketches_of(task, "ansor")[0]))
    rng = np.random.default_rng(0)
    a, b = v.sample(rng, 200), v.sample(rng, 200)
    child = v.cross(rng, a, b)
    assert {"AB", "ABC"} <= set(v.nodes)
    mixed = 0
    for row, left, right in zip(child, a, b, strict=True):
        of = {}
        for node in dict.fromkeys(v.nodes):
            at = np.concatenate(
                [np.arange(s.start, s.stop) for n, s in zip(v.nodes, v.spans, strict=True)
                 if n == node]
            )  # fmt: skip
            of[node] = (row[at] == left[at]).all(), (row[at] == right[at]).all()
            assert any(of[node])
        mixed += not all(x for x, _ in of.values()) and not all(y for _, y in of.values())
    assert mixed > 50


HUGE = [2999, 65536, 999_983, 10**8, 10**9 + 7, 720_720_000, 10**12, 963_761_198_400]


@pytest.mark.parametrize("extent", HUGE)
@pytest.mark.parametrize("policy", ["divisors", "powers", "both", "any", "vector"])
def test_tables_of_any_extent_are_bounded_and_cover_it(extent: int, policy: str) -> None:
    for parts in (3, 4):
        if policy == "divisors" and extent > 2**31 and parts == 3:
            continue
        table = tile_table(extent, parts, policy, 64, 8 if policy == "vector" else 1)
        assert 0 < len(table) <= 50_000
        assert len(np.unique(table, axis=0)) == len(table)
        assert table.min() >= 1
        assert table[:, -1].max() <= 64
        covered = table.astype(object).prod(axis=1)
        assert (covered >= extent).all()
        assert (covered <= extent * 1.25).all() or policy == "powers"
        if policy == "divisors":
            assert (covered == extent).all()


@pytest.mark.parametrize(("extent", "parts"), [(10**12, 1), (10**12 + 39, 3), (2**61, 4)])
def test_an_extent_that_no_factors_cover_is_refused(extent: int, parts: int) -> None:
    with pytest.raises(ts.ScheduleError, match=f"a loop of {extent} iterations is too long"):
        tile_table(extent, parts, "divisors", 64, 1)


def test_divisors_are_found_by_factors() -> None:
    for extent in (1, 2, 97, 360, 1024, 10403):
        table = tile_table(extent, 2, "divisors", 0, 1)
        assert sorted(table[:, 1]) == [d for d in range(1, extent + 1) if extent % d == 0]


def test_numbers_are_drawn_by_their_probabilities() -> None:
    sample = SampleChoice("#n", (1, 2, 4, 8), probabilities=(6.0, 3.0, 1.0, 0.0))
    rows = domain_of(sample, None).sample(np.random.default_rng(0), 20_000)
    shares = [float((rows == n).mean()) for n in (1, 2, 4, 8)]
    np.testing.assert_allclose(shares, (0.6, 0.3, 0.1, 0.0), atol=0.015)
    even = domain_of(SampleChoice("#n", (1, 2)), None).sample(np.random.default_rng(0), 20_000)
    assert abs(float((even == 1).mean()) - 0.5) < 0.015


def test_rare_numbers_are_drawn_too() -> None:
    sample = SampleChoice("#n", (1, 2), probabilities=(1e9, 1.0))
    rows = domain_of(sample, None).sample(np.random.default_rng(0), 100_000)
    assert 0 < int((rows == 2).sum()) < 100


@pytest.mark.parametrize("given", [(1.0,), (0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0)])
def test_wrong_probabilities_are_refused(given: tuple[float, ...]) -> None:
    with pytest.raises(ts.ScheduleError, match="probabilities are a number for each"):
        SampleChoice("#n", (1, 2), probabilities=given).apply(task_of("gelu", FOUR_CORES).func)


def test_a_template_gives_probabilities() -> None:
    task = task_of("matmul", FOUR_CORES, small=True)

    def template(sch: ts.TemplateSchedule) -> None:
        sch.sample_choice((3, 5, 5), name="n", probabilities=(0.1, 0.4, 0.5))

    (trace,) = ts.TemplateSpace(template).sketches(task)
    (variant,) = variants(task, trace)
    rows = variant.sample(np.random.default_rng(0), 5000)
    assert abs(float((rows == 5).mean()) - 0.9) < 0.03
    again = ts.Trace.from_json(trace.to_json())
    assert again == trace
    decided = variant.decided(rows[0])
    assert ts.Trace.from_json(decided.to_json()) == decided
    plain = SampleChoice("#n", (3, 5))
    assert "probabilities" not in plain.values_by_name

    def texts(sch: ts.TemplateSchedule) -> None:
        sch.sample_choice(("a", "b"), probabilities=(0.1, 0.9))

    with pytest.raises(ts.ScheduleError, match="whole numbers"):
        ts.TemplateSpace(texts).sketches(task)
