"""The experiments of the AutoTVM, Ansor and MetaSchedule papers, at our scale on this machine:

    python -m bench.papers --list                      # what each figure is
    python -m bench.papers autotvm-4 --trials 64 --seeds 3 --plot build/papers
    python -m bench.papers ansor-table3 --seconds 20 --json build/table3.json

Each figure prints a table, and with --plot draws a picture. Those that tune for real take about
--trials x 0.1 s for each contestant and seed, one seed after the other; --seconds bounds each run.
Those on recorded programs need no hardware; with --replay TASK nor do the
others: a simulator fitted to the records of a task answers. docs/papers.md has ours beside theirs.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tilesmith as ts
from bench import papers_models as models
from bench import papers_peers as peers
from bench import papers_tuning as tuning
from bench.dataset import OPERATORS
from bench.papers_outcome import Outcome, draw, write
from bench.papers_tuning import Options
from tilesmith_contest.compare import machine_of


@dataclass(frozen=True)
class Figure:
    """`theirs` is the figure of the paper, `shows` what it compares."""

    theirs: str
    shows: str
    run: Callable[[Options], list[Outcome]]


FIGURES: dict[str, Figure] = {
    "autotvm-4": Figure(
        "AutoTVM, figure 4",
        "learned models against genetic and random search, on one convolution", tuning.tuners,
    ),
    "autotvm-5": Figure(
        "AutoTVM, figure 5", "rank loss against regression, trees and TreeGRU", tuning.objectives
    ),
    "autotvm-6": Figure(
        "AutoTVM, figure 6", "how much the variety of a batch is worth (lambda)", tuning.diversity
    ),
    "autotvm-7": Figure(
        "AutoTVM, figure 7", "mean, expected improvement, upper confidence bound",
        tuning.uncertainty,
    ),
    "autotvm-8": Figure(
        "AutoTVM, figure 8", "a search that knows records of other operators", tuning.transfer
    ),
    "autotvm-9": Figure(
        "AutoTVM, figure 9",
        "what features carry over to other sizes and operators (recorded programs)",
        models.representations,
    ),
    "autotvm-10": Figure(
        "AutoTVM, figure 10", "convolutions beside the fastest library", peers.library
    ),
    "ansor-6": Figure(
        "Ansor, figure 6", "ten operators beside the fastest library", peers.operators
    ),
    "ansor-7": Figure(
        "Ansor, figure 7", "without fine-tuning, in a limited space, without a model",
        tuning.ablation,
    ),
    "ansor-8": Figure(
        "Ansor, figure 8", "two subgraphs beside the fastest library", peers.subgraphs
    ),
    "ansor-9": Figure(
        "Ansor, figure 9", "two networks beside inference engines", peers.whole_networks
    ),
    "ansor-10": Figure(
        "Ansor, figure 10", "task scheduler, shared model, transfer (recorded programs)",
        models.schedulers,
    ),
    "ansor-table3": Figure(
        "Ansor, table 3", "trials and seconds until an AutoTVM-like tuner's end is reached",
        tuning.matching,
    ),
    "ansor-model": Figure(
        "Ansor, section 7 (cost model)",
        "RMSE, R2, pairwise accuracy and recall of losses (recorded programs)",
        models.cost_models,
    ),
    "composition": Figure(
        "MetaSchedule, composing spaces", "one more rule at a time on a fused product",
        tuning.composition,
    ),
}  # fmt: skip


def listing() -> str:
    wide = max(map(len, FIGURES))
    return "\n".join(f"{name:{wide}}  {f.theirs}: {f.shows}" for name, f in FIGURES.items())


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=listing(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="names of the list below")
    parser.add_argument("--list", action="store_true", help="what each figure is")
    parser.add_argument("--seconds", type=float, default=0.0, metavar="S",
                        help="bound of each tuning run (0: none but --trials)")  # fmt: skip
    parser.add_argument("--trials", type=int, default=64, help="of each tuning run (64)")
    parser.add_argument("--seeds", type=int, default=2, help="how many runs of each (2)")
    parser.add_argument("--seed", type=int, default=None,
                        help="the first seed; by default the clock's seconds")  # fmt: skip
    parser.add_argument("--operator", nargs="+", default=(), metavar="WORD",
                        help='in place of the usual one: "conv2d 28 128 128 3 1 1"')  # fmt: skip
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--replay", choices=sorted(OPERATORS), default="", metavar="TASK",
                        help="a task of bench.dataset: its records answer")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write tables and curves here")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw a picture of each figure")
    given = parser.parse_args(words)
    unknown = [name for name in given.figures if name not in FIGURES]
    if unknown:
        parser.error(f"unknown figure {unknown[0]!r}; there are {', '.join(FIGURES)}")
    if given.list or not given.figures:
        print(listing())
        return
    if min(given.trials, given.seeds, given.threads) < 1 or given.seconds < 0:
        parser.error("--trials, --seeds and --threads are 1 or more, --seconds is not negative")
    first = int(time.time()) % 100_000 if given.seed is None else given.seed
    options = Options(
        given.seconds, given.trials, tuple(range(first, first + given.seeds)),
        tuple(" ".join(given.operator).split()), given.threads, given.replay,
    )  # fmt: skip
    outcomes: dict[str, Outcome] = {}
    for name in given.figures:
        figure = FIGURES[name]
        print(f"{name}: {figure.theirs}, {figure.shows}", flush=True)
        made = figure.run(options)
        for k, outcome in enumerate(made):
            label = name if len(made) == 1 else f"{name}-{k + 1}"
            outcomes[label] = outcome
            print(f"\n{outcome.text}\n", flush=True)
            if given.plot is not None:
                print(f"drawn: {draw(label, outcome, given.plot)}")
    if given.json is not None:
        command = "python -m bench.papers " + shlex.join(sys.argv[1:] if words is None else words)
        write(outcomes, given.json, {
            "date": time.strftime("%Y-%m-%d"), "machine": machine_of(ts.cpu(given.threads)),
            "command": command, "seeds": ", ".join(map(str, options.seeds)),
        })  # fmt: skip


if __name__ == "__main__":
    main()
