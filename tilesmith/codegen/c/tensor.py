"""Emits launches with matrix instructions (wgmma, sm_90a) that read tiles which the copy engine
(TMA) brings.

The warps are specialised: a further group of threads, of which one works, has the copy engine fill
each stage of shared memory as soon as it is free. The threads of the launch wait until a stage is
full, compute with it, and set it free. Two barriers in shared memory (mbarrier) per stage say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tilesmith.base.template import template
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.group_products import GroupProducts, bulk_copy, instruction
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.launches import (
    NO_SIZES,
    bind_open,
    overlapping,
    parameter,
    scalar,
    unflatten,
)
from tilesmith.codegen.c.position import ROLL, UNROLL, Names, Position
from tilesmith.codegen.c.statements import Statements, size_of
from tilesmith.codegen.c.tensor_plan import (
    Groups,
    Plan,
    blocks_of,
    groups_of,
    is_product,
    plan_of,
    with_loop,
)
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.ints import Int
from tilesmith.ir.intrinsics import WARPGROUP
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import BARRIERS_NBYTES, TILE_ALIGNMENT
from tilesmith.ir.nodes import Buffer, For, Stmt, Store, Sync

# Registers of a thread that copies and of one that computes, by the number of groups that compute.
# All together they are at most those of a multiprocessor.
REGISTERS = {2: (40, 232), 3: (32, 160)}
# The kernel's own variables.
_OWN = (
    "shared_memory", "tiles", "tile", "full", "empty", "stage", "phase", "previous", "block",
    "outer", "rest", "group", "column",
)  # fmt: skip


def emit_tensor_launch(
    nest: LaunchForm, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers,
    sizes: Mapping[str, int] = NO_SIZES,
) -> tuple[str, Launch]:  # fmt: skip
    """The text of one kernel. `buffers` are those in global memory, in calling order; `sizes` are
    the open ones with the largest value of each.
    """
    nest = with_loop(nest)
    plan = plan_of(nest, buffers, dialect)
    helpers.texts.setdefault("tensor", template(__file__, "tensor.cu").rstrip())
    position = Position(dialect, helpers, Names(_OWN), nest.num_threads)
    maps = tuple(dict.fromkeys(c.tensor for c in plan.copies))
    rest = [s for s in nest.body if s is not plan.loop]
    uses = list(accesses((*rest, *plan.used)))
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    scalars = [scalar(position, n, most) for n, most in sizes.items()]
    for b in (*arguments, *nest.shared):
        position.declare(b, position.fresh(b.name))
    writer = _Writer(position, nest, plan)
    writer.write()
    threads = nest.num_threads + WARPGROUP
    params = [f"const __grid_constant__ TensorMap {name}" for name in writer.maps.values()]
    params += [parameter(position, b, b.name in written) for b in arguments]
    params += scalars
    bounds = f"{threads}, 1" if plan.is_large else f"{threads}"
    head = f'extern "C" __global__ void __launch_bounds__({bounds}) {symbol}'
    lines = (f"  {x}" for x in position.scopes[0].lines)
    text = "\n".join([f"{head}({', '.join(params)}) {{", *lines, "}"])
    nbytes = writer.staged_from + writer.staged_nbytes
    names = tuple(b.name for b in arguments)
    return text, Launch(
        symbol, plan.resident or nest.open_grid.const or 0, threads, names, nbytes, maps=maps,
        overlaps=True, sizes=tuple(sizes.items()),
    )  # fmt: skip


class _Writer:
    def __init__(self, position: Position, nest: LaunchForm, plan: Plan) -> None:
        self.position, self.nest, self.plan = position, nest, plan
        every = dict.fromkeys(c.tensor for c in plan.copies)
        self.maps = {t: position.fresh(f"{t.buffer}_map") for t in every}
        self.statements = _Statements(position, nest, plan)
        self.staged_from = TILE_ALIGNMENT + plan.stages * (plan.stage_nbytes + BARRIERS_NBYTES)
        self.staged_nbytes = 0

    def write(self) -> None:
        p, plan, consumers = self.position, self.plan, self.nest.num_threads
        p.write("extern __shared__ __align__(1024) unsigned char shared_memory[];")
        p.write("const unsigned tiles = (shared_address(shared_memory) + 1023) & ~1023u;")
        p.write(f"const unsigned full = tiles + {plan.stages * plan.stage_nbytes};")
        p.write(f"const unsigned empty = full + {8 * plan.stages};")
        groups = consumers // WARPGROUP
        p.write(f"init_barriers(full, empty, {plan.stages}, {groups});")
        p.write("__syncthreads();")
        # Each of its blocks takes a whole multiprocessor, so that those of the next launch spread.
        for line in overlapping(p.helpers, followed=True):
            p.write(line)
        p.write("int stage = 0;")
        p.write("unsigned phase = 0;")
        for b in plan.staged:
            name, kind = p.memories[b.name].name, p.dialect.type_of(b.dtype)
            at = self.staged_from + self.staged_nbytes
            p.write(f"{kind}* const {name} = ({kind}*)(shared_memory + {at});")
            self.staged_nbytes += -(-size_of(b) * b.dtype.nbytes // 16) * 16
        registers = REGISTERS.get(groups) if plan.is_large else None
        with p.braces(f"if (threadIdx.x >= {consumers})"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.dec.sync.aligned.u32 {registers[0]};");')
            with p.braces(f"if (threadIdx.x == {consumers})"):
                self._tiles(self._produce)
        with p.braces("else"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.inc.sync.aligned.u32 {registers[1]};");')
            unflatten(p, self.nest.threads, "threadIdx.x")
            self._tiles(self._consume)

    def _tiles(self, body: Callable[[], None]) -> None:
        """What is done for each block's tile: once, or for every n-th one."""
        p, resident = self.position, self.plan.resident
        if resident:
            grid = self.statements.integers.in_int(blocks_of(self.nest))
            head = f"for (int block = blockIdx.x; block < {grid}; block += {resident})"
            with p.braces(head, ROLL):
                self._tile("block", body)
        else:
            self._tile("blockIdx.x", body)

    def _tile(self, number: str, body: Callable[[], None]) -> None:
        """What is done for a tile."""
        if (groups := groups_of(self.nest)) is None:
            unflatten(self.position, self.nest.blocks, number)
        else:
            self._place(groups, number)
        body()

    def _place(self, groups: Groups, number: str) -> None:
        """The values of the loops over blocks, slowest first: those before the groups, the group,
        those between, and the tile of the group.
        """
        p, blocks = self.position, self.nest.blocks
        at = next(k for k, f in enumerate(blocks) if f.name == groups.outer)
        before, between = blocks[:at], blocks[at + 1 : -1]
        integers, others = self.statements.integers, prod(f.trips for f in between)
        tiles = integers.in_int(groups.tiles)
        if before:
            within = integers.in_int(groups.tiles * others)
            p.write(f"const int outer = {number} / ({within});")
            p.write(f"const int rest = {number} % ({within});")
            unflatten(p, before, "outer")
            number = "rest"
        most = groups.size * others
        outer = bind_open(p, blocks[at])
        p.write(f"const int {outer} = {number} / {most};")
        p.write(f"const int group = min({groups.size}, {tiles} - {outer}*{groups.size});")
        p.write(f"const int column = {number} % {most} / group;")
        unflatten(p, between, "column")
        inner = p.bind(groups.inner, groups.size)
        p.write(f"const int {inner} = {number} % {most} % group;")

    def _consume(self) -> None:
        self.statements.body(self.nest.body)
        if self.plan.staged and self.plan.resident:  # the next tile's results take their place
            self.statements.await_others()

    def _produce(self) -> None:
        p, plan = self.position, self.plan
        integers = self.statements.integers
        with p.loop(plan.loop.name, plan.loop.trips, ROLL):
            p.write("await_barrier(empty + 8*stage, phase ^ 1);")
            p.write(f"expect_bytes(full + 8*stage, {sum(c.nbytes for c in plan.copies)});")
            for c in plan.copies:
                name = self.maps[c.tensor]
                function = bulk_copy(p.helpers, len(c.start))
                for k in range(c.chunks):
                    first = (c.start[0] + k * c.run, *c.start[1:])
                    at = ", ".join(integers.integer(x).text for x in first)
                    to = plan.offsets[c.to] + c.at + k * c.chunk_nbytes
                    p.write(
                        f"{function}(tiles + stage*{plan.stage_nbytes} + {to}, {name}, {at}, "
                        "full + 8*stage);"
                    )
            p.write(f"if (++stage == {plan.stages}) {{ stage = 0; phase ^= 1; }}")


class _Statements(Statements):
    def __init__(self, position: Position, nest: LaunchForm, plan: Plan) -> None:
        super().__init__(position)
        self.groups = GroupProducts(position, self.integers, self.expressions, nest, self._address)
        self.plan = plan
        self.inside = False

    def await_others(self) -> None:
        """A barrier of the threads that compute."""
        threads = self.groups.nest.num_threads
        self.position.write(f'asm volatile("bar.sync 1, {threads};" ::: "memory");')

    def _statement(self, s: Stmt, alone: bool) -> None:
        if isinstance(s, Sync):
            self.await_others()
        else:
            super()._statement(s, alone)

    def _loop(self, s: For, alone: bool) -> None:
        if s is self.plan.loop:
            self._stages(s)
        elif self.inside:
            self._plain(s, s.trips, UNROLL)
        elif not self.groups.stored(s):
            super()._loop(s, alone)

    def _store(self, s: Store) -> None:
        if not is_product(s):
            super()._store(s)
            return
        product = self.groups.product(s)
        (a, turned_a), (b, turned_b) = (self.groups.descriptor(product, x) for x in ("A", "B"))
        function = instruction(self.position.helpers, product.unit, turned_a, turned_b)
        self.position.write(f"{function}({product.result}, {a}, {b});")

    def _address(self, buffer: str, first: Int) -> str:
        return f"tile + {self.integers.integer(first + self.plan.offsets[buffer]).text}"

    def _stages(self, s: For) -> None:
        p, plan = self.position, self.plan
        apart = plan.in_flight > 1
        if apart:
            p.write("int previous = -1;")
        with p.loop(s.name, s.trips, ROLL):
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
