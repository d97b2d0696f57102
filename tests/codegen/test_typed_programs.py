"""Random sums of products in small types, at the ends of their ranges. bench/typed_programs.py
checks thousands.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

import tilesmith as ts
from bench import typed_programs
from bench.typed_programs import Outcome, Pool, check
from tests.support.thorough import by_turns
from tests.support.typed_programs import MIXES, Typed, extreme_inputs, random_typed_program
from tilesmith.ir.evaluate import evaluate


def program(seed: int) -> tuple[Typed, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    typed = random_typed_program(rng)
    return typed, extreme_inputs(typed.func, rng)


@pytest.mark.parametrize("seed", range(20))
def test_random_candidates_compute_the_same(seed: int) -> None:
    outcomes = check(seed, 2, lambda o: None)
    assert outcomes
    assert all(o.state == "right" for o in outcomes), outcomes


def test_all_mixes_and_both_ends_of_ranges_are_drawn() -> None:
    seen: dict[str, set[float]] = {}
    mixes = set()
    for seed in range(150):
        typed, arrays = program(seed)
        mixes.add(typed.mix)
        for b, a in zip(typed.func.inputs, arrays, strict=True):
            if b.name in ("A", "B"):
                seen.setdefault(str(b.dtype), set()).update(map(float, (a.min(), a.max())))
    assert mixes == {f"{a} x {b}" for a, b in MIXES}
    assert {-128, 127} <= seen["int8"]
    assert {0, 255} <= seen["uint8"]
    largest = float(np.finfo(np.float16).max)
    assert {-largest, largest, 2.0**-14, -(2.0**-14)} <= seen["float16"]
    assert {255 * 2.0**120, -255 * 2.0**120, 2.0**-126} <= seen["bfloat16"]


@pytest.mark.parametrize("seed", by_turns(20, 60))
def test_sums_of_floats_are_the_same_in_any_order(seed: int) -> None:
    """So that a kernel's answer must be equal, not only near."""
    typed, arrays = program(seed)
    if typed.func.inputs[0].dtype.is_int or "product" not in typed.kind:
        return
    func, (a, b, *_) = typed.func, arrays
    (out,) = func.outputs
    want = evaluate(func, *arrays)
    assert not np.isnan(want.astype(np.float64)).any()
    if typed.kind != "product" or out.dtype.bits < 32 or a.shape[-1] != b.shape[0]:
        return
    if want.shape == (a.shape[0], b.shape[1]):
        x, y = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_array_equal(want, x[:, ::-1] @ y[::-1])


def test_an_answer_that_is_off_by_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(scheduled: ts.Function, target: ts.Target) -> object:
        kernel = ts.build(scheduled, target)

        def call(*arrays: np.ndarray) -> np.ndarray:
            got = kernel(*arrays)
            got.reshape(-1)[-1] ^= 1
            return got

        return call

    monkeypatch.setattr(typed_programs, "build", off)
    seeds = [s for s in range(20) if program(s)[0].func.outputs[0].dtype.is_int][:3]
    assert seeds
    for seed in seeds:
        assert [o.state for o in check(seed, 1, lambda o: None)] == ["wrong"]


def unruly(pipe: Connection, count: int) -> None:
    """A worker that dies of program 2 and hangs at program 3."""
    while (seed := pipe.recv()) is not None:
        pipe.send(Outcome(seed, "mix", "kind", "none", "began", "", "the trace"))
        if seed == 2:
            os._exit(11)
        if seed == 3:
            time.sleep(600)
        pipe.send([Outcome(seed, "mix", "kind", "none", "right")])


def test_a_worker_that_dies_or_hangs_costs_its_candidate_only() -> None:
    pool = Pool(2, 1, unruly, hangs=1.0)
    outcomes = {o.seed: o for o in pool.run(range(6), time.monotonic() + 120)}
    assert {s: o.state for s, o in outcomes.items()} == {
        0: "right", 1: "right", 2: "failed", 3: "failed", 4: "right", 5: "right",
    }  # fmt: skip
    assert outcomes[2].text == "the process ended with code 11"
    assert outcomes[3].text == "it hung"
    assert outcomes[2].trace == "the trace"
    text = typed_programs.table(list(outcomes.values()))
    assert text.splitlines()[-1].split() == ["all", "4", "0", "0", "2"]
