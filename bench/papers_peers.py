"""The figures of `bench.papers` beside libraries: operators, subgraphs and networks, by the pieces
of `tilesmith bench` and `bench.networks`.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import tilesmith as ts
from bench import networks
from bench.network_log import NetworkLog
from bench.papers_outcome import Outcome
from bench.papers_tuning import Options
from tilesmith_contest.bench_cases import cases_of
from tilesmith_contest.compare import Contestants, compare
from tilesmith_contest.pairs import geometric_mean
from tilesmith_contest.peers import PEERS, installed_peers

_AUTOTVM = "C2D,DEP"
_OPERATORS = "C1D,C2D,C3D,GMM,GRP,DIL,DEP,T2D,CAP,NRM"
_SUBGRAPHS = "CBR,TBG"
_SECONDS = 5.0  # of tuning for each case, if none are given


def _beside(title: str, ops: str, shapes: str, options: Options) -> list[Outcome]:
    target, (peers, _) = ts.cpu(options.threads), installed_peers(list(PEERS))
    rows, wrong = [], []
    with ts.open_database(":memory:") as db, Contestants(peers, options.threads) as processes:
        for case in cases_of(ops, 1, shapes, ()):
            row = compare(case, processes, target, db, options.seconds or _SECONDS)
            if row.error is not None or row.ratio is None:
                rows.append([row.name, "-", "", "", ""])
                wrong.append(f"{row.name}: {row.error or 'no peer has it'}")
            else:
                rows.append([
                    row.name, f"{row.ratio:.2f}", f"{row.value:.4g}", f"{row.peer_value:.4g}",
                    str(row.peer),
                ])  # fmt: skip
            print(f"  {rows[-1][0]}: {rows[-1][1]}", flush=True)
    ratios = [float(r[1]) for r in rows if r[2]]
    notes = [f"geometric mean {geometric_mean(ratios):.2f}" if ratios else "", *wrong]
    return [Outcome(
        f"{title}: times as fast as the fastest library ({', '.join(peers) or 'none installed'}), "
        f"{options.seconds or _SECONDS:g} s of tuning each, {options.threads} threads",
        ["case", "ratio", "our us", "its us", "library"], rows, bars=1,
        across="times as fast as the fastest library", note="\n".join(filter(None, notes)),
    )]  # fmt: skip


def library(options: Options) -> list[Outcome]:
    return _beside("Single operators", _AUTOTVM, "1,2,3,4", options)


def operators(options: Options) -> list[Outcome]:
    return _beside("Single operators", _OPERATORS, "3", options)


def subgraphs(options: Options) -> list[Outcome]:
    return _beside("Subgraphs", _SUBGRAPHS, "1,3", options)


def whole_networks(options: Options) -> list[Outcome]:
    """The smallest two of the networks; `bench.networks` takes all five."""
    with tempfile.TemporaryDirectory(prefix="tilesmith-papers-") as folder:
        log = Path(folder) / "networks.jsonl"
        networks.main([
            "--only", "mobilenet-v2", "dcgan", "--threads", str(options.threads),
            "--budget", str(options.seconds or 60.0), "--json", str(log),
            "--db", str(Path(folder) / "networks.db"), "--quiet",
        ])  # fmt: skip
        found = NetworkLog(log).results
    rows = []
    for compared in found:
        row = compared.row
        rows.append([
            compared.case.network, f"{row.ratio:.2f}" if row.ratio else "-",
            f"{row.value:.4g}" if row.value else "-", str(row.peer or "no engine"),
        ])  # fmt: skip
    ratios = [float(r[1]) for r in rows if r[1] != "-"]
    note = f"geometric mean {statistics.geometric_mean(ratios):.2f}" if ratios else ""
    return [Outcome(
        f"Networks: times as fast as the fastest engine, {options.seconds or 60.0:g} s of tuning",
        ["network", "ratio", "our ms", "engine"], rows, bars=1,
        across="times as fast as the fastest engine", note=note,
    )]  # fmt: skip
