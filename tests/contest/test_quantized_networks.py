"""Networks in int8 as `python -m bench.networks --precision int8` runs them: the file that everyone
reads, small.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tilesmith_contest.models import WRONG, relative_error

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from tilesmith_contest.networks.catalogue import in_float64, network  # noqa: E402
from tilesmith_contest.networks.export import export  # noqa: E402
from tilesmith_contest.networks.quantized import quantize_file  # noqa: E402


@pytest.mark.usefixtures("short_drafts")
def test_a_quantised_file_computes_nearly_the_same(tmp_path: Path) -> None:
    net = network("mobilenet-v2", small=True)
    path, small = tmp_path / "net.onnx", tmp_path / "net-int8.onnx"
    export("mobilenet-v2", path, small=True)
    quantize_file(path, small, [net.inputs(1, seed) for seed in range(1, 5)])
    feeds = net.inputs()
    right = in_float64(net, net.module(), feeds)
    model = ts.compile_model(ts.load_onnx(small), ts.cpu(num_cores=1), cache=None, progress=False)
    kinds = {str(p.dtype) for e in model.executors for k in e.kernels for p in k.artifact.inputs}
    assert {"int8", "uint8"} <= kinds
    session = onnxruntime.InferenceSession(str(small), providers=["CPUExecutionProvider"])
    theirs = dict(zip(net.outputs, map(np.asarray, session.run(None, feeds)), strict=True))
    ours = relative_error(model(feeds), right)
    assert 1e-4 < ours < WRONG["int8"]
    assert ours < 2 * relative_error(theirs, right) + 0.02


def test_a_precision_that_is_unknown_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    networks = pytest.importorskip("bench.networks")
    with pytest.raises(SystemExit):
        networks.main(["--precision", "int8,int4"])
    assert "--precision int4 is unknown; known are float32, float16" in capsys.readouterr().err
