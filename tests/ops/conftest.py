"""What the operator tests share: a peer to compare with, and an operator applied to arrays."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts


@pytest.fixture(scope="session")
def torch():
    module = pytest.importorskip("torch", reason="PyTorch is the peer of this test")
    module.set_num_threads(1)
    return module


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def stated():
    """The Function of an operator over placeholders that look like the arrays."""

    def state(op, *arrays, **settings):
        tensors = [
            ts.placeholder(a.shape, dtype=a.dtype.name, name=f"x{k}") for k, a in enumerate(arrays)
        ]
        return ts.function([*tensors, op(*tensors, **settings)])

    return state


@pytest.fixture
def run(stated):
    """The operator's result on arrays, by the oracle."""

    def evaluate(op, *arrays, **settings):
        return ts.evaluate(stated(op, *arrays, **settings), *arrays)

    return evaluate
