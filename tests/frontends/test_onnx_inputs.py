"""The inputs of an imported model are those that it declares, in that order."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from small_models import model_of

import tilesmith as ts
from tilesmith.frontends.open import load_onnx

FEEDS = {"a": np.ones(3, np.float32), "idle": np.ones(2, np.int64), "b": np.full(3, 4, np.float32)}


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_an_input_that_no_node_reads_is_given_like_the_others(is_open: bool) -> None:
    node = helper.make_node("Sub", ["b", "a"], ["y"])
    model = ts.compile_model(load_onnx(model_of([node], FEEDS, ["y"], is_open=is_open)))
    assert [s.name for s in model.inputs] == ["a", "idle", "b"]
    assert model(FEEDS)["y"].tolist() == [3, 3, 3]
