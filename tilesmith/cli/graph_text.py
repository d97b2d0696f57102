"""A GraphView as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilesmith.cli.table import microseconds, table
from tilesmith.report.graph_view import GraphView, GroupView, HostView, TaskView
from tilesmith.report.quantities import dims_text, short_number
from tilesmith.task.describe import place_text, places_text, shapes_text

KEY = 12  # characters of a task's key that are shown
_NARROW_KERNEL = 22  # letters of a kernel's name where lines must be short
_LEAST_NODES = 14
INDENT = " " * 6  # of what stands below a task


def graph_lines(view: GraphView, width: int | None) -> Iterator[str]:
    """All there is to say, in lines of `width` letters; None shows names in full."""
    yield from head_lines(view)
    if view.steps:
        yield ""
        yield from _steps(view, width)
    if view.tasks:
        yield ""
        yield from task_lines(view, width, keys=False)
    yield ""
    yield from foot_lines(view)


def head_lines(view: GraphView) -> Iterator[str]:
    yield f"model {view.name}"
    yield from (f"  input  {s}" for s in view.inputs)
    yield from (f"  output {o.text}" for o in view.outputs)


def foot_lines(view: GraphView) -> Iterator[str]:
    if view.groups or view.host:
        yield (
            f"{len(view.groups)} groups, {len(view.tasks)} tasks, "
            f"{short_number(view.flops)}FLOP, {short_number(view.nbytes)}B read and written"
        )
        yield (
            f"arena: {view.arena_nbytes:,} bytes; at least {view.arena_lower_bound:,} are alive at "
            "once"
        )
        if not view.host:
            yield "on the host: nothing" + (", as far as is known" if view.unknown else "")
    for h in view.host:
        bodies = f" ({h.num_bodies} compiled bodies)" if h.num_bodies else ""
        yield f"on the host: {h.op} {h.name!r}{bodies}: {h.reason}"
    if view.unknown:
        yield view.unknown


def _steps(view: GraphView, width: int | None) -> Iterator[str]:
    header = ("#", "kernel", "output", "FLOP", "bytes", "task")
    narrow = width is not None
    rows = [
        (str(b.number), "on the host", "", "", "", "") if isinstance(b, HostView)
        else _group(b, narrow)
        for b in view.steps
    ]  # fmt: skip
    plain = [*table(header, rows, left=("kernel", "output"))]
    longest = max(map(len, plain))
    room = None if width is None else max(_LEAST_NODES, width - longest - 2)
    yield f"{plain[0].ljust(longest)}  nodes"
    for line, b in zip(plain[1:], view.steps, strict=True):
        nodes = (f"{b.op} {b.name!r}",) if isinstance(b, HostView) else b.nodes
        yield f"{line.ljust(longest)}  {_tail(place_text(nodes), room)}"


def _group(g: GroupView, narrow: bool) -> tuple[str, ...]:
    shapes = " ".join(dims_text(v.shape) for v in g.outputs)
    flops, nbytes = short_number(g.flops).rstrip(), short_number(g.nbytes).rstrip()
    return str(g.number), _kernel(g.kernel, narrow), shapes, flops, nbytes, str(g.task)


def _kernel(name: str, narrow: bool) -> str:
    return f"{name[: _NARROW_KERNEL - 3]}..." if narrow and len(name) > _NARROW_KERNEL else name


def _tail(text: str, room: int | None) -> str:
    """The end of a name says more than its beginning."""
    return text if room is None or len(text) <= room else "..." + text[len(text) - room + 3 :]


def task_lines(
    view: GraphView, width: int | None, *, keys: bool, seconds: Mapping[int, float] | None = None
) -> Iterator[str]:
    """The tasks by their share of the FLOP, the largest first; with recorded `seconds` by task, by
    their share of the sum of these. `keys` are for commands that take one. Below each stand its
    shapes and where it comes from.
    """
    header = ("task", *(("key",) if keys else ()), "kernel", "times", "FLOP", "bytes")
    narrow = width is not None
    rows: list[tuple[str, ...]]
    if seconds is None:
        header = (*header, "share")
        ranked = sorted(view.tasks, key=lambda t: (-t.share, t.number))
        rows = [(*_task(t, keys, narrow), f"{100 * t.share:.1f} %") for t in ranked]
    else:
        header = (*header, "best", "GFLOP/s", "share")
        total = sum(seconds[t.number] * t.weight for t in view.tasks if t.number in seconds)
        ranked = sorted(view.tasks, key=lambda t: -t.weight * seconds.get(t.number, 0.0))
        rows = [
            (*_task(t, keys, narrow), *_recorded(t, seconds.get(t.number), total)) for t in ranked
        ]
    left, drop = ("key", "kernel"), ("bytes",)
    head, *lines = table(header, rows, left=left, shorten="kernel", drop=drop, width=width)
    yield head
    for line, t in zip(lines, ranked, strict=True):
        yield line
        yield f"{INDENT}{shapes_text(t.task.func)}  {places_text(t.places)}".rstrip()


def _task(t: TaskView, keys: bool, narrow: bool) -> tuple[str, ...]:
    key = (t.task.key[:KEY],) if keys else ()
    numbers = (str(t.weight), short_number(t.flops).rstrip(), short_number(t.nbytes).rstrip())
    return str(t.number), *key, _kernel(t.task.func.name, narrow), *numbers


def _recorded(t: TaskView, seconds: float | None, total: float) -> tuple[str, str, str]:
    if seconds is None:
        return "-", "-", "-"
    share = 100 * seconds * t.weight / total if total else 0.0
    return microseconds(seconds), f"{t.flops / seconds / 1e9:.1f}", f"{share:.1f} %"
