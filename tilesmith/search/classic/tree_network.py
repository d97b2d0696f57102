"""The network of TreeGru, in PyTorch: the network, its training, and its predictor. Trees of any
shapes are evaluated together, level by level from the deepest one up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.search.classic.context import NODE_WIDTH, Tree, tree_of
from tilesmith.search.protocol import Predictor, Scores
from tilesmith.search.training import MARGIN, doublings
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

_CHUNK = 1024  # rows scored at a time
_SMALLEST_BATCH = 16
_FEWEST_HELD_OUT = 6  # with fewer, early stopping would depend on chance


@dataclass(frozen=True)
class Training:
    """The settings of training: the fields of the same names of TreeGru."""

    hidden: int
    slots: int
    epochs: int
    learning_rate: float
    loss: Literal["rank", "regression"]
    batch: int
    held_out: float
    patience: int
    max_seconds: float
    seed: int
    device: torch.device


@dataclass(frozen=True, eq=False)
class Examples:
    """Measured rows of one variant, and the base's predictions of them."""

    tree: Tree
    rows: Matrix
    base: Scores
    labels: Scores
    task: str

    @cached_property
    def features(self) -> Tensor:
        return torch.from_numpy(self.tree.of(self.rows))


@dataclass(frozen=True, eq=False)
class Level:
    """All nodes of a batch at one depth: their features, the positions of their parents in the
    level above, and the rows they belong to. None stands for 0, 1, 2, ..., as in trees that are
    chains.
    """

    features: Tensor
    parents: Tensor | None
    owners: Tensor | None
    statements: bool  # whether any node is a statement

    def to(self, device: torch.device) -> Level:
        """The same level in the memory of a device."""
        if device.type == "cpu":
            return self
        parents, owners = (None if x is None else x.to(device) for x in (self.parents, self.owners))
        return Level(self.features.to(device), parents, owners, self.statements)


def levels_of(batch: Sequence[tuple[Tree, Tensor]]) -> list[Level]:
    """The levels of a batch of (tree, features); rows of several variants in this order."""
    parts: list[list[tuple[Tensor, Tensor, Tensor]]] = []
    widths: list[int] = []  # number of nodes in each level so far
    start = 0
    for tree, x in batch:
        n = len(x)
        rows = torch.arange(n)[:, None]
        above, offset = 1, 0
        for d, (nodes, parents) in enumerate(shape_of(tree)):
            if d == len(parts):
                parts.append([])
                widths.append(0)
            at = offset + rows * above + parents
            owners = (start + rows).expand(n, len(nodes))
            features = x[:, nodes].flatten(0, 1)
            above, offset = len(nodes), widths[d]
            widths[d] += n * len(nodes)
            parts[d].append((features, at.flatten(), owners.flatten()))
        start += n
    out = []
    for d, level in enumerate(parts):
        features, at, owners = (torch.cat(x) for x in zip(*level, strict=True))
        at, owners = _unless_plain(at, widths[d - 1]), _unless_plain(owners, start)
        out.append(Level(features, at, owners, bool(features[:, 0].any())))
    return out


def _unless_plain(places: Tensor, among: int) -> Tensor | None:
    plain = len(places) == among and torch.equal(places, torch.arange(among))
    return None if plain else places


@lru_cache(maxsize=1024)
def shape_of(tree: Tree) -> list[tuple[Tensor, Tensor]]:
    """For each depth, the nodes and the positions of their parents in the level above."""
    depth = [0]
    for p in tree.parents[1:]:
        depth.append(depth[p] + 1)
    nodes = [[v for v, d in enumerate(depth) if d == k] for k in range(max(depth) + 1)]
    out = [(torch.tensor(nodes[0]), torch.zeros(1, dtype=torch.int64))]
    for above, here in pairwise(nodes):
        parents = [above.index(tree.parents[v]) for v in here]
        out.append((torch.tensor(here), torch.tensor(parents)))
    return out


class Embedding(nn.Module):  # type: ignore[misc]
    """Embeds a node's features as a gated linear unit: tanh(value) * sigmoid(gate)."""

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden: int, features: Tensor) -> None:
        """Standardises each feature by its mean and deviation in `features`."""
        super().__init__()
        sample = features if len(features) > 1 else torch.zeros(2, NODE_WIDTH)
        self.register_buffer("mean", sample.mean(0))
        self.register_buffer("scale", 1 / sample.std(0).clamp(min=0.1))
        self.linear = nn.Linear(NODE_WIDTH, 2 * hidden)

    def forward(self, features: Tensor) -> Tensor:
        weight = self.linear.weight * self.scale
        bias = self.linear.bias - weight @ self.mean
        value, gate = functional.linear(features, weight, bias).chunk(2, 1)
        return torch.tanh(value) * torch.sigmoid(gate)


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int, slots: int, nodes: Tensor) -> None:
        """`nodes` are typical features, to standardise by: (any number, NODE_WIDTH)."""
        super().__init__()
        statement = nodes[:, 0] > 0
        self.loop = Embedding(hidden, nodes[~statement])
        self.statement = Embedding(hidden, nodes[statement])
        self.cell = nn.GRUCell(hidden, hidden)
        self.address = nn.Linear(hidden, slots)
        self.score = nn.Sequential(
            nn.Linear(slots * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.hidden, self.slots = hidden, slots

    def forward(self, levels: list[Level], rows: int) -> Tensor:
        device = self.address.weight.device
        levels = [level.to(device) for level in levels]
        memory = torch.zeros(rows, self.slots, self.hidden, device=device)
        below = torch.zeros(len(levels[-1].features), self.hidden, device=device)
        for k in range(len(levels) - 1, -1, -1):
            level = levels[k]
            state = self.cell(self._embed(level), below)
            # a learned attention chooses the memory slots that a node's state is added to
            share = torch.softmax(self.address(state), 1)[:, :, None]
            if level.owners is None:
                memory = memory.addcmul_(share, state[:, None, :])
            else:
                memory = memory.index_add_(0, level.owners, share * state[:, None, :])
            below = state
            if k and level.parents is not None:  # a loop's input is the sum of its children
                below = torch.zeros(len(levels[k - 1].features), self.hidden, device=device)
                below = below.index_add_(0, level.parents, state)
        return self.score(memory.flatten(1))[:, 0]

    def _embed(self, level: Level) -> Tensor:
        x = self.loop(level.features)
        if not level.statements:
            return x
        return torch.where(level.features[:, :1] > 0, self.statement(level.features), x)


@dataclass(frozen=True, eq=False)
class TreePredictor:
    network: Network
    base: Predictor

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        tree = tree_of(variant)
        out = np.empty(len(rows))
        with torch.inference_mode(), one_thread():
            for start in range(0, len(rows), _CHUNK):
                x = torch.from_numpy(tree.of(rows[start : start + _CHUNK]))
                scores = self.network(levels_of([(tree, x)]), len(x))
                out[start : start + len(x)] = scores.cpu().numpy()
        return out + self.base.predict(variant, rows)


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs PyTorch on one thread: levels are too small to share, and results stay reproducible."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(name: str) -> torch.device:
    """The device of this name; "auto" is CUDA if PyTorch has it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as e:  # an unknown name, or a device that is not there
        first = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise TuneError(f"TreeGru(device={name!r}): PyTorch cannot use it: {first}") from None
    return device


def train(settings: Training, base: Predictor, examples: Sequence[Examples]) -> TreePredictor:
    """Trains a network. PyTorch's global random state and settings are restored."""
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(settings.seed)
        nodes = torch.cat([e.features.flatten(0, 1) for e in examples])
        network = Network(settings.hidden, settings.slots, nodes).to(settings.device)
        _Trainer(settings, examples, network).run()
    return TreePredictor(network.eval(), base)


class _Trainer:
    def __init__(self, settings: Training, examples: Sequence[Examples], network: Network) -> None:
        self.settings, self.examples, self.network = settings, examples, network
        self.rng = np.random.default_rng(settings.seed)
        self.labels = [torch.from_numpy(e.labels.astype(np.float32)) for e in examples]
        self.base = [torch.from_numpy(e.base.astype(np.float32)) for e in examples]
        every = [(g, r) for g, e in enumerate(examples) for r in range(len(e.rows))]
        order = self.rng.permutation(len(every))
        held = round(settings.held_out * len(every))
        held = held if held >= _FEWEST_HELD_OUT else 0
        self.held_out = self._by_task([every[k] for k in order[:held]])
        self.kept = self._by_task([every[k] for k in order[held:]])

    def _by_task(self, rows: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        by_task: dict[str, list[tuple[int, int]]] = {}
        for g, r in rows:
            by_task.setdefault(self.examples[g].task, []).append((g, r))
        return list(by_task.values())

    def run(self) -> None:
        """Trains, and restores the weights that were best on the held-out rows."""
        s = self.settings
        end = time.monotonic() + s.max_seconds
        optimiser = torch.optim.Adam(self.network.parameters(), lr=s.learning_rate)
        best, kept, waited = float("inf"), None, 0
        for _ in range(s.epochs):
            for batch in self._batches():
                optimiser.zero_grad()
                self._loss(batch).backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
                optimiser.step()
                if time.monotonic() > end:
                    break
            if self.held_out:
                loss = self._held_out_loss()
                waited = 0 if loss < best else waited + 1
                if loss < best:
                    best, kept = loss, deepcopy(self.network.state_dict())
            if waited >= s.patience or time.monotonic() > end:
                break
        if kept is not None:
            self.network.load_state_dict(kept)

    def _batches(self) -> list[list[tuple[int, int]]]:
        """Batches of one task each, because programs of different tasks are never compared."""
        out = []
        for rows in self.kept:
            order = self.rng.permutation(len(rows))
            # small batches if there are few measurements: the number of steps matters
            size = min(self.settings.batch, max(_SMALLEST_BATCH, len(rows) // 8))
            parts = max(1, round(len(rows) / size))
            out += [[rows[k] for k in part] for part in np.array_split(order, parts)]
        return [out[k] for k in self.rng.permutation(len(out))]

    def _held_out_loss(self) -> float:
        with torch.no_grad():
            total = sum(float(self._loss(rows)) * len(rows) for rows in self.held_out)
        return total / sum(map(len, self.held_out))

    def _loss(self, rows: list[tuple[int, int]]) -> Tensor:
        picked: dict[int, list[int]] = {}
        for g, r in rows:
            picked.setdefault(g, []).append(r)
        batch = [(self.examples[g].tree, self.examples[g].features[at]) for g, at in picked.items()]
        labels = torch.cat([self.labels[g][at] for g, at in picked.items()])
        # The losses compare few numbers, which cost less on the CPU than many small launches.
        scores = self.network(levels_of(batch), len(labels)).cpu()
        scores = scores + torch.cat([self.base[g][at] for g, at in picked.items()])
        if self.settings.loss == "regression":
            return functional.mse_loss(scores, torch.from_numpy(doublings(labels.numpy())))
        # pairwise: which of two is faster; the order among the best has the most weight
        differ = labels[None, :] < (1 - MARGIN) * labels[:, None]
        weight = differ * labels[:, None].clamp(min=0.05)
        wrong = functional.softplus(scores[None, :] - scores[:, None])
        return (weight * wrong).sum() / weight.sum().clamp(min=1e-6)
