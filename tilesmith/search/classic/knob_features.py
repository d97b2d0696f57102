"""AutoTVM's baseline of features: the decisions themselves, without a look at the program; and a
score that knows nothing, for comparisons without the analytic one.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.schedule.sample import NumericSample
from tilesmith.schedule.trace import Trace
from tilesmith.search import checked
from tilesmith.search.features.graph import Term
from tilesmith.search.features.machine import Values
from tilesmith.search.features.nest import Nest, shared_nests
from tilesmith.search.protocol import Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant


@checks_given(error=TuneError)
@dataclass(frozen=True)
class KnobFeatures:
    """The vector of decisions: log2(1 + number) of every column in a slot of its own, and a 1 in
    the slot of each structural step, such as a place or an order. As in AutoTVM, this says which
    knob has which value and nothing of what the program then does, so it transfers to no other
    operator or size.

    There are `width` slots. A name has the same slot in all variants; with more names than about a
    tenth of `width`, some share one.
    """

    width: int = 256

    def __post_init__(self) -> None:
        checked.require_counts(self, 1, "width")

    def extract(self, variant: Variant, rows: Matrix) -> Values:
        """Features of the shape (rows, 1, width)."""
        out = np.zeros((len(rows), self.width), np.float32)
        out[:, list(_structure(variant.trace, self.width))] = 1.0
        numbers = np.log2(1.0 + np.maximum(rows, 0)).astype(np.float32)
        for k, column in enumerate(variant.columns):
            out[:, _slot(column, self.width)] += numbers[:, k]
        return out[:, None]


def _slot(name: str, width: int) -> int:
    return crc32(name.encode()) % width


@lru_cache(maxsize=1024)
def _structure(trace: Trace, width: int) -> tuple[int, ...]:
    """The slots of the steps that have no number to choose."""
    steps = {str(s) for s in trace if not isinstance(s, NumericSample)}
    return tuple(sorted({_slot(text, width) for text in steps}))


@checks_given(error=TuneError)
@dataclass(frozen=True)
class NoScore:
    """In place of an analytic score: all programs are equal. `ts.Evolution(score=ts.NoScore(),
    cost_model=ts.Gbdt(base=ts.NoScore()))` learns from measurements alone, as AutoTVM and Ansor do.
    """

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """Zeros."""
        return np.zeros(len(rows))

    def term(self, variant: Variant) -> Term:
        """Zero, over the graph of the variant's features."""
        return shared_nests(variant)[0].of(0.0)

    def estimates(self, nest: Nest) -> tuple[Term, ...]:
        """Four zeros."""
        return (nest.graph.of(0.0),) * 4
