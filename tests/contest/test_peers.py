"""Every peer computes what our operators mean, in every layout; what is missing is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tilesmith_contest import peers as peers_module
from tilesmith_contest.bench_cases import case_of
from tilesmith_contest.compare import inputs_of
from tilesmith_contest.peers import PEERS, PeerLibrary, contestants_of, installed_peers
from tilesmith_contest.problems import (
    Convolution,
    disagreement,
    from_layout,
    question_of,
    to_layout,
)
from tilesmith_contest.suite import SUITE

SMALL: dict[str, tuple[int, ...]] = {
    "C1D": (11, 3, 5, 3, 2, 1),
    "C2D": (7, 3, 5, 3, 2, 1),
    "C3D": (5, 2, 3, 3, 1, 1, 3),
    "GMM": (13, 17, 11),
    "GRP": (5, 8, 12, 3, 2, 1),
    "DIL": (7, 3, 5, 3, 1, 2),
    "DEP": (7, 5, 3, 1, 1),
    "T2D": (3, 2, 3, 4, 2, 1),
    "CAP": (5, 3, 2, 3, 2, 1, 2),
    "NRM": (30, 43),
    "SFM": (5, 33),
    "CBR": (5, 3, 7, 3, 1, 1),
    "TBG": (7, 3, 5),
}


def test_the_suite_has_thirteen_operators_of_four_shapes() -> None:
    assert list(SMALL) == list(SUITE)
    assert all(len(set(e.shapes)) == 4 for e in SUITE.values())


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("op", SMALL)
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_gives_our_answer(name: str, op: str, batch: int) -> None:
    pytest.importorskip(name)
    case = case_of(op, SMALL[op], batch)
    arrays = inputs_of(case.plain)
    want = np.asarray(ts.evaluate(case.plain, *arrays))
    question = question_of(case.operator, case.numbers, arrays)
    found = contestants_of(name, question.problem, 1)
    assert found or (name == "numpy" and isinstance(question.problem, Convolution))
    for c in found:
        with c.mode():
            c.run()
            assert disagreement(want, question.restore(c.answer())) is None, c.name


@pytest.mark.parametrize("op", [op for op, e in SUITE.items() if e.layouts])
def test_a_layout_of_ours_means_the_same(op: str) -> None:
    case = case_of(op, SMALL[op], 2, ["NHWC", "NCHW"])
    assert list(case.functions) == ["NHWC", "NCHW"]
    arrays = inputs_of(case.plain)
    want = ts.evaluate(case.plain, *arrays)
    for layout, func in case.functions.items():
        y = ts.evaluate(func, *to_layout(case.operator, layout, arrays))
        np.testing.assert_allclose(from_layout(layout, y), want, rtol=1e-4, atol=1e-4)


def test_both_layouts_are_tried_where_channels_do_not_fill_a_vector() -> None:
    lanes = ts.cpu().lanes(32)
    assert list(case_of("C2D", (5, 3, lanes, 3, 1, 1)).functions) == ["NHWC"]
    assert set(case_of("C2D", (5, 3, lanes - 1, 3, 1, 1)).functions) == {"NHWC", "NCHW"}
    assert list(case_of("C2D", (5, 3, 1, 3, 1, 1), 1, ["NHWC"]).functions) == ["NHWC"]


def test_the_work_of_a_transposed_convolution_leaves_out_zeros() -> None:
    case = case_of("T2D", (4, 512, 256, 4, 2, 1))
    assert case.work == 2 * 4 * 4 * 512 * 256 * 4 * 4
    assert case_of("GMM", (8, 8, 8)).work == 2 * 8**3


def test_a_wrong_answer_is_told() -> None:
    a = np.ones((3, 3), np.float32)
    assert disagreement(a, a * np.float32(1.0001)) is None
    assert "differ by 0.5" in str(disagreement(a, a * 0.5))
    assert "shapes [3, 3] and [9]" in str(disagreement(a, a.ravel()))
    assert disagreement(a, a * np.nan) is not None


def test_absent_peers_are_named_and_unknown_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = replace(PEERS["torch"], modules=("a_module_that_nobody_has",))
    libraries: dict[str, PeerLibrary] = {**PEERS, "torch": torch}
    monkeypatch.setattr(peers_module, "PEERS", libraries)
    found, absent = installed_peers(["torch", "numpy"])
    assert found == ["numpy"]
    (why,) = absent
    assert "torch (no module named 'a_module_that_nobody_has'" in why
    assert "pip install 'tilesmith[peers]'" in why
    with pytest.raises(ts.ArgumentError, match="unknown peer 'tvm'; known are torch"):
        installed_peers(["tvm"])


@pytest.mark.parametrize("op", ["C2D", "C3D", "CBR", "T2D"])
def test_torch_gets_its_best_layouts_and_prepared_weights(op: str) -> None:
    torch = pytest.importorskip("torch")
    case = case_of(op, SMALL[op])
    problem = question_of(case.operator, case.numbers, inputs_of(case.plain)).problem
    names = [c.name for c in contestants_of("torch", problem, 1)]
    assert names[:2] == ["torch", "torch channels-last"]
    if torch.backends.mkldnn.is_available():
        assert names[2:] == ["torch oneDNN", "torch oneDNN channels-last"]
