"""Emits launches with matrix instructions (wgmma, sm_90a) that read tiles which the copy engine
(TMA) brings.

The warps are specialised: a further group of threads, of which one works, has the copy engine fill
each stage of shared memory as soon as it is free. The threads of the launch wait until a stage is
full, compute with it, and set it free. Two barriers in shared memory (mbarrier) per stage say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from tilesmith.base.template import template
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.launches import overlapping, parameter, unflatten
from tilesmith.codegen.c.position import ROLL, UNROLL, Names, Position
from tilesmith.codegen.c.statements import Statements
from tilesmith.codegen.c.tensor_plan import Plan, is_product, plan_of, with_loop
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.intervals import linear, simple_quotients
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Load, map_ints
from tilesmith.ir.intrinsics import RUN, WARPGROUP
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import BARRIERS_NBYTES, TILE_ALIGNMENT
from tilesmith.ir.nests import unguarded
from tilesmith.ir.nodes import Buffer, For, Intrinsic, Store, Write


def bulk_copy(helpers: Helpers, rank: int) -> str:
    """The function that copies a box of a tensor of so many dimensions to shared memory."""
    name = f"bulk_copy_{rank}d"
    if name not in helpers.texts:
        at = ", ".join(f"int c{d}" for d in range(rank))
        holes = ", ".join(f"%{d + 2}" for d in range(rank))
        values = ", ".join(f'"r"(c{d})' for d in range(rank))
        helpers.texts[name] = (
            f"__device__ __forceinline__ void {name}(unsigned to, const TensorMap& map, {at}, "
            "unsigned barrier) {\n"
            f'  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::'
            f'complete_tx::bytes [%0], [%1, {{{holes}}}], [%{rank + 2}];"\n'
            f'    :: "r"(to), "l"(&map), {values}, "r"(barrier) : "memory");\n}}'
        )
    return name


def instruction(helpers: Helpers, unit: Intrinsic, turned_a: bool, turned_b: bool) -> str:
    """The function of a matrix instruction. An operand is turned if its rows (of A) or columns (of
    B) run fastest in memory.
    """
    assert unit.fragment is not None
    name = f"{unit.name.removeprefix('cuda.')}_{int(turned_a)}{int(turned_b)}"
    if name not in helpers.texts:
        _, short, size = unit.name.removeprefix("cuda.").split("_")
        rows, columns, depth = size.split("x")
        n = unit.fragment.registers
        held = ", ".join(f"%{i}" for i in range(n))
        values = ", ".join(f'"+f"(d[{i}])' for i in range(n))
        helpers.texts[name] = (
            f"__device__ __forceinline__ void {name}(float* d, unsigned long long a, "
            "unsigned long long b) {\n"
            '  asm volatile("{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"\n'
            f'    "wgmma.mma_async.sync.aligned.m{rows}n{columns}k{depth}.f32.{short}.{short} "\n'
            f'    "{{{held}}}, "\n    "%{n}, %{n + 1}, p, 1, 1, {int(turned_a)}, {int(turned_b)};'
            '\\n}"\n'
            f'    : {values} : "l"(a), "l"(b));\n}}'
        )
    return name


def optional_sum(helpers: Helpers, unit: Intrinsic, turned_a: bool | None, turned_b: bool) -> str:
    """The same, with a last argument that says whether to add to what is there. With None, A is in
    registers, two elements of 16 bits in each.
    """
    assert unit.fragment is not None
    place = "r" if turned_a is None else int(turned_a)
    name = f"{unit.name.removeprefix('cuda.')}_{place}{int(turned_b)}_optional"
    if name not in helpers.texts:
        _, short, size = unit.name.removeprefix("cuda.").split("_")
        rows, columns, depth = size.split("x")
        n = unit.fragment.registers
        held = ", ".join(f"%{i}" for i in range(n))
        values = ", ".join(f'"+f"(d[{i}])' for i in range(n))
        kind, left, count = "unsigned long long a", '"l"(a)', 1
        turned = f"{int(turned_a or 0)}, "
        if turned_a is None:
            kind, count, turned = "const unsigned* a", 4, ""
            left = ", ".join(f'"r"(a[{i}])' for i in range(4))
        given = ", ".join(f"%{n + i}" for i in range(count))
        given = f"{{{given}}}" if turned_a is None else given
        helpers.texts[name] = (
            f"__device__ __forceinline__ void {name}(float* d, {kind}, unsigned long long b, "
            "int adds) {\n"
            f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{n + count + 1}, 0;\\n"\n'
            f'    "wgmma.mma_async.sync.aligned.m{rows}n{columns}k{depth}.f32.{short}.{short} "\n'
            f'    "{{{held}}}, "\n    "{given}, %{n + count}, p, 1, 1, {turned}{int(turned_b)};'
            '\\n}"\n'
            f'    : {values} : {left}, "l"(b), "r"(adds));\n}}'
        )
    return name


# Registers of a thread that copies and of one that computes, by the number of groups that compute.
# All together they are at most those of a multiprocessor.
REGISTERS = {2: (40, 232), 3: (32, 160)}


def emit_tensor_launch(
    nest: LaunchForm, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers
) -> tuple[str, Launch]:
    """The text of one kernel. `buffers` are those in global memory, in calling order."""
    nest = with_loop(nest)
    plan = plan_of(nest, buffers, dialect)
    helpers.texts.setdefault("tensor", template(__file__, "tensor.cu").rstrip())
    position = Position(dialect, helpers, Names(), nest.num_threads)
    maps = tuple(dict.fromkeys(c.tensor for c in plan.copies))
    rest = [s for s in nest.body if s is not plan.loop]
    uses = list(accesses((*rest, *plan.used)))
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    for b in (*arguments, *nest.shared):
        position.declare(b, position.fresh(b.name))
    writer = _Writer(position, nest, plan)
    writer.write()
    threads = nest.num_threads + WARPGROUP
    params = [f"const __grid_constant__ TensorMap {name}" for name in writer.maps.values()]
    params += [parameter(position, b, b.name in written) for b in arguments]
    head = f'extern "C" __global__ void __launch_bounds__({threads}, 1) {symbol}'
    lines = (f"  {x}" for x in position.scopes[0].lines)
    text = "\n".join([f"{head}({', '.join(params)}) {{", *lines, "}"])
    grid = min(nest.grid, plan.resident or nest.grid)
    nbytes = TILE_ALIGNMENT + plan.stages * (plan.stage_nbytes + BARRIERS_NBYTES)
    names = tuple(b.name for b in arguments)
    return text, Launch(symbol, grid, threads, names, nbytes, maps=maps, overlaps=True)


class _Writer:
    def __init__(self, position: Position, nest: LaunchForm, plan: Plan) -> None:
        self.position, self.nest, self.plan = position, nest, plan
        every = dict.fromkeys(c.tensor for c in plan.copies)
        self.maps = {t: position.fresh(f"{t.buffer}_map") for t in every}
        self.statements = _Statements(position, nest, plan)

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
        # Each of its blocks takes a whole multiprocessor, so that those of the next launch spread.
        for line in overlapping(p.helpers, followed=True):
            p.write(line)
        p.write("int stage = 0;")
        p.write("unsigned phase = 0;")
        registers = REGISTERS.get(groups)
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
        with p.loop(plan.loop.name, plan.loop.trips, ROLL):
            p.write("await_barrier(empty + 8*stage, phase ^ 1);")
            p.write(f"expect_bytes(full + 8*stage, {sum(c.nbytes for c in plan.copies)});")
            for c in plan.copies:
                name = self.maps[c.tensor]
                function = bulk_copy(p.helpers, len(c.start))
                for k in range(c.chunks):
                    first = (c.start[0] + k * RUN, *c.start[1:])
                    at = ", ".join(integers.integer(x).text for x in first)
                    to = plan.offsets[c.to] + c.at + k * c.chunk_nbytes
                    p.write(
                        f"{function}(tiles + stage*{plan.stage_nbytes} + {to}, {name}, {at}, "
                        "full + 8*stage);"
                    )
            p.write(f"if (++stage == {plan.stages}) {{ stage = 0; phase ^= 1; }}")


@dataclass(frozen=True, slots=True)
class _Quads:
    """What four threads store together."""

    pair: str  # the loop over the two results of a thread
    write: Write
    at: Int  # where the first thread's are
    conds: tuple[Int, ...]


class GroupStatements(Statements):
    """Statements of threads that carry out matrix instructions in groups."""

    def __init__(self, position: Position, nest: LaunchForm) -> None:
        super().__init__(position)
        self.nest = nest
        self.inside = False

    def _address(self, buffer: str, first: Int) -> str:
        """Where an element of a tile lies in shared memory; `first` counts bytes from its start."""
        raise NotImplementedError

    def _loop(self, s: For, alone: bool) -> None:
        if self.inside:
            self._plain(s, s.trips, UNROLL)
        elif (quads := self._quads(s)) is not None:
            self._exchange(s, quads)
        else:
            super()._loop(s, alone)

    def _quads(self, s: For) -> _Quads | None:
        """The loop over a thread's pairs of 16-bit results, if those of four threads are 16 bytes
        in a row. They may be stored under a condition that is the same for the four.
        """
        body, conds = unguarded(s.body)
        if len(body) != 1 or not isinstance(inner := body[0], For) or s.trips % 4:
            return None
        body, more = unguarded(inner.body)
        if inner.trips != 2 or len(body) != 1 or len(self.nest.threads) != 1:
            return None
        store, conds = body[0], (*conds, *more)
        if not isinstance(store, Store) or len(store.writes) != 1 or store.tile:
            return None
        (w,) = store.writes
        memory = self.position.memories[w.buffer]
        if memory.scope != "global" or memory.dtype.bits != 16:
            return None
        t = var(self.nest.threads[0].name)
        if not _same_in_quads(conds, self.nest.threads[0].name, {s.name, inner.name}):
            return None
        at = linear(w.index, memory.strides) - (t * 2 - t // 4 * 8)
        steps = at.coefficient(s.name), at.coefficient(inner.name)
        start = at.substitute({s.name: ZERO, inner.name: ZERO})
        if [x.const for x in steps] != [8, 1] or any(c % 8 for c in start.terms.values()):
            return None
        if at != start + var(s.name) * 8 + var(inner.name):
            return None
        return _Quads(inner.name, w, at, conds)

    def _exchange(self, s: For, quads: _Quads) -> None:
        """Threads of a quad exchange results, so that each stores 16 bytes of its own."""
        p, w, memory = self.position, quads.write, self.position.memories[quads.write.buffer]
        first, member = f"{s.name}.v", f"{s.name}.lane"
        guard = f"if ({self.integers.conditions(quads.conds)})" if quads.conds else ""
        with p.loop(first, s.trips, UNROLL, 4):
            quad = p.fresh("quad")
            p.write(f"__align__(16) unsigned {quad}[4];")
            with p.braces(guard) if guard else nullcontext(), p.loop(member, 4, UNROLL) as k:
                halves = []
                for half in (0, 1):
                    env = {s.name: var(first) + var(member), quads.pair: of(half)}
                    value = map_ints(w.value, partial(_put, env))
                    halves.append(self.expressions.stored(value, memory.dtype).text)
                low, high = (f"(unsigned)({x})" for x in halves)
                p.write(f"{quad}[{k}] = {low} | {high} << 16;")
            p.write(f"transpose_quad({quad});")
            base = quads.at.substitute({s.name: var(first), quads.pair: ZERO})
            place = self.integers.integer(base).text
            p.write(
                f"{guard} *(uint4*)({memory.name} + ({place}) + 8*(threadIdx.x % 4)) = ".lstrip()
                + f"*(const uint4*){quad};"
            )

    def _store(self, s: Store) -> None:
        if not is_product(s):
            super()._store(s)
            return
        assert s.intrinsic is not None
        m, n, k = (name for name, _ in s.tile)
        start = dict.fromkeys((m, n, k), ZERO)
        operands = dict(s.operands)
        (w,) = s.writes
        memory = self.position.memories[w.buffer]
        first = tuple(q.substitute(start) for q in w.index)
        result = f"{memory.name} + {self.integers.address(memory, first)}"
        self.position.write(self._call(s, s.intrinsic, result, operands, k, start))

    def _call(
        self, s: Store, unit: Intrinsic, result: str, operands: dict[str, Load], k: str,
        start: dict[str, Int],
    ) -> str:  # fmt: skip
        a, b = (self._descriptor(operands[x], k, start) for x in ("A", "B"))
        function = instruction(self.position.helpers, unit, a[1], b[1])
        return f"{function}({result}, {a[0]}, {b[0]});"

    def _descriptor(self, x: Load, k: str, start: dict[str, Int]) -> tuple[str, bool]:
        """Where an operand begins and how it lies; whether rows or columns run fastest in it."""
        memory = self.position.memories[x.buffer]
        turned = k not in x.index[-1].names
        far = memory.strides[-3].number * 2 if turned else 16
        first = linear((q.substitute(start) for q in x.index), memory.strides)
        address = self._address(x.buffer, first * 2)
        # distances in bytes / 16: between tiles of 64 columns, and between groups of 8 rows
        rest = (far >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62
        return f"tile_descriptor({address}, {rest:#x}ull)", turned


class _Statements(GroupStatements):
    def __init__(self, position: Position, nest: LaunchForm, plan: Plan) -> None:
        super().__init__(position, nest)
        self.plan = plan

    def _loop(self, s: For, alone: bool) -> None:
        if s is self.plan.loop:
            self._stages(s)
        else:
            super()._loop(s, alone)

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


def _same_in_quads(conds: tuple[Int, ...], thread: str, loops: set[str]) -> bool:
    """Whether the conditions neither tell four threads apart nor iterations of the loops."""
    env, ranges = {thread: var("quad") * 4 + var("lane")}, {"lane": of(4)}
    apart = {"lane", *loops}
    return all(apart.isdisjoint(simple_quotients(p.substitute(env), ranges).names) for p in conds)


def _put(env: Mapping[str, Int], p: Int) -> Int:
    return p.substitute(env)
