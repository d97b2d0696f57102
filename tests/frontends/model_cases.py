"""ONNX's collections of whole models: `simple`, `pytorch-converted`, `pytorch-operator`, and the
nine `light` architectures, whose weights are constants that the model makes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from node_cases import Outcome, Run, by_oracle, difference
from onnx import numpy_helper

from tilesmith.base.errors import TilesmithError
from tilesmith.frontends.open import load_onnx

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
COLLECTIONS = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class ModelCase:
    """`data_sets` pairs the inputs with the outputs that ONNX expects, in the model's order."""

    name: str
    collection: str
    path: Path
    data_sets: Callable[[], Iterator[tuple[list[Any], list[Any]]]]
    rtol: float = 1e-3
    atol: float = 1e-7

    @cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    @property
    def reason(self) -> str:
        """Why a tensor library need not run it; "" if it should."""
        graph = self.model.graph
        ops = {n.op_type for n in graph.node}
        if any(i.type.tensor_type.elem_type == onnx.TensorProto.STRING for i in graph.input):
            return "strings"
        return "training" if "Gradient" in ops else ""


def model_cases() -> dict[str, ModelCase]:
    found = [c for collection in COLLECTIONS for c in _stored(collection)]
    found += [_light(p) for p in sorted((DATA / "light").glob("*.onnx"))]
    return {f"{c.collection}/{c.name}": c for c in found}


def _stored(collection: str) -> Iterator[ModelCase]:
    for folder in sorted((DATA / collection).iterdir()):

        def data_sets(folder: Path = folder) -> Iterator[tuple[list[Any], list[Any]]]:
            for one in sorted(folder.glob("test_data_set_*")):
                yield _tensors(one, "input"), _tensors(one, "output")

        yield ModelCase(
            folder.name.removeprefix("test_"), collection, folder / "model.onnx", data_sets
        )


def _tensors(folder: Path, kind: str) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [_tensor(folder / f"{kind}_{k}.pb") for k in range(count)]


def _tensor(path: Path) -> Any:
    return numpy_helper.to_array(onnx.load_tensor(path))


def _light(path: Path) -> ModelCase:
    """Its input counts up from 0 to 1; the output lies beside the model."""

    def data_sets() -> Iterator[tuple[list[Any], list[Any]]]:
        graph = onnx.load(path).graph
        held = {t.name for t in graph.initializer}
        inputs = []
        for i in (i for i in graph.input if i.name not in held):
            shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
            n = int(np.prod(shape))
            inputs.append((np.arange(n).reshape(shape) / n).astype(np.float32))
        yield inputs, [_tensor(path.with_name(f"{path.stem}_output_0.pb"))]

    return ModelCase(path.stem.removeprefix("light_"), "light", path, data_sets)


def model_outcome(case: ModelCase, run: Run = by_oracle) -> Outcome:
    """Loads a case by its path, runs it, and compares every output."""
    try:
        model = load_onnx(case.path)
    except TilesmithError as error:
        return Outcome("refused", str(error))
    graph = case.model.graph
    held = {t.name for t in graph.initializer}
    names = [i.name for i in graph.input if i.name not in held]
    for inputs, wanted in case.data_sets():
        try:
            got = run(model, dict(zip(names, inputs, strict=True)))
        except TilesmithError as error:
            return Outcome("refused", f"at run time: {error}")
        for output, want in zip(graph.output, wanted, strict=True):
            if (why := difference(np.asarray(got[output.name]), want, case)) is not None:
                return Outcome("wrong", f"{output.name}: {why}")
    return Outcome("passed")
