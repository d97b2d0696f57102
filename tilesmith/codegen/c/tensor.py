"""Emits launches with matrix instructions that read tiles which the copy engine brings (sm_90a).

Shared memory holds several stages of all tiles. A further group of threads, of which one works, has
the copy engine fill each stage as soon as it is free. The threads of the launch wait until a stage
is full, compute with it, and set it free. Two barriers in shared memory per stage say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import Launch, TensorMap
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.names import Names
from tilesmith.codegen.c.nest import Nest, parameter, unflatten
from tilesmith.codegen.c.position import ROLL, UNROLL, Position
from tilesmith.codegen.c.statements import Statements, extent_of, size_of
from tilesmith.codegen.c.tensor_text import HELPERS, bulk_copy, instruction
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.ints import ONE, ZERO, Int, of
from tilesmith.expr.linear import linear
from tilesmith.expr.nodes import Load
from tilesmith.ir.nodes import Buffer, For, If, Stmt, Store, Sync, statements
from tilesmith.ir.tensor_cores import BULK_COPY, RUN, WARPGROUP

_TILE_ALIGNMENT = 1024  # bytes, of swizzled tiles
_MOST_BOX, _MOST_RANK = 256, 5  # of the copy engine
# Registers of a thread that copies and of one that computes, by the number of groups that compute.
# All together they are at most those of a multiprocessor.
_REGISTERS = {2: (40, 232), 3: (32, 160)}


@dataclass(frozen=True, slots=True)
class _Copy:
    """A box of a tensor and where it goes. Boxes wider than a run are copied in `chunks`."""

    tensor: TensorMap
    start: tuple[Int, ...]  # the first element, fastest dimension first
    to: str
    chunks: int
    chunk_nbytes: int  # from one to the next in shared memory

    @property
    def nbytes(self) -> int:
        return 2 * prod(self.tensor.box) * self.chunks


@dataclass(frozen=True, slots=True)
class _Plan:
    loop: For  # over stages
    used: tuple[Stmt, ...]  # what is done with a stage
    copies: tuple[_Copy, ...]
    offsets: dict[str, int]  # of the tiles in a stage
    stage_nbytes: int
    stages: int
    in_flight: int  # stages whose instructions may run at the same time
    resident: int  # blocks that are launched at most, each for several tiles; 0: one for each


def is_tensor_nest(nest: Nest) -> bool:
    return any(_is_product(s) for s in statements(nest.body))


def _is_product(s: Stmt) -> bool:
    return isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.fragment is not None


def _is_copy(s: Stmt) -> bool:
    return isinstance(s, Store) and s.intrinsic is BULK_COPY


def _with_loop(nest: Nest) -> Nest:
    """Simplifying drops a loop over one stage; here it is again."""
    inside = [
        k
        for k, s in enumerate(nest.body)
        if any(_is_copy(t) or _is_product(t) for t in statements((s,)))
    ]
    if len(inside) < 2:
        return nest
    first, last = inside[0], inside[-1] + 1
    once = For("stage", ONE, nest.body[first:last])
    return replace(nest, body=(*nest.body[:first], once, *nest.body[last:]))


def emit_tensor_launch(
    nest: Nest, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers
) -> tuple[str, Launch]:
    """The text of one kernel. `buffers` are those in global memory, in calling order."""
    nest = _with_loop(nest)
    plan = _plan(nest, buffers, dialect)
    helpers.texts.setdefault("tensor", HELPERS)
    position = Position(dialect, helpers, Names(), nest.num_threads)
    maps = tuple(c.tensor for c in plan.copies)
    rest = [s for s in nest.body if s is not plan.loop]
    uses = list(accesses((*rest, *plan.used)))
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    for b in (*arguments, *nest.shared):
        position.declare(b, position.fresh(b.name))
    writer = _Writer(position, nest, plan)
    writer.write()
    threads = nest.num_threads + WARPGROUP
    params = [f"const __grid_constant__ TensorMap {name}" for name in writer.maps]
    params += [parameter(position, b, b.name in written) for b in arguments]
    head = f'extern "C" __global__ void __launch_bounds__({threads}, 1) {symbol}'
    lines = (f"  {x}" for x in position.scopes[0].lines)
    text = "\n".join([f"{head}({', '.join(params)}) {{", *lines, "}"])
    grid = min(nest.grid, plan.resident or nest.grid)
    nbytes = _TILE_ALIGNMENT + plan.stages * (plan.stage_nbytes + 16)
    names = tuple(b.name for b in arguments)
    return text, Launch(symbol, grid, threads, names, nbytes, maps=maps)


class _Writer:
    def __init__(self, position: Position, nest: Nest, plan: _Plan) -> None:
        self.position, self.nest, self.plan = position, nest, plan
        self.maps = [position.fresh(f"{c.tensor.buffer}_map") for c in plan.copies]
        self.statements = _Statements(position, plan)

    def write(self) -> None:
        p, plan, consumers = self.position, self.plan, self.nest.num_threads
        names = ("shared_memory", "tiles", "full", "empty", "stage", "phase")
        for name in names:
            assert p.fresh(name) == name, name
        p.write("extern __shared__ __align__(1024) unsigned char shared_memory[];")
        p.write("const unsigned tiles = (shared_address(shared_memory) + 1023) & ~1023u;")
        p.write(f"const unsigned full = tiles + {plan.stages * plan.stage_nbytes};")
        p.write(f"const unsigned empty = full + {8 * plan.stages};")
        groups = consumers // WARPGROUP
        p.write(f"init_barriers(full, empty, {plan.stages}, {groups});")
        p.write("__syncthreads();")
        p.write("int stage = 0;")
        p.write("unsigned phase = 0;")
        registers = _REGISTERS.get(groups)
        with p.braces(f"if (threadIdx.x >= {consumers})"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.dec.sync.aligned.u32 {registers[0]};");')
            with p.braces(f"if (threadIdx.x == {consumers})"):
                self._tiles(self._produce)
        with p.braces("else"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.inc.sync.aligned.u32 {registers[1]};");')
            unflatten(p, self.nest.threads, "threadIdx.x")
            self._tiles(lambda: self.statements.body(self.nest.body))

    def _tiles(self, body: Callable[[], None]) -> None:
        """What is done for each block's tile: once, or for every n-th one."""
        p, grid = self.position, self.nest.grid
        if self.plan.resident and self.plan.resident < grid:
            head = f"for (int block = blockIdx.x; block < {grid}; block += {self.plan.resident})"
            with p.braces(head, ROLL):
                unflatten(p, self.nest.blocks, "block")
                body()
        else:
            unflatten(p, self.nest.blocks, "blockIdx.x")
            body()

    def _produce(self) -> None:
        p, plan = self.position, self.plan
        integers = self.statements.integers
        with p.loop(plan.loop.name, extent_of(plan.loop), ROLL):
            p.write("await_barrier(empty + 8*stage, phase ^ 1);")
            p.write(f"expect_bytes(full + 8*stage, {sum(c.nbytes for c in plan.copies)});")
            for c, name in zip(plan.copies, self.maps, strict=True):
                function = bulk_copy(p.helpers, len(c.start))
                for k in range(c.chunks):
                    first = (c.start[0] + k * RUN, *c.start[1:])
                    at = ", ".join(integers.integer(x).text for x in first)
                    to = plan.offsets[c.to] + k * c.chunk_nbytes
                    p.write(
                        f"{function}(tiles + stage*{plan.stage_nbytes} + {to}, {name}, {at}, "
                        "full + 8*stage);"
                    )
            p.write(f"if (++stage == {plan.stages}) {{ stage = 0; phase ^= 1; }}")


class _Statements(Statements):
    def __init__(self, position: Position, plan: _Plan) -> None:
        super().__init__(position)
        self.plan = plan
        self.inside = False

    def _loop(self, s: For, alone: bool) -> None:
        if s is self.plan.loop:
            self._stages(s)
        elif self.inside:
            self._plain(s, extent_of(s), UNROLL)
        else:
            super()._loop(s, alone)

    def _stages(self, s: For) -> None:
        p, plan = self.position, self.plan
        apart = plan.in_flight > 1
        if apart:
            p.write("int previous = -1;")
        with p.loop(s.name, extent_of(s), ROLL):
            p.write("await_barrier(full + 8*stage, phase);")
            p.write(f"const unsigned tile = tiles + stage*{plan.stage_nbytes};")
            p.write('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");')
            self.inside = True
            self.body(plan.used)
            self.inside = False
            p.write('asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");')
            wait = plan.in_flight - 1
            p.write(f'asm volatile("wgmma.wait_group.sync.aligned {wait};" ::: "memory");')
            if apart:
                p.write("if (previous >= 0) release(empty + 8*previous);")
                p.write("previous = stage;")
            else:
                p.write("release(empty + 8*stage);")
            p.write(f"if (++stage == {plan.stages}) {{ stage = 0; phase ^= 1; }}")
        if apart:
            p.write('asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");')
            p.write("release(empty + 8*previous);")

    def _store(self, s: Store) -> None:
        if not _is_product(s):
            super()._store(s)
            return
        assert s.intrinsic is not None
        m, n, k = (name for name, _ in s.tile)
        start = dict.fromkeys((m, n, k), ZERO)
        operands = dict(s.operands)
        a, b = (self._descriptor(operands[x], k, start) for x in ("A", "B"))
        (w,) = s.writes
        memory = self.position.memories[w.buffer]
        first = tuple(q.substitute(start) for q in w.index)
        result = f"{memory.name} + {self.integers.address(memory, first)}"
        function = instruction(self.position.helpers, s.intrinsic, a[1], b[1])
        self.position.write(f"{function}({result}, {a[0]}, {b[0]});")

    def _descriptor(self, x: Load, k: str, start: dict[str, Int]) -> tuple[str, bool]:
        """Where an operand begins and how it lies; whether rows or columns run fastest in it."""
        memory = self.position.memories[x.buffer]
        turned = k not in x.index[-1].names
        far = (memory.strides[-3].const or 0) * 2 if turned else 16
        first = linear((q.substitute(start) for q in x.index), memory.strides)
        at = self.integers.integer(first * 2 + self.plan.offsets[x.buffer])
        # distances in bytes / 16: between tiles of 64 columns, and between groups of 8 rows
        rest = (far >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62
        return f"tile_descriptor(tile + {at.text}, {rest:#x}ull)", turned


def _plan(nest: Nest, buffers: dict[str, Buffer], dialect: Dialect) -> _Plan:
    loops = [s for s in nest.body if isinstance(s, For) and any(map(_is_copy, statements(s.body)))]
    if dialect.name != "cuda" or len(loops) != 1:
        raise BuildError(f"matrix instructions have no {dialect.name} code here")
    (loop,) = loops
    others = [t for s in nest.body if s is not loop for t in statements((s,))]
    if any(isinstance(t, Sync) for t in others) or nest.num_threads % WARPGROUP:
        raise BuildError("threads meet beside the loop of a matrix instruction")
    tiles = {b.name: b for b in nest.shared}
    copies: list[_Copy] = []
    used: list[Stmt] = []
    for s in loop.body:
        inner = s.body[0] if isinstance(s, If) and len(s.body) == 1 else s
        if isinstance(inner, Store) and inner.intrinsic is BULK_COPY:
            copies.append(_copy(inner, buffers, tiles))
        elif not isinstance(s, Sync):
            used.append(s)
    offsets: dict[str, int] = {}
    nbytes = 0
    for name, b in tiles.items():
        offsets[name] = nbytes
        nbytes += -(-size_of(b) * b.dtype.nbytes // _TILE_ALIGNMENT) * _TILE_ALIGNMENT
    if {c.to for c in copies} != tiles.keys():
        raise BuildError("a tile of a matrix instruction is not filled by the copy engine")
    return _Plan(
        loop, tuple(used), tuple(copies), offsets, nbytes, _number(loop, "pipeline", 2),
        _number(loop, "in_flight", 1), _number(loop, "resident", 0),
    )  # fmt: skip


def _number(f: For, key: str, default: int) -> int:
    note = f.note(key)
    return note if isinstance(note, int) else default


def _copy(s: Store, buffers: dict[str, Buffer], tiles: dict[str, Buffer]) -> _Copy:
    """Raises if no box of the tensor has the order of the tile."""
    (w,) = s.writes
    load = w.value
    assert isinstance(load, Load)
    source, extents = buffers[load.buffer], {n: e.const or 1 for n, e in s.tile}
    zero: dict[str, Int] = dict.fromkeys(extents, ZERO)
    place = linear(w.index, tiles[w.buffer].strides)

    def distance(name: str, steps: int = 1) -> int | None:
        return place.substitute({**zero, name: of(steps)}).const

    box, chunks, chunk, inner = [], 1, 0, 1
    for d, p in enumerate(reversed(load.index)):
        moving = [n for n in extents if n in p.names]
        if not moving:
            box.append(1)
            continue
        (name, *more) = moving
        size = extents[name]
        if more or p.coefficient(name).const != 1 or distance(name) != inner:
            raise _no_box(load)
        if d == 0 and size > RUN:
            chunks, chunk, size = size // RUN, 2 * (distance(name, RUN) or 0), RUN
        box.append(size)
        inner *= size
    shape = tuple(reversed([e.const or 0 for e in source.shape]))
    strides = tuple(prod(shape[:d]) * source.dtype.nbytes for d in range(1, len(shape)))
    fits = box[0] == RUN and max(box) <= _MOST_BOX and len(box) <= _MOST_RANK
    if not fits or any(n % 16 for n in strides) or extents.keys() - place.names:
        raise _no_box(load)
    tensor = TensorMap(load.buffer, source.dtype.name, shape, strides, tuple(box))
    start = tuple(p.substitute(zero) for p in reversed(load.index))
    return _Copy(tensor, start, w.buffer, chunks, chunk)


def _no_box(load: Load) -> BuildError:
    return BuildError(f"the copy engine has no box of {load.buffer} in the order of its tile")
