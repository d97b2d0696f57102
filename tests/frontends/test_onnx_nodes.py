"""ONNX's own node cases of plain tensors, compiled: every one passes or is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_cases import cases, outcome, quick_pool
from onnx.reference.ops import op_pool_common

import tilesmith as ts

ROOT = Path(__file__).parent
# One name a line. A case that passes must not stand in either list.
REFUSED = frozenset((ROOT / "refused_cases.txt").read_text().split())
ON_HOST = frozenset((ROOT / "host_cases.txt").read_text().split())


def test_most_cases_pass_and_most_are_compiled() -> None:
    assert len(cases()) - len(REFUSED) >= 1500
    assert len(cases()) - len(REFUSED) - len(ON_HOST - REFUSED) >= 1250
    assert cases().keys() >= REFUSED
    assert cases().keys() >= ON_HOST


@pytest.mark.parametrize("kind", ["AVG", "MAX", "LPPOOL"])
@pytest.mark.parametrize(("kernel", "strides"), [((3,), None), ((2, 3), [2, 1]), ((2, 2, 3), None)])
def test_windows_at_once_are_onnx_own(
    kind: str, kernel: tuple[int, ...], strides: list[int] | None
) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, *(7, 6, 8)[: len(kernel)])).astype(np.float32)
    steps = strides or [1] * len(kernel)
    shape = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], kernel, steps, strict=True)]
    given = (x, x.shape, kernel, strides, shape, kind)
    want = op_pool_common.pool(*given, p=3)
    np.testing.assert_allclose(quick_pool(*given, p=3), want, rtol=1e-6, atol=1e-7)


PLACES = {name: k for k, name in enumerate(cases())}


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", list(cases()))
def test_node_case(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = None
    if PLACES[name] % 8 == 0:  # these with a schedule, however small they are, and kept
        monkeypatch.setattr(import_module("tilesmith.tune.compile_model"), "PLAIN_POINTS", 0)
        cache = tmp_path_factory.mktemp("cache")
    host: list[str] = []

    def run(model: Any, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        compiled = ts.compile_model(model, ts.cpu(num_cores=1), cache=cache)
        result = compiled(feeds)
        host.extend(h.op for h in compiled.host_steps if not h.bodies)
        return result

    got = outcome(cases()[name], run)
    if name in REFUSED:
        assert got.kind == "refused", got.text
    else:
        assert got.kind == "passed", got.text
        assert bool(host) is (name in ON_HOST), f"on the host: {host}"
