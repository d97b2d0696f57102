"""What an inference engine that we compare with offers: a prepared model whose calls are timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array


@dataclass(frozen=True, eq=False)
class ModelFile:
    """An ONNX file with the inputs to run it on, in the file's order. `dims` are sizes of its open
    dimensions by name. `outputs` are the names of its outputs. `precision` is the type in which its
    products are to be computed; a file in int8 has quantize nodes.
    """

    path: Path
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]
    dims: Mapping[str, int] = field(default_factory=dict)
    precision: str = "float32"

    @property
    def program(self) -> Path:
        """The same model in PyTorch's own format, which `torch.export.save` writes."""
        return self.path.with_suffix(".pt2")


class Engine(Protocol):
    """An engine that was loaded, in a process of its own."""

    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        """Loads and compiles the model, and runs it once. The process was started with so many
        threads; this also tells engines that have a setting of their own.
        """
