"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx.call import Importer

IMPORTERS: Mapping[str, Importer] = {}
