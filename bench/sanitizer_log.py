"""Reads what NVIDIA's compute-sanitizer prints, and what the process prints that it watches.

Each line of the sanitizer begins with =========. The first line of a report is not indented behind
that; the others, such as where it happened, are. A report belongs to the candidate whose tag is in
a kernel or file that it names, or else to the one that ran last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_OURS = re.compile(r"=========(?: (?P<indent> *)(?P<text>.*))?$")
_TAG = re.compile(r"(?<![A-Za-z0-9])c(\d{5})(?=[_.])")
_LINE = re.compile(r"(?<![A-Za-z0-9])c(\d{5})\.cu:(\d+)")
_HAZARDS = re.compile(r"\[(\d+) hazards?\]")
WORKER = "@@ worker"  # in front of the number of the watched process
_MARK = re.compile(r"@@ (\d+) (begin|right|wrong|fails)(?:: (.*))?$")
# Lines that report nothing: of the tool itself, and its sums.
_QUIET = re.compile(
    r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application returned an error"
    r"|No CUDA-capable|No kernels were executed|Process didn't terminate successfully"
)


@dataclass(frozen=True, slots=True)
class Report:
    """`kind` is its first line without addresses; `line` that of the candidate's source, or 0."""

    candidate: int | None
    kind: str
    line: int
    hazards: int
    text: str


@dataclass(slots=True)
class Log:
    """What became of the candidates of one process. `ended` maps a candidate to "right", "wrong:
    why" or "fails: why"; one that began and is not there took the process with it.
    """

    begun: list[int] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # lines of neither, such as a traceback


def mark(number: int, state: str, text: str = "") -> str:
    """The line that tells `read` what a candidate does; one line, whatever the text."""
    short = " ".join(text.split())[:400]
    return f"@@ {number} {state}" + (f": {short}" if short else "")


def mark_of(line: str) -> tuple[int, str] | None:
    """The candidate and what it does, if the line is a mark."""
    found = _MARK.search(line)
    if found is None:
        return None
    number, state, text = found.groups()
    return int(number), f"{state}: {text}" if text else state


def read(lines: Iterable[str]) -> Log:
    log = Log()
    for current, block in _blocks(lines, log):
        report = _report(current, block)
        if report is not None:
            log.reports.append(report)
    return log


def _blocks(lines: Iterable[str], log: Log) -> Iterator[tuple[int | None, list[str]]]:
    """The lines of each report, with the candidate that ran when it was printed."""
    block: list[str] = []
    current: int | None = None
    for raw in lines:
        line = raw.rstrip("\n")
        if (found := mark_of(line)) is not None:
            number, state = found
            if state == "begin":
                # What was printed before belongs to the candidate before.
                if block:
                    yield current, block
                    block = []
                current = number
                log.begun.append(number)
            else:
                log.ended[number] = state
            continue
        ours = _OURS.search(line)
        if ours is None:
            if line.strip() and not line.startswith(WORKER):
                log.others.append(line)
            continue
        text = ours["text"] or ""
        if not text.strip():  # a line between reports
            if block:
                yield current, block
            block = []
        elif ours["indent"]:
            block.append(text)
        else:
            if block:
                yield current, block
            block = [text]
    if block:
        yield current, block


def _report(current: int | None, block: list[str]) -> Report | None:
    if _QUIET.search(block[0]):
        return None
    text = "\n".join(block)
    named = _TAG.search(text)
    where = _LINE.search(text)
    hazards = _HAZARDS.search(text)
    return Report(
        int(named.group(1)) if named else current,
        _kind(block[0]),
        int(where.group(2)) if where else 0,
        int(hazards.group(1)) if hazards else 1,
        text,
    )


def _kind(first: str) -> str:
    """The first line without what differs between places: addresses and names of kernels."""
    plain = re.sub(r" (at|in) \S*c\d{5}.*", "", first)
    return re.sub(r"0x[0-9a-f]+", "0x...", plain).strip()
