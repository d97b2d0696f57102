"""Data dependences between blocks: what may be moved, reordered or run at the same time.

The checks use names and structure. Where two boxes are compared, the proof holds for all sizes. So
what is legal for a sketch with open sizes is legal for each of its candidates.
"""

from __future__ import annotations

from itertools import pairwise

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import Rules, proves
from tilesmith.expr.ints import Int, loops_of
from tilesmith.expr.nodes import ints_of
from tilesmith.ir.function import (
    Function,
    all_loops,
    find_block,
    is_own_loop,
    program_order,
    writers,
    written,
)
from tilesmith.ir.nodes import Block, For, Path, Stmt, walk
from tilesmith.ir.notes import ParallelDepth
from tilesmith.ir.regions import THREAD_LOOPS, Box, box_of, inner_ranges, separate, written_box


def check_sums(path: Path, b: Block, why: str) -> None:
    """A loop in which a reduction is computed anew must lie outside of the loops that it reduces
    over. Otherwise an iteration would continue from the result of the previous one.
    """
    if b.combiner is None:
        return
    reducing = b.reducing_loops
    started: str | None = None
    for f in path:
        if f.name in reducing:
            started = started or f.name
        elif started is not None and not is_own_loop(b, f):
            raise ScheduleError(
                f"cannot {why}: {b.name} is computed anew in each iteration of {f.name}, "
                f"so it cannot lie inside {started}, which {b.name} reduces over"
            )


def check_reads(func: Function, name: str, why: str) -> None:
    """Everything a block reads must have been computed before, and in the same iteration of the
    loops that the block shares with its producer.
    """
    path, b = find_block(func, name)
    order = program_order(func)
    buffers = func.all_buffers
    rules = func.rules
    for load in b.loads:
        for w in writers(func, load.buffer):
            if order[w.name] > order[name]:
                raise ScheduleError(
                    f"cannot {why}: {name} reads {load.buffer}, which {w.name} computes later; "
                    f"move {w.name} first"
                )
            w_path, _ = find_block(func, w.name)
            shared = _shared(path, w_path)
            if not shared:
                continue
            require_finished(w, shared, f"{why}: {name} reads {load.buffer}")
            outer = {f.name for f in shared}
            if not any(i.bind.names & outer for i in w.spatial):
                continue  # each iteration computes all of it
            produced = written_box(w, w_path, load.buffer, shared[-1].name, rules)
            inner = inner_ranges(path, b, shared[-1].name)
            at = [p.substitute(b.binding) for p in load.index]
            read = box_of(at, buffers[load.buffer].shape, inner, rules)
            ranges = {f.name: f.extent for f in shared}
            if produced is None or not _within(read, produced, ranges, rules):
                raise ScheduleError(
                    f"cannot {why}: one iteration of {shared[-1].name} makes only a part of "
                    f"{load.buffer} in {w.name}, and {name} may read more than that"
                )


def _shared(a: Path, b: Path) -> Path:
    out = []
    for f, g in zip(a, b, strict=False):
        if f.name != g.name:
            break
        out.append(f)
    return tuple(out)


def _within(read: Box, written: Box, ranges: dict[str, Int], rules: Rules) -> bool:
    """Whether `read` lies in `written` in all iterations. A dimension of `written` that does not
    depend on the loops is complete.
    """
    for (lo, hi), (first, last) in zip(read, written, strict=True):
        if not (first.names | last.names) & ranges.keys():
            continue
        if not (proves(lo - first, ranges, rules) and proves(last - hi, ranges, rules)):
            return False
    return True


def require_finished(producer: Block, path: Path, why: str) -> None:
    """Raises unless the producer's reduction is complete while all loops of `path` are fixed."""
    open_loops = producer.reducing_loops & {f.name for f in path}
    if open_loops:
        raise ScheduleError(
            f"cannot {why}: {producer.name} is not finished inside loop {sorted(open_loops)[0]}, "
            "which it reduces over; choose a loop further out"
        )


# kinds of loops
ONE_BY_ONE = ("serial", "unroll")  # kinds whose iterations never run at the same time


def running_kind(loop: For) -> str:
    """The kind in which a code generator runs a loop: its own, or what its note makes of it. A loop
    whose note is still open may become parallel.
    """
    if loop.kind == "serial" and loop.notes:
        note = loop.note(ParallelDepth)
        if note is not None and note.may_run_parallel:
            return "parallel"
    return loop.kind


def check_kinds(
    func: Function, why: str, only: str | None = None, within: str | None = None
) -> None:
    """Every parallel, vectorized or bound loop of the Function must still be legal. If nothing but
    the kind of a loop has changed, it is enough to look at it and the loops `within` it, and at it
    `only` if none of those depends on its kind.
    """
    users: dict[str, set[str]] = {}  # found when a loop needs them: most have nothing to check

    def go(body: tuple[Stmt, ...], path: Path, concerned: bool) -> None:
        for s in body:
            if isinstance(s, For):
                here = concerned or s.name in (only, within)
                if here and running_kind(s) not in ONE_BY_ONE:
                    if not users:
                        users.update(users_of(func))
                    _check_kind(func, path, s, why, users)
                go(s.body, (*path, s), here and s.name != only)

    go(func.body, (), only is None and within is None)


def users_of(func: Function) -> dict[str, set[str]]:
    """The names of the blocks that write or read each buffer."""
    users: dict[str, set[str]] = {}
    for _, b in walk(func.body):
        for w in b.writes:
            users.setdefault(w.buffer, set()).add(b.name)
        for load in b.loads:
            users.setdefault(load.buffer, set()).add(b.name)
    return users


def _check_kind(
    func: Function, path: Path, loop: For, why: str, users: dict[str, set[str]]
) -> None:
    check_not_in_lanes(path, loop, why)
    if loop.kind == "vectorize":
        for _, b in walk(loop.body):
            if b.tile:
                raise ScheduleError(
                    f"cannot {why}: {b.name}, inside the vectorized loop {loop.name}, is a unit"
                )
        if is_vector_sum(loop, why):
            return
    if loop.kind == "parallel" and any(f.kind == "parallel" for f in path):
        first = next(k for k, f in enumerate(path) if f.kind == "parallel")
        chain = [*path[first:], loop]
        for f, child in pairwise(chain):
            if f.kind != "parallel" or f.body != (child,):
                raise ScheduleError(
                    f"cannot {why}: the parallel loop {loop.name} would lie inside the parallel "
                    f"loop {path[first].name}, but not directly; only direct nests run as one"
                )
    check_concurrent(func, loop, why, users)


def check_not_in_lanes(path: Path, loop: For, why: str) -> None:
    """A loop whose iterations run at the same time must not lie inside a vectorized one."""
    for f in path:
        if f.kind == "vectorize":
            raise ScheduleError(
                f"cannot {why}: the {running_kind(loop)} loop {loop.name} would lie inside "
                f"the vectorized loop {f.name}"
            )


def is_vector_sum(loop: For, why: str) -> bool:
    """Whether the loop is a horizontal reduction. That requires a plain reduction as the only
    block inside.
    """
    blocks = [b for _, b in walk(loop.body)]
    reducers = [b for b in blocks if loop.name in b.reducing_loops]
    for b in reducers:
        if b.scatters:
            raise ScheduleError(
                f"cannot {why}: two iterations of {loop.name} may update the same element in "
                f"{b.name}, as a tensor says which"
            )
        if b.combiner is None or b.combiner.op is None:
            raise ScheduleError(
                f"cannot {why}: {b.name} reduces over {loop.name} by a combiner of its own; "
                "use rfactor first"
            )
        if len(blocks) > 1:
            raise ScheduleError(
                f"cannot {why}: {b.name} reduces over {loop.name} and is not alone inside it"
            )
    return bool(reducers)


def check_concurrent(
    func: Function, loop: For, why: str, users: dict[str, set[str]] | None = None
) -> None:
    """Iterations of `loop` must not accumulate into or overwrite what another one writes. `users`
    are the blocks that use each buffer, if the caller has them already.
    """
    users = users_of(func) if users is None else users
    inside = {b.name for _, b in walk(loop.body)}
    outputs = {p.name for p in func.outputs}
    for path, b in walk((loop,)):
        if loop.name in b.reducing_loops:
            if loop.kind.startswith(("blockIdx", "threadIdx")) and has_atomic_updates(b):
                continue
            raise ScheduleError(
                f"cannot {why}: {b.name} reduces over {loop.name}; "
                "use rfactor to split the reduction first"
            )
        for name in written(b):
            if name not in outputs and users[name] <= inside:
                if loop.kind not in THREAD_LOOPS.get(func.all_buffers[name].scope, ()):
                    continue  # each iteration has a buffer of its own
                if all(o.combiner is None for o in writers(func, name)):
                    continue  # threads that store the same element store the same value
                if not is_disjoint(b, path, func):
                    raise ScheduleError(
                        f"cannot {why}: {name} is shared, and every thread of {loop.name} would "
                        f"add to the same elements of it in {b.name}; let it be local to a thread, "
                        f"or bind a loop of {b.name} itself"
                    )
                continue
            if not any(loop.name in i.bind.names for i in b.spatial):
                raise ScheduleError(
                    f"cannot {why}: every iteration of {loop.name} writes the same elements "
                    f"of {name} in {b.name}"
                )
            if not is_disjoint(b, path, func):
                raise ScheduleError(
                    f"cannot {why}: two iterations of {loop.name} may write the same elements "
                    f"of {name} in {b.name}"
                )


def has_atomic_updates(b: Block) -> bool:
    """Whether threads of a GPU may update elements at loaded places in any order: by an operation
    that is atomic, or because all updates of one element write the same.
    """
    if not b.scatters or b.combiner is None:
        return False
    value = b.writes[0].value
    if b.combiner.op is not None:
        return value.dtype.bits >= 32
    reducing = {i.name for i in b.reducing}
    return not any(p.names & reducing for p in ints_of(value))


# Kinds of loops whose iterations each have a buffer of their own, by scope of the buffer.
_PRIVATE = {"local": ("blockIdx", "threadIdx"), "shared": ("blockIdx",), "fragment": ("blockIdx",)}


def check_scopes(func: Function, why: str) -> None:
    """A buffer that is private to a thread or to a GPU block may be used inside of its loops only.

    A copy stands outside until compute_at moves it. So this is checked when a loop is bound, when
    a scope changes, and finally by the code generators for GPUs.
    """
    limited = [x for x in func.buffers if x.scope in _PRIVATE]
    if not limited:
        return
    blocks = [b for _, b in walk(func.body)]
    touched = {b.name: {*written(b), *(x.buffer for x in b.loads)} for b in blocks}
    bound = [f for f in all_loops(func.body) if f.kind != "serial"]
    inside = {f.name: {b.name for _, b in walk(f.body)} for f in bound}
    for buffer in limited:
        users = {n for n, names in touched.items() if buffer.name in names}
        for loop in bound:
            if loop.kind.split(".")[0] not in _PRIVATE[buffer.scope]:
                continue
            here = inside[loop.name]
            if users & here and not users <= here:
                outside = min(users - here)
                raise ScheduleError(
                    f"cannot {why}: {buffer.name} is {buffer.scope}, so that each iteration of "
                    f"{loop.name} ({loop.kind}) has its own, but {outside} uses it outside of that "
                    f"loop; move {outside} inside first, or let {buffer.name} be global"
                )


def is_disjoint(b: Block, path: Path, func: Function) -> bool:
    """Whether different iterations of the outermost loop of `path` write different elements."""
    loop = path[0].name
    if are_own_points(b, path):
        return True
    ranges = {f.name: f.extent for f in path} | dict(b.tile)
    return any(
        loop in i.bind.names and separate(i.bind, loop, ranges, func.rules) for i in b.spatial
    )


def are_own_points(b: Block, path: Path) -> bool:
    """Whether different iterations of the outermost loop of `path` are different points of the
    block, because the loops that move it were created for it.
    """
    loop = path[0].name
    moving = {n for i in b.spatial for n in loops_of(i.bind)}
    return all(is_own_loop(b, f) for f in path if f.name in moving or f.name == loop)
