"""Random programs over the whole language: oracle and interpreter agree, before and after a
schedule, and the programs survive JSON.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close, assert_same_meaning
from tests.support.programs import random_inputs
from tests.support.traces import random_trace
from tests.support.wide_programs import FLOATS, INTS, random_wide_program
from tilesmith.expr.dynamic import Dynamic, below
from tilesmith.expr.walk import preorder
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.nodes import walk
from tilesmith.ir.serialize import function_to_json


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_oracle_and_interpreter_agree(start):
    for seed in range(start, start + 40):
        rng = np.random.default_rng(seed)
        func = random_wide_program(rng)
        arrays = random_inputs(func, rng)
        want = ts.evaluate(func, *arrays)
        assert_close(ts.interpret(func, *arrays), want, f"seed {seed}\n{func}")
        assert function_from_json(function_to_json(func)) == func


@pytest.mark.parametrize("start", range(0, 80, 20))
def test_schedules_keep_the_meaning(start):
    for seed in range(start, start + 20):
        rng = np.random.default_rng(1000 + seed)
        func = random_wide_program(rng, 3)
        assert_same_meaning(func, random_trace(func, rng, int(rng.integers(1, 8))).func, seed)


def test_they_cover_the_language():
    funcs = [random_wide_program(np.random.default_rng(s)) for s in range(300)]
    text = "\n".join(map(str, funcs))
    for part in ("//", "%", "where", "tanh", "join=", "+=", "max(", "bool[", "float32[]", "~", "|"):
        assert part in text, part
    for d in (*INTS, *FLOATS, "bool"):
        assert any(b.dtype.name == d for f in funcs for b in f.inputs), d
        assert any(b.dtype.name == d for f in funcs for b in f.outputs), d
    longest = max(n.number for f in funcs for b in f.params for n in b.shape)
    assert longest == 130
    assert {f.num_outputs for f in funcs} >= {1, 2, 3}
    values = [w.value for f in funcs for _, b in walk(f.body) for w in b.writes]
    assert any(isinstance(a, Dynamic) for f in funcs for a in _atoms(f))
    shared = [v for v in values if len([*preorder(v, below)]) < _tree(v)]
    assert len(shared) > 20


def _atoms(func):
    for _, b in walk(func.body):
        for load in b.loads:
            for p in load.index:
                for m in p.terms:
                    yield from m


def _tree(e) -> int:
    return 1 + sum(map(_tree, below(e)))
