"""Runs hundreds of random candidates of the GPU space under NVIDIA's compute-sanitizer: do their
kernels access memory that is not theirs, race in shared memory, or use barriers wrongly?

    python -m bench.gpu_sanitize --draw-only --folder F      # no GPU needed: draws and builds
    python -m bench.gpu_sanitize --folder F --bundle F.tar.gz  # builds what F lacks, and runs it
    python -m bench.gpu_sanitize --only 17,130 --tools racecheck --folder G

Candidates come from sketches of every rule, of small problems with odd and even extents in several
dtypes (gpu_sanitize_draw.py); a table says how many have each rule and feature. A process runs many
of them (gpu_sanitize_worker.py), since the sanitizer takes seconds to start. One that dies or hangs
costs its candidate only. Results are compared with the oracle's as well. It ends with code 1 if any
candidate is reported, wrong or lost, if a rule has no candidate, or if a tool does not report the
fault that is planted for it.

What the tools see:

    memcheck   accesses beyond an allocation or misaligned ones, of loads and stores of threads in
               global, shared and local memory; errors of the driver's functions. Each array, and
               each buffer between launches, is an allocation of its own here. Within one, an
               access to a wrong place is not seen; the comparison of results may see it.
    racecheck  hazards in shared memory between threads of a block. Not in global memory: launches
               that overlap or split sums are not covered, and the sanitizer may run launches one
               after the other.
    synccheck  barriers that not all threads of a warp or block reach, and invalid uses of them.
    initcheck  (by --tools) reads of global memory that nobody wrote. Results and buffers between
               launches are not filled before.

Of kernels with bulk copies, mbarriers and wgmma less can be said. Shared memory is then written and
read by the copy engine and the tensor cores, not by instructions of threads, and ordered by
barriers in memory. Which of this a version of the sanitizer follows is in its release notes, not
something that this script finds out: no report of racecheck about such a kernel is weak evidence,
and one that it does make may be of an order that it does not know. Barriers and memory of whole
clusters are in the same position. The planted faults show only that each tool works on plain
kernels here.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench.gpu_sanitize_draw import (
    FEATURES,
    Saved,
    draw_problem,
    load,
    path_of,
    rule_names,
    tag,
)
from bench.gpu_sanitize_planted import save_planted
from bench.sanitizer_log import WORKER, Log, Report, mark_of, read

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Options and their values, where the sanitizer's help knows them. Backtraces of the host take long.
_OPTIONS = {
    "": (("--print-limit", "100000"), ("--show-backtrace", "no"), ("--launch-timeout", "120"),
         ("--target-processes", "all")),
    "memcheck": (("--padding", "256"), ("--check-bulk-copy", "yes"),
                 ("--check-warpgroup-mma", "yes")),
}  # fmt: skip
_START_SECONDS = 120  # until a process begins its first candidate
_BUILD_SECONDS = 120  # of a problem
_STARTS = 2  # of a process that begins no candidate


# drawing and building ----------------------------------------------------------------------------


def build_all(folder: Path, seed: int, problems: Sequence[int], each: int, jobs: int) -> None:
    """Each problem in a process of its own, since a compiler may run for minutes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.gpu_sanitize_draw"])
    left = list(problems)
    running: dict[BaseProcess, float] = {}
    while left or running:
        while left and len(running) < jobs:
            work = (str(folder), seed, left.pop(0), each)
            started = context.Process(target=draw_problem, args=work)
            started.start()
            running[started] = time.monotonic()
        for process, began in list(running.items()):
            process.join(0.02)
            if process.is_alive() and time.monotonic() - began > _BUILD_SECONDS:
                process.kill()
                process.join()
            if not process.is_alive():
                del running[process]


def numbers_in(folder: Path) -> list[int]:
    return sorted(int(p.stem[1:]) for p in folder.glob("c*.pickle"))


def coverage(candidates: Sequence[Saved]) -> tuple[str, list[str]]:
    """A table of how many candidates have each rule and feature, and those that none has."""
    names = [*rule_names(), *FEATURES]
    drawn = [c for c in candidates if not c.planted]
    have = Counter(x for c in drawn for x in {*c.labels, *c.features})
    lines = [f"{len(drawn)} candidates of {len({c.problem for c in drawn})} problems"]
    for part in (rule_names(), FEATURES):
        lines += [f"  {name:32}{have[name]:5}" for name in part]
    return "\n".join(lines), [n for n in names if not have[n]]


# running -----------------------------------------------------------------------------------------


def tool_options(help_text: str, tool: str) -> list[str]:
    known = [o for o in (*_OPTIONS[""], *_OPTIONS.get(tool, ())) if o[0] in help_text]
    return ["--tool", tool, *(word for option in known for word in option)]


def prepared(sanitizer: Sequence[str], tool: str) -> list[str]:
    """The command up to the program to watch, with the options that this version takes."""
    plain = [*sanitizer, "--tool", tool]
    said = _output([*sanitizer, "--help"])
    for command in ([*sanitizer, *tool_options(said, tool)], plain):
        tried = _output([*command, sys.executable, "-c", "pass"])
        if "COMPUTE-SANITIZER" in tried:
            return command
    raise SystemExit(f"{shlex.join(plain)} does not start:\n{tried}")


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout


@dataclass
class Outcome:
    """What became of the candidates under one tool. A candidate that took its process with it is
    in `lost`, with how.
    """

    ended: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def add(self, log: Log) -> None:
        self.ended |= log.ended
        self.reports += log.reports
        self.others += log.others


class Lane(threading.Thread):
    """Runs candidates under a tool, in one process after the other until all have begun."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, numbers: Sequence[int], fill: bool,
        timeout: float, ends: float,
    ) -> None:  # fmt: skip
        super().__init__(name=name, daemon=True)
        self.command, self.folder, self.fill = command, folder, fill
        self.timeout, self.ends = timeout, ends
        self.left = list(numbers)
        self.outcome = Outcome()

    def run(self) -> None:
        starts = 0
        while self.left and starts < _STARTS and time.monotonic() < self.ends:
            log, how = self._process()
            self.outcome.add(log)
            begun = {*log.begun}
            self.left = [n for n in self.left if n not in begun]
            starts = 0 if begun else starts + 1
            for n in log.begun[-1:]:
                if n not in log.ended:
                    self.outcome.lost[n] = how

    def _process(self) -> tuple[Log, str]:
        """What a process said, and how it ended."""
        words = [sys.executable, "-m", "bench.gpu_sanitize_worker", str(self.folder)]
        words += [",".join(map(str, self.left)), *([] if self.fill else ["--no-fill"])]
        process = subprocess.Popen(
            [*self.command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        state = {"until": min(time.monotonic() + _START_SECONDS, self.ends)}
        over = threading.Event()
        killed: list[str] = []
        watched: list[int] = []

        def watch() -> None:
            while not over.wait(0.2):
                if time.monotonic() > state["until"]:
                    late = time.monotonic() > self.ends
                    killed.append("the time was over" if late else "it hung")
                    _kill(process.pid, watched)
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        lines = []
        assert process.stdout is not None
        with open(self.folder / f"{self.name}.log", "a") as file:
            for line in process.stdout:
                lines.append(line)
                file.write(line)
                if line.startswith(WORKER):
                    watched.append(int(line.split()[-1]))
                if mark_of(line) is not None:
                    state["until"] = min(time.monotonic() + self.timeout, self.ends)
        code = process.wait()
        over.set()
        watcher.join()
        return read(lines), killed[0] if killed else f"the process ended with code {code}"


def _kill(group: int, watched: Sequence[int]) -> None:
    """Ends the sanitizer, and the process that it watches, which may be in a group of its own."""
    os.killpg(group, signal.SIGKILL)
    for pid in watched:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def sanitize(
    folder: Path, numbers: Sequence[int], tools: Sequence[str], options: argparse.Namespace,
    ends: float,
) -> dict[str, Outcome]:  # fmt: skip
    """By tool. A planted fault runs last, under its own tool only."""
    planted = {n: load(folder, n).planted for n in numbers}
    parts = max(1, options.jobs // len(tools))
    lanes: dict[str, list[Lane]] = {}
    for tool in tools:
        command = prepared(shlex.split(options.sanitizer), tool)
        print(f"{tool}: {shlex.join(command)}", flush=True)
        own = [n for n in numbers if not planted[n]]
        last = [n for n in numbers if planted[n] == tool]
        lanes[tool] = [
            Lane(f"{tool}-{k}", command, folder, [*own[k::parts], *(last if k == 0 else [])],
                 tool != "initcheck", options.timeout, ends)
            for k in range(parts)
        ]  # fmt: skip
    for lane in (x for several in lanes.values() for x in several):
        lane.start()
    out = {}
    for tool, several in lanes.items():
        out[tool] = Outcome()
        for lane in several:
            lane.join()
            out[tool].ended |= lane.outcome.ended
            out[tool].lost |= lane.outcome.lost
            out[tool].reports += lane.outcome.reports
            out[tool].others += lane.outcome.others
    return out


# the summary -------------------------------------------------------------------------------------


def summary(
    folder: Path, numbers: Sequence[int], outcomes: dict[str, Outcome], again: str
) -> tuple[str, dict[int, list[str]], bool]:
    """The text, what there is to say of each candidate, and whether everything is as it should."""
    candidates = {n: load(folder, n) for n in numbers}
    found: dict[int, list[str]] = {}
    lines, good = [], True
    for tool, outcome in outcomes.items():
        own = [n for n in numbers if not candidates[n].planted]
        reported = {r.candidate for r in outcome.reports}
        right = [n for n in own if outcome.ended.get(n) == "right"]
        clean = [n for n in right if n not in reported]
        not_run = [n for n in own if n not in outcome.ended and n not in outcome.lost]
        lines.append(
            f"{tool}: {len(clean)} of {len(own)} clean; {len({*own} & reported)} reported, "
            f"{sum(outcome.ended.get(n, '').startswith('wrong') for n in own)} wrong, "
            f"{sum(outcome.ended.get(n, '').startswith('fails') for n in own)} failed, "
            f"{len({*own} & {*outcome.lost})} lost, {len(not_run)} not run"
        )
        good &= len(clean) == len(own)
        for n in (n for n in numbers if candidates[n].planted == tool):
            seen = n in reported
            good &= seen
            lines.append(f"  the planted fault is {'reported' if seen else 'NOT REPORTED'}")
        for n in own:
            said = _said(folder, tool, candidates[n], outcome)
            if said:
                found.setdefault(n, []).extend(said)
        for r in outcome.reports:
            if r.candidate not in candidates:
                good = False
                lines.append(f"  of no candidate: {r.text}")
        if not_run and outcome.others:
            lines += ["  last lines of its processes:", *(f"    {x}" for x in outcome.others[-12:])]
    for n, said in found.items():
        c = candidates[n]
        rules = ", ".join(x for x in c.labels if " " not in x)
        lines += [
            "", f"{tag(n)} {c.title}", f"  rules: {rules}", f"  has: {', '.join(c.features)}",
            f"  source: {path_of(folder, n, '.cu')}; again: {again} --only {n}", *said,
        ]  # fmt: skip
    return "\n".join(lines), found, good


def _said(folder: Path, tool: str, c: Saved, outcome: Outcome) -> list[str]:
    """What a tool and the comparison have to say of a candidate."""
    out = []
    if (state := outcome.ended.get(c.number, "right")) != "right":
        out.append(f"  {tool}: {state}")
    if c.number in outcome.lost:
        out.append(f"  {tool}: lost: {outcome.lost[c.number]}")
    groups: dict[tuple[str, int], list[Report]] = {}
    for r in outcome.reports:
        if r.candidate == c.number:
            groups.setdefault((r.kind, r.line), []).append(r)
    source = path_of(folder, c.number, ".cu").read_text().splitlines()
    for (kind, line), reports in groups.items():
        count = sum(r.hazards for r in reports)
        out.append(f"  {tool}: {kind}, {count} times, line {line}")
        if 0 < line <= len(source):
            out.append(f"      {source[line - 1].strip()}")
        out += [f"    | {x}" for x in reports[0].text.splitlines()]
    return out


def bundle(path: Path, folder: Path, found: Sequence[int]) -> None:
    """Everything that is needed to study the reports elsewhere, as one file."""
    with tarfile.open(path, "w:gz") as tar:
        for p in (folder / "summary.txt", folder / "summary.json", *sorted(folder.glob("*.log"))):
            if p.exists():
                tar.add(p, p.name)
        for n in found:
            for suffix in (".cu", ".json"):
                tar.add(path_of(folder, n, suffix), path_of(folder, n, suffix).name)


def _found() -> str:
    """The toolkit's folder is often not on the path."""
    installed = Path("/usr/local/cuda/bin/compute-sanitizer")
    name = "compute-sanitizer"
    return str(installed) if shutil.which(name) is None and installed.exists() else name


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="of candidates and logs; what is there is used")
    parser.add_argument("--candidates", type=int, default=260)
    parser.add_argument("--each", type=int, default=4, help="candidates of a problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="numbers of candidates, as 17,130")
    parser.add_argument("--draw-only", action="store_true", help="draw and build; run nothing")
    parser.add_argument("--build-jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tools", default="memcheck,racecheck,synccheck", help=", ".join(TOOLS))
    parser.add_argument("--jobs", type=int, default=6, help="processes that share the GPU")
    parser.add_argument("--sanitizer", default=_found(), help="the command")
    parser.add_argument("--timeout", type=float, default=60, help="seconds of a candidate")
    parser.add_argument("--limit", type=float, default=540, help="seconds for everything")
    parser.add_argument("--bundle", type=Path, help="write logs and sources to this .tar.gz")
    options = parser.parse_args(words)
    ends = time.monotonic() + options.limit
    folder = options.folder or Path(tempfile.mkdtemp(prefix="sanitize-"))
    folder.mkdir(parents=True, exist_ok=True)
    tools = options.tools.split(",")
    if unknown := [t for t in tools if t not in TOOLS]:
        parser.error(f"--tools {','.join(unknown)}: there are {', '.join(TOOLS)}")
    picked = [int(n) for n in options.only.split(",") if n]
    numbers = picked or list(range(-(-options.candidates // options.each) * options.each))
    began = time.monotonic()
    had = {n // options.each for n in numbers_in(folder)}
    todo = sorted({n // options.each for n in numbers} - had)
    print(f"drawing {len(todo)} problems in {folder}", flush=True)
    build_all(folder, options.seed, todo, options.each, options.build_jobs)
    planted = save_planted(folder)
    have = [n for n in numbers_in(folder) if n in numbers or n in planted]
    table, missing = coverage([load(folder, n) for n in have])
    print(table, flush=True)
    for p in sorted(folder.glob("*.refused")):
        print(f"not built: {p.stem} {p.read_text().splitlines()[0]}")
    if missing and not picked:
        print(f"NO CANDIDATE has {', '.join(missing)}")
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    good = not missing or bool(picked)
    if options.draw_only:
        raise SystemExit(0 if good else 1)
    began = time.monotonic()
    outcomes = sanitize(folder, have, tools, options, ends)
    again = f"python -m bench.gpu_sanitize --seed {options.seed} --each {options.each}"
    text, found, clean = summary(folder, have, outcomes, again)
    text += f"\n\nran in {time.monotonic() - began:.0f} s"
    (folder / "summary.txt").write_text(f"{table}\n\n{text}\n")
    (folder / "summary.json").write_text(json.dumps({tag(n): said for n, said in found.items()}))
    print(text, flush=True)
    if options.bundle:
        bundle(options.bundle, folder, sorted(found))
    raise SystemExit(0 if good and clean else 1)


if __name__ == "__main__":
    main()
