"""OpenRun: runs a model whose sizes are open, with kernels that were compiled once for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.open_executor import OpenExecutor
from tilesmith.graph.open_plan import size_names
from tilesmith.graph.program import Feeds, Program
from tilesmith.graph.size_fit import CannotOpen
from tilesmith.graph.stages import Compile, StagedRun

Verify = Callable[[Mapping[str, int]], Graph]


class OpenRun(StagedRun):
    """Call it with arrays by name. At the first call with sizes outside of the range, or with small
    ones at which the model may be another one, `verify` imports it there, which takes longer. Where
    it computes something else there than elsewhere, it runs as a StagedRun, which compiles.
    """

    def __init__(
        self, program: Program, executor: OpenExecutor, verify: Verify, compile_graph: Compile,
        smallest: Mapping[str, int], holds_at_the_ends: bool = True,
    ) -> None:  # fmt: skip
        """`smallest`: what is below is compared before it is used; so is what is beyond the sizes
        that it was made from, unless it `holds_at_the_ends` of the ranges.
        """
        super().__init__(program, compile_graph)
        self.executor, self._verify = executor, verify
        plan, names = executor.plan, size_names(program.inputs)
        self.declared = dict(zip(names, plan.sizes, strict=True))  # by the names of dimensions
        self._dims = [
            (names[dim], s.name, d)
            for s in program.inputs
            for d, dim in enumerate(s.dims or ())
            if isinstance(dim, str)
        ]
        self.trusted: dict[str, tuple[int, int]] = {}  # sizes at which nothing is compared
        for s in plan.sizes:
            (low, high), largest = s.limits, plan.largest[f"#{s.name}"]
            low = max(low, smallest.get(f"#{s.name}", low))
            is_end = holds_at_the_ends and not plan.cut
            self.trusted[f"#{s.name}"] = low, max(largest, high) if is_end else largest
        self.differs: dict[tuple[int, ...], str] = {}  # sizes that are compiled, and why

    def sizes(self, feeds: Feeds) -> dict[str, int]:
        """The lengths of checked inputs by the names of sizes."""
        found = {name: feeds[x].shape[d] for name, x, d in self._dims}
        return {n: found[n] for n in self.executor.plan.largest}

    def at(self, feeds: Feeds) -> Executor | None:
        """What runs inputs of these shapes; None if that has to be compiled for them."""
        sizes = self.sizes(feeds)
        key = tuple(sizes.values())
        if key in self.differs:
            return None
        trusted = (low <= sizes[n] <= high for n, (low, high) in self.trusted.items())
        if self.executor.knows(sizes) or all(trusted):
            return self.executor.at(sizes)
        try:
            graph = self._verify(sizes)
        except CannotOpen as error:
            self.differs[key] = str(error)
            return None
        return self.executor.at(sizes, graph)

    def __call__(self, feeds: Feeds) -> dict[str, Array]:
        given = {n: np.asarray(a) for n, a in feeds.items()}
        run = self.at(given)
        return super().__call__(given) if run is None else run(given)
