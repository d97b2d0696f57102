"""Saved models with open sizes: a process that compiles nothing computes the same bits at every
length, and refuses what it was not made for.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_saved_models import assert_same, in_new_process, rewritten

import tilesmith as ts
from tests.support.open_models import (
    CASES,
    COPIES,
    TAGGER,
    compiled,
    feeds_of,
    program,
    with_portfolios,
)
from tilesmith.codegen.llvm import compiler
from tilesmith.runtime.open_kernel import PortfolioKernel


@pytest.fixture(scope="module")
def tagger() -> tuple[Any, ts.Model]:
    model = TAGGER.program()
    return model, compiled(model, TAGGER.sizes)


@pytest.mark.parametrize("name", [*CASES])
def test_a_loaded_model_computes_the_same_at_all_lengths(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    model = case.program()
    made = with_portfolios(compiled(model, case.sizes))
    digest = made.save(tmp_path / "m.tsm")
    monkeypatch.setattr(compiler, "compile_ir", None)
    loaded = ts.load_model(tmp_path / "m.tsm", digest=digest)
    for feeds in case.feeds(model):
        assert_same(loaded(feeds), made(feeds))
        assert_same(dict(loaded.bind(feeds)()), made(feeds))
    assert loaded.save(tmp_path / "copy.tsm") == digest
    assert any(isinstance(k, PortfolioKernel) for k in loaded._run.executor.kernels)
    assert [str(s) for s in loaded.inputs] == [str(s) for s in made.inputs]
    assert loaded.outputs == made.outputs
    first, again = made.summary().splitlines(), loaded.summary().splitlines()
    assert [x for x in first if "MB of constants" not in x] == [
        x for x in again if "MB of constants" not in x
    ]


def test_a_new_process_computes_the_same(tagger: tuple[Any, ts.Model], tmp_path: Path) -> None:
    model, made = tagger
    made.save(tmp_path / "m.tsm", weights=tmp_path / "w")
    feeds = feeds_of(model, seq=23, batch=2)
    assert_same(in_new_process(tmp_path / "m.tsm", feeds), made(feeds))
    assert (tmp_path / "w").stat().st_size > 40 * 40 * 4


def test_what_a_loaded_model_refuses(tagger: tuple[Any, ts.Model], tmp_path: Path) -> None:
    model, made = tagger
    made.save(tmp_path / "m.tsm")
    loaded = ts.load_model(tmp_path / "m.tsm")
    for seq, batch, what in (
        (41, 1, "seq from 1 to 40"),
        (3, 0, "batch"),
        (3, 30, "batch from 1 to 29"),
    ):
        with pytest.raises(ts.ArgumentError, match=f"is a saved model for .*{what}"):
            loaded(feeds_of(model, seq=seq, batch=batch))
    feeds = feeds_of(model, seq=3, batch=1)
    with pytest.raises(ts.ArgumentError, match="'seq' is 3 in 'ids' and 4 in 'more'"):
        loaded(feeds | {"more": np.zeros((1, 4, 8), np.float32)})
    with pytest.raises(IndexError, match="out of range"):
        loaded(feeds | {"ids": feeds["ids"] + 9})
    with pytest.raises(ts.BuildError, match="machine code only"):
        print(loaded._run.executor.kernels[0].source)


@pytest.mark.parametrize(
    "changes",
    [
        {"trusted": {}}, {"derived": {"#a": "max(1"}}, {"sizes": [["seq", [1], []]]},
        {"constants": []}, {"lifetimes": [["x", "#n", 0, 1]]}, {"cut": ["none"]},
        {"portfolios": [{"members": [0, 99], "regions": [], "limits": {}}]},
        {"portfolios": [{"members": [0], "regions": [[[["seq", 1]], 1, None, None]],
                         "limits": {"seq": [1, 40]}}]},
    ],
    ids=lambda d: next(iter(d)),
)  # fmt: skip
def test_a_description_that_makes_no_sense_is_refused(
    tagger: tuple[Any, ts.Model], tmp_path: Path, changes: dict[str, Any]
) -> None:
    tagger[1].save(tmp_path / "m.tsm")
    with pytest.raises(ts.GraphError, match=r"m\.tsm|constant .* is missing"):
        ts.load_model(rewritten(tmp_path / "m.tsm", **changes))


def test_damage_is_found_or_does_not_matter(tmp_path: Path) -> None:
    model = COPIES.program()
    made = compiled(model, COPIES.sizes)
    made.save(tmp_path / "m.tsm")
    whole, feeds = (tmp_path / "m.tsm").read_bytes(), feeds_of(model, rows=7)
    want, rng = made(feeds), np.random.default_rng(0)
    refused = 0
    for at in rng.integers(0, len(whole), 60).tolist():
        changed = bytearray(whole)
        changed[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "damaged.tsm").write_bytes(changed)
        try:
            loaded = ts.load_model(tmp_path / "damaged.tsm")
        except ts.GraphError:
            refused += 1
        else:
            assert_same(loaded(feeds), want)
    assert refused > 30


def test_sizes_at_which_it_is_another_model_are_not_saved(tmp_path: Path) -> None:
    """The last eight rows start at n - 8: an importer cuts that off where there are fewer."""
    model = program(
        """last (float[seq, 16] x) => (float[rows, 16] y)
        <int64[1] s = {-8}, int64[1] e = {9999}, int64[1] a = {0}>
        {t = Slice(x, s, e, a) r = Relu(t) y = Softmax(r)}"""
    )
    made = compiled(model, {"seq": (1, 64)})
    made.save(tmp_path / "m.tsm")
    loaded = ts.load_model(tmp_path / "m.tsm")
    low, high = loaded._run.trusted["#seq"]
    assert (low >= 8, high) == (True, 64)
    for n in (low, 40, 64):
        feeds = feeds_of(model, seq=n)
        assert_same(loaded(feeds), made(feeds))
    with pytest.raises(ts.ArgumentError, match=f"saved model for seq from {low} to 64"):
        loaded(feeds_of(model, seq=7))
    with zipfile.ZipFile(tmp_path / "m.tsm") as archive:
        assert json.loads(archive.read("model.json"))["trusted"] == {"#seq": [low, high]}
