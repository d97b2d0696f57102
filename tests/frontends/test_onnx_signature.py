"""Parameters of importers as the schema of their operators: they agree with ONNX's own, and a node
that does not fit is refused by name.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnx
import pytest
from one_node import model_of, ran
from onnx import defs

import tilesmith as ts
from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.check import OLDEST_OPSET
from tilesmith.frontends.onnx.operators import IMPORTERS
from tilesmith.frontends.onnx.signature import Since, signature_of
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Value

X = np.array([[-2.0, -0.25, 0.0], [0.25, 1.0, 3.0]], np.float32)
NEWEST = defs.onnx_opset_version()

UNKNOWN = {("Upsample", 6)}  # of one image, with attributes of its own: refused
RENAMED = {"bilinear": "linear"}  # modes of GridSample, whose old names work too


def schemas() -> list[tuple[str, int]]:
    """Each operator with an opset in which its schema is another one."""
    found = [
        (s.name, max(s.since_version, OLDEST_OPSET))
        for s in defs.get_all_schemas_with_history()
        if s.name in IMPORTERS and not s.domain and not s.deprecated
    ]
    return sorted(set(found))


@pytest.mark.parametrize(("op", "version"), schemas())
def test_parameters_agree_with_the_schema_of_onnx(op: str, version: int) -> None:
    schema = defs.get_schema(op, version, "")
    if schema.deprecated or (op, version) in UNKNOWN:
        return
    importer = IMPORTERS[op]
    s = signature_of(importer.at(version) if isinstance(importer, Since) else importer)
    names = {p.name for p in s.inputs if p.kinds != (Value,)}
    if not s.takes_any:
        assert set(schema.attributes) <= s.attributes.keys() | names
    assert s.takes_more or len(s.inputs) >= schema.max_input
    required = [p for p in s.inputs if p.is_required and p.name not in schema.attributes]
    assert len(required) <= max(schema.min_input, 1)
    for name, attribute in schema.attributes.items():
        p = s.attributes.get(name)
        if p is None:
            continue
        if not attribute.required:
            assert not p.is_required, name
        held = onnx.helper.get_attribute_value(attribute.default_value)
        if attribute.default_value.name and isinstance(p.default, int | float | str | tuple):
            want = held.decode() if isinstance(held, bytes) else held
            want = RENAMED.get(want, want) if isinstance(want, str) else want
            got: Any = list(p.default) if isinstance(p.default, tuple) else p.default
            assert got == pytest.approx(want) or got == "", name


def test_every_operator_is_one_of_onnx() -> None:
    known = {s.name for s in defs.get_all_schemas_with_history() if not s.domain}
    assert set(IMPORTERS) <= known | {"SwiGLU"}


REFUSED = [
    ("Relu", {"x": X}, {"alpha": 1.0}, "attribute 'alpha' is unknown; it takes none"),
    ("Elu", {"x": X}, {"beta": 1.0}, "attribute 'beta' is unknown; it takes alpha"),
    ("Relu", {"x": X, "z": X}, {}, "it has 2 inputs; it takes 1: (X)"),
    ("Softmax", {"x": X}, {"axis": 1.5}, "attribute 'axis' is 1.5; it must be a whole number"),
    ("Transpose", {"x": X}, {"perm": [1.0, 0.0]}, "is [1.0, 0.0]; it must be a list of whole"),
    ("Concat", {"x": X}, {}, "attribute 'axis' is missing; it must be a whole number"),
    ("Gather", {"x": X}, {}, "input 1 is missing; it takes (x, ids)"),
    ("Gelu", {"x": X}, {"approximate": 1}, "attribute 'approximate' is 1; it must be a string"),
    ("Conv", {"x": X}, {"strides": 2}, "attribute 'strides' is 2; it must be a list of whole"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attributes", "why"), REFUSED)
def test_a_node_that_does_not_fit(op: str, arrays: Any, attributes: Any, why: str) -> None:
    with pytest.raises(GraphError) as error:
        load_onnx(model_of(op, arrays, opset=20, **attributes))
    assert f"{op} 'n': " in str(error.value)
    assert why in str(error.value)


def hard_shrink(X: ts.Tensor, Y: ts.Tensor | None = None, *, lambd: float = 0.5) -> ts.Tensor:
    def body(*i: Any) -> Any:
        shift = 0.0 if Y is None else Y[i]
        return ts.where(ts.abs(X[i]) > lambd, X[i] + shift, shift)

    return ts.compute(X.shape, body, name="hard_shrink")


def shrunk(x: Any, lambd: float) -> Any:
    return np.where(np.abs(x) > lambd, x, 0)


class TestOperatorsOfOnesOwn:
    @pytest.mark.parametrize("given", [{}, {"lambd": 1.5}])
    def test_of_a_domain(self, given: dict[str, float]) -> None:
        model = model_of("HardShrink", {"x": X}, opset=1, domain="com.example", **given)
        graph = load_onnx(model, operators={"com.example.HardShrink": hard_shrink})
        got = ts.compile_model(graph, ts.cpu(num_cores=1))({"x": X})["y"]
        np.testing.assert_array_equal(got, shrunk(X, given.get("lambd", 0.5)))

    def test_with_the_optional_input(self) -> None:
        model = model_of("HardShrink", {"x": X, "b": X}, opset=1, domain="com.example")
        graph = load_onnx(model, operators={"com.example.HardShrink": hard_shrink})
        got = ts.compile_model(graph, ts.cpu(num_cores=1))({"x": X, "b": X})["y"]
        np.testing.assert_array_equal(got, shrunk(X, 0.5) + X)

    def test_in_the_place_of_a_built_in_one(self) -> None:
        model = model_of("Shrink", {"x": X}, lambd=0.5)
        graph = load_onnx(model, operators={"Shrink": hard_shrink})
        got = ts.compile_model(graph, ts.cpu(num_cores=1))({"x": X})["y"]
        np.testing.assert_array_equal(got, shrunk(X, 0.5))
        assert not np.array_equal(ran(model, {"x": X}), X * 2)

    @pytest.mark.parametrize(
        ("attributes", "why"),
        [({"lambda": 1.0}, "attribute 'lambda' is unknown; it takes lambd"),
         ({"lambd": "much"}, "attribute 'lambd' is 'much'; it must be a number")],
    )  # fmt: skip
    def test_that_does_not_fit(self, attributes: Any, why: str) -> None:
        model = model_of("HardShrink", {"x": X}, opset=1, domain="com.example", **attributes)
        with pytest.raises(GraphError, match="HardShrink 'n'") as error:
            load_onnx(model, operators={"com.example.HardShrink": hard_shrink})
        assert why in str(error.value)

    @pytest.mark.parametrize("given", [[hard_shrink], {"com.example.HardShrink": 3}, {3: inspect}])
    def test_that_are_no_functions_by_name(self, given: Any) -> None:
        model = model_of("HardShrink", {"x": X}, opset=1, domain="com.example")
        with pytest.raises(GraphError, match="a dict from a text to a function"):
            load_onnx(model, operators=given)
