"""Forest: gradient-boosted trees as plain arrays, evaluated by NumPy. It is what a learned cost
model is stored as, so that using one needs no library of trees.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.search.features.machine import Values

Floats = np.ndarray[Any, np.dtype[np.float32]]
Places = np.ndarray[Any, np.dtype[np.int16]]

_CHUNK = 512  # rows evaluated at a time, so that intermediate results stay in the cache
MOST_DEPTH = 8


@dataclass(frozen=True, eq=False)
class Forest:
    """Complete binary trees of one depth. Node k of a tree has the children 2k + 1, for values
    below its threshold, and 2k + 2. Shorter branches have thresholds of infinity.
    """

    columns: Places  # (trees, nodes): of the features
    thresholds: Floats  # (trees, nodes)
    leaves: Floats  # (trees, nodes + 1)

    def __post_init__(self) -> None:
        trees, nodes = self.columns.shape if self.columns.ndim == 2 else (0, 0)
        sound = (
            (nodes + 1).bit_count() == 1
            and nodes.bit_length() <= MOST_DEPTH
            and self.thresholds.shape == (trees, nodes)
            and self.leaves.shape == (trees, nodes + 1)
            and not np.isnan(self.thresholds).any()
            and bool(np.isfinite(self.leaves).all())
            and bool((self.columns >= 0).all())
        )
        if not sound:
            raise TuneError("these arrays are not those of a forest")

    @property
    def depth(self) -> int:
        return int(self.columns.shape[1]).bit_length()

    @property
    def width(self) -> int:
        """The features that it reads, up to the last one."""
        return int(self.columns.max(initial=-1)) + 1

    def predict(self, x: Values) -> Floats:
        """The sum of the trees' outputs for each row."""
        out = np.empty(len(x), np.float32)
        for start in range(0, len(x), _CHUNK):
            out[start : start + _CHUNK] = self._predict(x[start : start + _CHUNK])
        return out

    def _predict(self, x: Values) -> Floats:
        trees, nodes = self.columns.shape
        numbers, starts = np.ascontiguousarray(x).ravel(), np.arange(len(x))[:, None] * x.shape[1]
        columns, thresholds = self.columns.ravel().astype(np.intp), self.thresholds.ravel()
        first = np.arange(trees) * nodes  # the root of each tree; plain indices are fastest
        at = np.zeros((len(x), trees), np.intp)
        for _ in range(self.depth):
            node = at + first
            right = numbers.take(columns.take(node) + starts) >= thresholds.take(node)
            at += at + 1 + right
        leaf = at + (np.arange(trees) * (nodes + 1) - nodes)
        return np.asarray(self.leaves.ravel().take(leaf).sum(axis=1))

    @staticmethod
    def of(booster: Any) -> Forest:
        """The trees of an XGBoost booster, which compares in the same way."""
        model = json.loads(bytes(booster.save_raw("json")))
        trees = model["learner"]["gradient_booster"]["model"]["trees"]
        depth = max((_depth(t, 0) for t in trees), default=0)
        if depth > MOST_DEPTH:
            raise TuneError(f"trees of depth {depth}; a learned model has at most {MOST_DEPTH}")
        shape = len(trees), (1 << depth) - 1
        columns, thresholds = np.zeros(shape, np.int16), np.full(shape, np.inf, np.float32)
        leaves = np.zeros((shape[0], shape[1] + 1), np.float32)
        for number, tree in enumerate(trees):
            _fill(tree, 0, 0, depth, columns[number], thresholds[number], leaves[number])
        return Forest(columns, thresholds, leaves)


def _depth(tree: dict[str, Any], node: int) -> int:
    left, right = tree["left_children"][node], tree["right_children"][node]
    return 0 if left < 0 else 1 + max(_depth(tree, left), _depth(tree, right))


def _fill(
    tree: dict[str, Any], node: int, place: int, levels: int,
    columns: Places, thresholds: Floats, leaves: Floats,
) -> None:  # fmt: skip
    """Copies the branch at `node` to `place`, which has so many levels below it."""
    left = tree["left_children"][node]
    value = tree["split_conditions"][node]  # of a leaf, its output
    if left < 0:
        first = ((place + 1) << levels) - 1 - len(columns)
        leaves[first : first + (1 << levels)] = value
        return
    columns[place], thresholds[place] = tree["split_indices"][node], value
    for k, child in enumerate((left, tree["right_children"][node])):
        _fill(tree, child, 2 * place + 1 + k, levels - 1, columns, thresholds, leaves)
