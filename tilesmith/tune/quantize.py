"""`ts.quantize`: a model in float32 and typical inputs in, a graph of int8 layers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tilesmith.base.errors import ArgumentError, GraphError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.graph.graph import Graph
from tilesmith.graph.layer_notes import PrecisionReport
from tilesmith.graph.program import Program
from tilesmith.graph.quantization.insert import quantized
from tilesmith.graph.quantization.layers import Layer
from tilesmith.tune.cache import Cache
from tilesmith.tune.calibrate import Calibrated, checked_calibration, plain_graph, warn_of_kept
from tilesmith.tune.compile_model import compile_model

MAX_ERROR = 0.1  # of a layer alone, so that ten of them would drown a result


@checks_given(error=GraphError)
def quantize(
    graph: Graph | Program,
    calibration: Sequence[Mapping[str, Any]],
    *,
    percentile: float = 100.0,
    max_error: float = MAX_ERROR,
    keep: Sequence[str] = (),
    target: Target | None = None,
    cache: Cache | str | Path | None = "default",
) -> Graph:
    """A graph whose products and convolutions are sums of products of integers of 8 bits. Compile
    or tune it like any other.

    - `graph`: what `ts.load_onnx` or `ts.from_torch` returns, with known sizes.
    - `calibration`: inputs that are typical of the model's use, each a dict of arrays by name.
    - `percentile`: the share of an activation's numbers, in percent, that stays within its range
      at either end; those beyond are clipped. By default none are: the range is from the least to
      the largest number.
    - `max_error`: layers that alone lose more stay in float32, and a warning names them: the root
      of the mean square of the error over that of the layer's results, row by row or pixel by
      pixel, on the calibration inputs.
    - `keep`: layers that stay in float32, by their names in the model, as "Conv /stem/Conv".
    - `target`, `cache`: the machine that runs the model in float32 for calibration, and the folder
      for its kernels, as in `ts.compile_model`.

    Weights have one scale for each output channel and no zero point. Activations have one scale
    and one zero point; those of products of two computed matrices have no zero point. What lies
    between the layers, as softmax and norms, stays in float32. `graph.layers` says what each layer
    loses.

    Example:

        feeds = [{"image": x} for x in images]
        small = ts.quantize(ts.load_onnx("model.onnx", dims={"batch": 1}), feeds)
        model = ts.compile_model(small)
    """
    if not 50 < percentile <= 100:
        raise ArgumentError(
            f"quantize(percentile={percentile}): it must be more than 50 and at most 100, as 99.99"
        )
    if not max_error >= 0:
        raise ArgumentError(f"quantize(max_error={max_error}): it must be at least 0, as 0.1")
    plain = plain_graph(graph)
    feeds = checked_calibration(plain, calibration)
    compiled = partial(compile_model, target=target, cache=cache)
    found = Calibrated.of(plain, feeds, compiled, percentile)
    notes = [found.note(one, max_error, keep) for one in found.layers]
    _require_known(keep, found.layers)
    chosen = [x for x, note in zip(found.layers, notes, strict=True) if note.precision == "int8"]
    warn_of_kept(plain.name, [n for n in notes if n.why and n.precision != "int8"], 4)
    done = quantized(plain, chosen, found.scales, found.moves)
    return replace(done, checks=plain.checks, precision=PrecisionReport(tuple(notes)))


def _require_known(keep: Sequence[str], layers: Sequence[Layer]) -> None:
    names = [x.name for x in layers]
    for name in keep:
        if name not in names:
            raise ArgumentError(
                f"keep names {name!r}, which is no layer that can be quantised; these are "
                f"{', '.join(map(repr, names)) or 'none'}"
            )
