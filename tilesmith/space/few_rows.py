"""The rule for GPUs that computes a product, reductions of its rows and a second product in one
launch where there are few rows, as attention does when it decodes: each key is read once, for all
rows that share it, and neither product has rows enough for matrix instructions.

    for head:                               # blocks, of all rows that share keys
      scores of all keys                    # threads of a row of keys sum, and join by shuffles
      maxima, weights and sums of the rows  # across all threads
      weights times values                  # each thread a few columns, and some of the keys

A warp is cut otherwise for scores and for values. Few threads along a key join few times; as many
as a row of values has vectors leave each thread few columns to join.

Scores lie in shared memory. Where rows are too few to fill the GPU, blocks take parts of the keys,
and a second launch joins them (schedule/roll_parts.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import Function, find_block, readers
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.notes import ReduceAcross
from tilesmith.schedule.cache import CacheWrite, SetScope
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import part_names
from tilesmith.schedule.kinds import Annotate, Bind, Unroll
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.roll_legality import Chain
from tilesmith.schedule.roll_parts import RollParts
from tilesmith.schedule.sample import Require, SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.rolled_chains import is_long
from tilesmith.space.rules_gpu import one_loop

_X, _Y = "threadIdx.x", "threadIdx.y"  # of a warp, warps
_LANES = 32
_VECTOR = 16  # bytes that a thread moves at once
_ROOM = 0.75  # of shared memory, for scores and weights
_OPEN = 1 << 20  # stands for an extent that is sampled
_MOST_BLOCKS = 32  # per multiprocessor, beyond which keys are not split further


@dataclass(frozen=True)
class _Chain:
    """The sum that `result` stores, the product of its scores, and what lies between: `early` is
    made of scores element by element, `late` begins with the first reduction of rows.
    """

    result: str
    last: str
    scores: str
    early: tuple[str, ...]
    late: tuple[str, ...]
    keys: dict[str, str]  # the iterator of each block over the keys
    axes: dict[str, str]  # of the first of `late`, the iterators of `last`
    column: str  # of `last`: values are contiguous along it
    depth: str  # of `scores`: queries and keys are contiguous along it
    rows: tuple[str, ...]  # of `last`: what reads the same values
    divided: tuple[str, int] | None  # an iterator of which so many neighbours read the same values
    count: int  # of rows that read the same values
    blocks: int  # of those
    width: int  # elements of a vector


@dataclass(frozen=True)
class FuseFewRows:
    """Sketches for each number of threads that share a row of keys, and of warps; each with whole
    rows of scores in a block, or with parts of them.
    """

    most: int = 16  # rows
    certain: int = 8  # up to which no other form is worth a try
    across: tuple[int, ...] = (4, 8, 16)  # threads
    warps: tuple[int, ...] = (4, 8, 16)
    at_once: tuple[int, ...] = (1, 2, 4, 8, 16)  # keys whose loads are written out together
    parts: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)  # keys of a block
    threads: tuple[int, ...] = (32, 64, 128, 256)  # that join parts
    many: int = 8  # blocks per multiprocessor, from which on keys are not split

    def __call__(self, state: State) -> Derived | None:
        func, block = state.func, state.block
        if not analysis.is_output(func, block) or state.levels_of(block.name):
            return None
        try:
            state, chain = _found(state)
        except ScheduleError:
            return None
        if chain.count > self.most:
            return None
        done = tuple(self._sketches(state, chain))
        return Derived(done, final=chain.count <= self.certain) if done else None

    def is_best(self, state: State) -> bool:
        """Whether it has a sketch, and no other rule is asked."""
        try:
            state, chain = _found(state)
        except ScheduleError:
            return False
        return chain.count <= self.certain and next(self._sketches(state, chain), None) is not None

    def _sketches(self, state: State, chain: _Chain) -> Iterator[State]:
        func, target = state.func, state.task.target
        last, scores = (analysis.block(func, n) for n in (chain.last, chain.scores))
        keys = _extent(last, chain.keys[chain.last])
        longest = min(_extent(last, chain.column), _extent(scores, chain.depth)) // chain.width
        across = [x for x in self.across if x <= longest] or [min(self.across)]
        vectors = _extent(last, chain.column) // chain.width
        along = max(n for n in (1, 2, 4, 8, 16, 32) if n <= vectors)
        room = int(_ROOM * target.shared_nbytes) // (8 * chain.count)
        units = max(1, target.num_multiprocessors)
        forms: list[tuple[int, ...]] = [()] if keys <= room else []
        if chain.blocks < self.many * units or not forms:
            # As many blocks as fill the GPU, and not many times more.
            blocks = {
                n: chain.blocks * -(-keys // n) for n in self.parts if n < min(keys, room + 1)
            }
            full = [n for n, k in blocks.items() if k >= units] or [*blocks][:1]
            few = [n for n in full if blocks[n] <= _MOST_BLOCKS * units] or full[-1:]
            forms = [tuple(few), *forms] if few else forms
        for warps in self.warps:
            for x in across:
                for sizes in forms:
                    if warps * _LANES > target.max_threads:
                        continue
                    threads = _Threads(x, along, warps, chain.width)
                    try:
                        yield self._fused(state, chain, threads, sizes)
                    except ScheduleError:
                        continue

    def _fused(
        self, state: State, chain: _Chain, threads: _Threads, sizes: tuple[int, ...]
    ) -> State:
        last, key, more = chain.last, chain.keys[chain.last], list[str]()
        late = {n: chain.keys[n] for n in chain.late}
        user = chain.result
        if sizes:
            column, cut = f"#{last}.part", Split(f"{last}.{key}", (None, f"#{last}.part"))
            state = state.then(SampleChoice(column, sizes), cut, RollParts(last, cut.parts[0]))
            more, key = [part_names(late[chain.late[0]])[0]], part_names(key)[1]
            late = {f"{n}.part": part_names(k)[1] for n, k in late.items()}
            user = last = f"{last}.part"
        keys = _extent(analysis.block(state.func, last), key)
        at_once = []
        for block, number in ((chain.scores, threads.keys), (last, threads.values_at_once)):
            at_once.append(f"#{block}.at_once")
            choices = tuple(n for n in self.at_once if n * number <= keys)
            state = state.then(SampleChoice(at_once[-1], choices or (1,)))
            if sizes:
                state = state.then(Require(f"{column} - {number} * {at_once[-1]}"))
        # The sum of each warp, and then that of all warps.
        cut = Split(f"{last}.{key}", (None, at_once[1], threads.warps, _LANES // threads.along))
        state = state.then(cut, Rfactor(cut.parts[2]))
        total, sums, copies = last, f"{last}.rf", list[str]()
        if sizes:
            made = {b.name for _, b in walk(state.func.body)}
            copies = [f"{n}.parts" for n in chain.late if f"{n}.parts" in made]
            state = state.then(kept := CacheWrite(last))
            total = kept.copy
        first, *others = late
        state, blocks = _outer_loops(state, first, chain, more)
        home = blocks[-1]
        after = (*copies, *others, sums, total, user)
        state = state.then(*(ReverseComputeAt(n, home) for n in after))
        before = (chain.scores, *chain.early)
        state = state.then(*(ComputeAt(n, home) for n in reversed(before)))
        for n in (*before, *others, sums):
            if analysis.block(state.func, n).combiner is None or n in (chain.scores, sums):
                state = state.then(SetScope(_written(state, n), "shared"))
        state = threads.values(state, sums, key, chain.column)
        state = threads.scores(
            state, chain.scores, chain.keys[chain.scores], chain.depth, at_once[0]
        )
        for n, k in {**{n: chain.keys[n] for n in chain.early}, **late}.items():
            state = threads.rows(state, n, k)
        state = threads.rows(state, user, _read_along(state, user, total, chain.column), total)
        if sizes:
            state = self._joined(state, chain)
        state = state.then(*(Bind(n, "blockIdx.x") for n in blocks))
        return state.then(done={b.name for _, b in walk(state.func.body)} & {
            *before, *after, *late, chain.result, chain.last, *chain.late
        })  # fmt: skip

    def _joined(self, state: State, chain: _Chain) -> State:
        """The launch that joins parts: each thread those of one element."""
        loops = [f.name for f in find_block(state.func, chain.result)[0]]
        fused, loop = one_loop(loops)
        cut = Split(loop, (None, column := f"#{chain.result}.threads"))
        counts = tuple(n for n in self.threads if n <= state.task.target.max_threads)
        state = state.then(*fused, SampleChoice(column, counts), cut)
        block, thread = cut.parts
        made = {b.name for _, b in walk(state.func.body)}
        fixes = [f"{n}.fix" for n in chain.late if f"{n}.fix" in made]
        state = state.then(*(Inline(n) for n in fixes))
        for n in (chain.last, *(n for n in reversed(chain.late) if n in made)):
            state = state.then(ComputeAt(n, thread), SetScope(_written(state, n), "local"))
        return state.then(Bind(block, "blockIdx.x"), Bind(thread, _X))


@dataclass(frozen=True)
class _Threads:
    """How the threads of a block are spread: of a warp, `across` along a row of keys and `along` a
    row of values, which each moves in vectors of `width`; `warps` of them take other keys.
    """

    across: int
    along: int
    warps: int
    width: int

    @property
    def keys(self) -> int:
        """Whose scores the threads compute at the same time."""
        return self.warps * (_LANES // self.across)

    @property
    def values_at_once(self) -> int:
        """Rows of values that the threads read at the same time."""
        return self.warps * (_LANES // self.along)

    def values(self, state: State, name: str, key: str, column: str) -> State:
        """Each thread has some columns, and sums some of the keys."""
        first, once, warp, lane = (f"{name}.{key}.{k}" for k in range(4))
        cut = Split(f"{name}.{column}", (None, self.along, self.width))
        rest = _others(state, name, (first, once, warp, lane, cut.loop))
        outer, across, inner = cut.parts
        return state.then(
            cut, Reorder((warp, across, lane, first, once, outer, *rest, inner)),
            Bind(warp, _Y), Bind(across, _X), Annotate(lane, ReduceAcross(_X)),
            *map(Unroll, (once, outer, *rest, inner)),
        )  # fmt: skip

    def scores(self, state: State, name: str, key: str, depth: str, at_once: str) -> State:
        """The threads of a row of keys sum its products with each row of queries."""
        by_key = Split(f"{name}.{key}", (None, at_once, self.warps, _LANES // self.across))
        cut = Split(f"{name}.{depth}", (None, self.across, self.width))
        rest = _others(state, name, (by_key.loop, cut.loop))
        first, once, warp, lane = by_key.parts
        outer, across, inner = cut.parts
        return state.then(
            by_key, cut, Reorder((first, warp, lane, across, outer, once, *rest, inner)),
            Bind(warp, _Y), Bind(lane, _X), Annotate(across, ReduceAcross(_X)),
            *map(Unroll, (outer, once, *rest, inner)),
        )  # fmt: skip

    def rows(self, state: State, name: str, axis: str, term: str = "") -> State:
        """A reduction of rows along an axis, or what is done with each element: by all threads, or
        each row by some warps, where there are several. A `term` is computed for each element.
        """
        b, along = analysis.block(state.func, name), f"{name}.{axis}"
        rest = _others(state, name, (along,))
        loops = {f.name: f for f in find_block(state.func, name)[0]}
        steps, mine, rows = list[Step](), list[str](), 1
        wide = max(rest, key=lambda n: analysis.length(loops[n]), default="")
        if wide and (rows := gcd(max(1, analysis.length(loops[wide])), self.warps)) > 1:
            by_row = Split(wide, (None, rows), exact=True)
            rest = [by_row.parts[0] if n == wide else n for n in rest]
            mine, steps = [by_row.parts[1]], [by_row]
        cut = Split(along, (None, self.warps // rows, _LANES))
        first, *across = cut.parts
        state = state.then(*steps, cut, Reorder((*mine, *across, first, *rest)))
        if term:
            at = rest[-1] if rest else first
            state = state.then(ComputeAt(term, at), SetScope(_written(state, term), "local"))
        state = state.then(*(Bind(n, _Y) for n in mine))
        for loop, on in zip(across, (_Y, _X), strict=True):
            spread = Bind(loop, on) if b.combiner is None else Annotate(loop, ReduceAcross(on))
            state = state.then(spread)
        return state if term else state.then(*map(Unroll, rest))


def _others(state: State, name: str, without: Sequence[str]) -> list[str]:
    """The loops around a block alone, but for some."""
    path, _ = find_block(state.func, name)
    return [f.name for f in path if len([*walk(f.body)]) == 1 and f.name not in without]


def _written(state: State, name: str) -> str:
    return analysis.block(state.func, name).writes[0].buffer


def _extent(b: Block, axis: str) -> int:
    """The extent of an iterator; a large number where it is open."""
    return next(i.extent.const or _OPEN for i in b.iters if i.name == axis)


def _outer_loops(
    state: State, name: str, chain: _Chain, more: Sequence[str]
) -> tuple[State, list[str]]:
    """The state with the loops of a reduction outermost that number blocks, and these loops."""
    b = analysis.block(state.func, name)
    blocks, inside, ones = list[str](), list[str](), list[str]()
    for i in b.spatial:
        loop, axis = f"{name}.{i.name}", chain.axes.get(i.name)
        if chain.divided is not None and axis == chain.divided[0]:
            cut = Split(loop, (None, chain.divided[1]), exact=True)
            state = state.then(cut)
            blocks.append(cut.parts[0])
            inside.append(cut.parts[1])
        elif axis in chain.rows:
            inside.append(loop)
        elif i.name not in more:  # one element may not be indexed by others
            (ones if i.extent.const == 1 else blocks).append(loop)
    blocks += [f"{name}.{n}" for n in more]
    if blocks:
        inside = [*ones, *inside]
    else:
        blocks = ones
    summed = [f.name for f in find_block(state.func, name)[0] if f.name in b.reducing_loops]
    return state.then(Reorder((*blocks, *inside, *summed))), blocks


def _read_along(state: State, user: str, made: str, axis: str) -> str:
    """The iterator along which a block reads an axis of another one."""
    (w,) = analysis.block(state.func, made).writes
    (d,) = (d for d, p in enumerate(w.index) if p.name == axis)
    names = {
        x.index[d].name for x in analysis.block(state.func, user).loads if x.buffer == w.buffer
    }
    name = names.pop()
    if names or name is None:
        raise ScheduleError(f"{user} does not read {made} element for element")
    return name


def _found(state: State) -> tuple[State, _Chain]:
    """The state with what lies between inlined, and what there is; a ScheduleError says why there
    is no such chain.
    """
    if state.block.combiner is not None:
        state = state.then(CacheWrite(state.block.name))
    func, result = state.func, state.block
    last = next((p for p in analysis.producers(func, result) if p.combiner is not None), None)
    after = None if last is None else analysis.fusible_consumer(func, last, permuted=True)
    if last is None or after is None or after.name != result.name or result.combiner is not None:
        raise ScheduleError("the block stores no sum")
    if any(i.extent.const is None for _, b in walk(func.body) for i in b.iters):
        raise ScheduleError("sizes are open")
    if len(last.reducing) != 1:
        raise ScheduleError("it sums over several axes")
    for b in reversed(Chain.of(func, last, ScheduleError).blocks):
        if b.combiner is None and len(analysis.consumers(state.func, b)) == 1:
            state = state.attempt(Inline(b.name)) or state
    for b in reversed(_before(state.func, last.name)):
        if b.combiner is None and not is_long(b):
            state = state.attempt(Inline(b.name)) or state
    func, last = state.func, analysis.block(state.func, last.name)
    late = Chain.of(func, last, ScheduleError)
    links = {b.name for b in late.blocks}
    before = [b for b in _before(func, last.name) if b.name not in links]
    scores = [b for b in before if b.combiner is not None]
    if len(scores) != 1 or len(scores[0].reducing) != 1 or not _is_sum(scores[0]):
        raise ScheduleError("scores are not one sum over one axis")
    early = [b for b in before if b.combiner is None]
    keys = _keys(func, late, [scores[0], *early])
    made = {w.buffer for b in (*late.blocks, *before) for w in b.writes}
    values = {x.buffer: x for x in last.loads if x.buffer not in made}
    if len(values) != 1:
        raise ScheduleError("weights are not multiplied by one array of values")
    (value,) = values.values()
    of_value = {n for p in value.index for n in p.names}
    of_weights = {n for x in last.loads if x.buffer in made for p in x.index for n in p.names}
    columns = [i.name for i in last.spatial if i.name in of_value - of_weights]
    rows = [i for i in last.spatial if i.name in of_weights - of_value and i.extent.const != 1]
    (depth,) = (i.name for i in scores[0].reducing)
    reads = [value, *scores[0].loads]
    ends = [columns, *([depth] for _ in scores[0].loads)]
    for x, axes in zip(reads, ends, strict=True):
        if [x.index[-1].name] != axes or func.all_buffers[x.buffer].layout is not None:
            raise ScheduleError(f"{x.buffer} is not contiguous")
    divided = analysis.division(last)
    shared = divided[1] if divided else 1
    count = prod(i.extent.number for i in rows) * shared
    apart = prod(i.extent.number for i in last.spatial if i.name not in columns) // count
    nbytes = max(func.all_buffers[x.buffer].dtype.nbytes for x in reads)
    lengths = (_extent(last, columns[0]), _extent(scores[0], depth))
    width = gcd(_VECTOR // nbytes, *lengths)
    return state, _Chain(
        result.name, last.name, scores[0].name, tuple(b.name for b in early),
        tuple(b.name for b in late.blocks), keys, late.axes[late.blocks[0].name], columns[0], depth,
        tuple(i.name for i in rows), divided, count, apart, width,
    )  # fmt: skip


def _is_sum(b: Block) -> bool:
    return b.combiner is not None and b.combiner.op == "add"


def _before(func: Function, last: str) -> list[Block]:
    """What a sum is made of, back to the first products, in order."""
    found, stack = set[str](), [last]
    while stack:
        b = analysis.block(func, stack.pop())
        for p in analysis.producers(func, b):
            if p.name not in found:
                found.add(p.name)
                if p.combiner is None or len(p.reducing) != 1 or not _has_operands(func, p):
                    stack.append(p.name)
    return [b for _, b in walk(func.body) if b.name in found]


def _has_operands(func: Function, b: Block) -> bool:
    """Whether it sums products of several arrays."""
    return len({x.buffer for x in b.loads}) > 1 and all(
        p.combiner is None for p in analysis.producers(func, b)
    )


def _keys(func: Function, late: Chain, early: Sequence[Block]) -> dict[str, str]:
    """The iterator of each block over the keys, readers before what they read."""
    found = {n: own for n, axes in late.axes.items() for own, a in axes.items() if a == late.key}
    for b in reversed(early):
        (w,) = b.writes
        names = set[str]()
        for r in readers(func, w.buffer):
            for x in (x for x in r.loads if x.buffer == w.buffer):
                at = [p.name for p, q in zip(w.index, x.index, strict=True)
                      if q.name == found.get(r.name)]  # fmt: skip
                names |= {n or "" for n in at} if len(at) == 1 else {""}
        if len(names) != 1 or "" in names:
            raise ScheduleError(f"{b.name} has no axis of keys")
        (found[b.name],) = names
    return found
