"""Which importer reads which ATen operator. A new operator is one function in the file of its
family and one line in that file's IMPORTERS.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.torch import (
    assertions,
    attention,
    elementwise,
    images,
    indexing,
    movement,
    normalization,
    products,
    reduction,
    strided,
    windows,
)
from tilesmith.frontends.torch.call import Importer

IMPORTERS: Mapping[str, Importer] = {
    **assertions.IMPORTERS,
    **attention.IMPORTERS,
    **elementwise.IMPORTERS,
    **images.IMPORTERS,
    **indexing.IMPORTERS,
    **movement.IMPORTERS,
    **normalization.IMPORTERS,
    **products.IMPORTERS,
    **reduction.IMPORTERS,
    **strided.IMPORTERS,
    **windows.IMPORTERS,
}
