"""What a caller does to a constant ahead of time: the order of the steps, and their stored form."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.expr.ints import of
from tilesmith.ir.deserialize import buffer_from_json
from tilesmith.ir.nodes import Buffer
from tilesmith.ir.pack import packed
from tilesmith.ir.prepare import AppendSums, AppendZeros, Basis, Merge, with_step
from tilesmith.ir.serialize import buffer_to_json

MERGE, ZEROS, SUMS = Merge((of(2), of(3), of(2))), AppendZeros((1, 0)), AppendSums((0,))
FIRST, SECOND = Basis(((0, ((1.0, 0.0), (2.0, 1.0))),)), Basis(((1, ((1.0, 1.0),)),))


def test_the_order_is_the_same_in_whatever_order_steps_are_added():
    for steps in permutations([MERGE, FIRST, SECOND, ZEROS, SUMS]):
        prepared = ()
        for step in steps:
            prepared = with_step(prepared, step)
        both = Basis((*FIRST.matrices, *SECOND.matrices))
        assert prepared == (MERGE, both, ZEROS, SUMS)
    assert with_step((MERGE, ZEROS), Merge((of(12),))) == (Merge((of(12),)), ZEROS)


def test_steps_are_applied_one_after_the_other():
    b = Buffer("w", (of(7 + 4), of(2)), ts.dtype("int8"), "constant",
               prepared=(MERGE, ZEROS, SUMS))  # fmt: skip
    assert [n.const for n in b.given_shape] == [2, 3, 2]
    a = np.arange(100, 112, dtype=np.int8).reshape(2, 3, 2)
    got = packed(b, a, "f")
    assert np.array_equal(got[:6], a.reshape(6, 2))
    assert not got[6].any()
    digits = got[7:].astype(np.int64)
    assert np.array_equal((256 ** np.arange(4)) @ digits, a.reshape(6, 2).sum(0, dtype=np.int64))


@pytest.mark.parametrize(
    ("prepared", "stored"),
    [
        ((), []),
        ((FIRST,), [[[0, [[1.0, 0.0], [2.0, 1.0]]]]]),
        ((ZEROS,), [[], [1, 0]]),
        ((MERGE,), [[], [], [2, 3, 2]]),
        ((MERGE, ZEROS, SUMS), [[], [1, 0], [2, 3, 2], [0]]),
    ],
)
def test_the_stored_form_has_a_place_for_each_kind(prepared, stored):
    """As earlier versions wrote it: databases and artifacts hold it."""
    b = Buffer("w", (of(11), of(2)), ts.dtype("int8"), "constant", prepared=prepared)
    text = json.dumps(buffer_to_json(b))
    assert json.loads(text) == ["w", "int8", [11, 2], "constant", None, None, *stored]
    assert buffer_from_json(json.loads(text)) == b


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((3, 3, 70, 90), (0, 1)), ((41, 3, 50, 40), (1,)), ((3, 4), (0, 1)), ((5, 0, 3), (2,))],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_basis_is_a_product_along_each_dimension(
    shape: tuple[int, ...], dims: tuple[int, ...], dtype: Any
) -> None:
    rng = np.random.default_rng(0)
    matrices = {d: rng.standard_normal((6, shape[d])) for d in dims}
    basis = Basis(tuple((d, tuple(map(tuple, m.tolist()))) for d, m in matrices.items()))
    a = rng.standard_normal(shape[::-1]).astype(dtype).T  # as transposed weights are
    expected = a.astype(np.float64)
    for d, m in matrices.items():
        expected = np.moveaxis(np.tensordot(m, expected, (1, d)), 0, d)
    found = basis.apply(a, tuple(map(of, expected.shape)))
    assert found.dtype == dtype
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected.astype(dtype), rtol=2 * np.finfo(dtype).eps)
