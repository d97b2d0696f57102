"""Hardware instructions: a back end knows some by name, and others bring their code along."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.llvm.intrinsics import emitters
from tilesmith.ir.intrinsics import operand_types


def row_by_matrix() -> ts.Function:
    a, b = ts.placeholder((4,), name="A"), ts.placeholder((4, 2), name="B")
    k = ts.reduce_axis(4, name="k")
    c = ts.compute((2,), lambda j: ts.sum(a[k] * b[k, j], axis=k), name="C")
    return ts.function([a, b, c])


def emit(b: Any, operands: dict[str, Any]) -> Any:
    total = operands["C"]
    for k in range(4):
        total = b.fma(b.splat(b.part(operands["A"], k), 2), b.part(operands["B"], 2 * k, 2), total)
    return total


OWN = ts.Intrinsic("row_by_matrix", row_by_matrix(), emitters={"llvm": emit})


def product(unit: ts.Intrinsic) -> ts.Schedule:
    a, b = ts.placeholder((3, 16), name="A"), ts.placeholder((16, 2), name="B")
    sch = ts.Schedule(ts.function([a, b, ts.ops.matmul(a, b, name="C")]))
    i, j, k = sch.loops("C")
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(i, k0, j, k1)
    sch.tensorize(j, unit)
    return sch


def test_an_intrinsic_brings_its_own_code() -> None:
    x = np.arange(48, dtype=np.float32).reshape(3, 16)
    y = np.arange(32, dtype=np.float32).reshape(16, 2)
    np.testing.assert_array_equal(ts.build(product(OWN))(x, y), x @ y)


def test_one_without_code_is_refused_by_name() -> None:
    with pytest.raises(ts.BuildError, match="row_by_matrix has no LLVM code; give it with"):
        ts.build(product(ts.Intrinsic("row_by_matrix", row_by_matrix())))
    with pytest.raises(ts.BuildError, match="has no LLVM code"):
        ts.build(product(replace(OWN, emitters={"cuda": emit})))


def test_features_that_lack_are_named() -> None:
    with pytest.raises(ts.BuildError, match="row_by_matrix needs warp_drive"):
        ts.build(product(replace(OWN, features=frozenset({"warp_drive"}))))


def test_the_built_in_ones_all_have_code_and_travel() -> None:
    for unit in ts.INTRINSICS:
        # a back end of GPUs emits those that threads carry out together
        assert unit.name in emitters() or unit.fragment is not None
        assert pickle.loads(pickle.dumps(unit)).name == unit.name


def test_an_instruction_is_described_when_it_is_first_asked_for() -> None:
    made: list[ts.Function] = []

    def describe() -> ts.Function:
        made.append(row_by_matrix())
        return made[-1]

    unit = ts.Intrinsic("row_by_matrix", describe)
    assert unit.features == frozenset()
    assert not made
    assert unit.output == "C"
    assert unit.description is made[0]
    assert unit.nbits("B") == 4 * 2 * 32
    assert len(made) == 1
    with pytest.raises(AttributeError, match="no 'desription'"):
        unit.desription  # type: ignore[attr-defined]  # noqa: B018


def test_what_takes_narrow_types_is_known_without_a_description() -> None:
    """As the descriptions say."""
    for name in ("neoverse-n1", "neoverse-v1", "sapphirerapids", "zen4", "haswell"):
        target = ts.Target.named(name)
        usable = [unit for unit in ts.INTRINSICS if unit.features <= target.features]
        types = {p.dtype for unit in usable for p in unit.description.inputs}
        assert operand_types(target) == types
