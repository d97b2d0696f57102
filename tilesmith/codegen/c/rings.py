"""Emits launches in which several matrix instructions (wgmma, sm_90a) and other work follow one
another, such as attention. Each tile that the copy engine (TMA) fills has a ring of stages of its
own in shared memory, because tiles are set free at different times.

The warps are specialised as in tensor.py: the producer walks through the same loops as all others,
but does nothing except for copies. Consumers wait for a tile before they first use it, and set it
free behind the last use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from math import inf

from tilesmith.base.dtype import FLOAT32, DType
from tilesmith.base.errors import BuildError
from tilesmith.base.template import template
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.group_products import GroupProducts, bulk_copy, optional_sum
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.launches import overlapping, parameter, unflatten
from tilesmith.codegen.c.position import ROLL, UNROLL, Names, Position
from tilesmith.codegen.c.statements import Statements, size_of
from tilesmith.codegen.c.tensor import REGISTERS
from tilesmith.codegen.c.tensor_plan import Copy, copy_of, is_copy, is_product
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.intervals import linear, simple_quotients
from tilesmith.expr.ints import ZERO, Int, of
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, rewrite, substitute
from tilesmith.ir.intrinsics import HALVES, PAIR, RUN, WARP, WARPGROUP
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import BARRIERS_NBYTES, LEAST_STAGES, TILE_ALIGNMENT
from tilesmith.ir.nests import unguarded
from tilesmith.ir.nodes import (
    Alloc,
    Buffer,
    For,
    If,
    Join,
    Stmt,
    Store,
    Sync,
    statements,
)
from tilesmith.ir.nodes import rewrite as rewrite_statements
from tilesmith.ir.notes import PipelineStages

_PIN = """\
template <int N> __device__ __forceinline__ void pin(float (&x)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
}"""


# Of these launches, factors have 16 bits: what the instruction is off by does not show.
_EXP2 = """\
__device__ __forceinline__ float power_of_two_f(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}"""


_PACKED = {
    name: (
        f"pack_{short}",
        f"__device__ __forceinline__ unsigned pack_{short}(float low, float high) {{\n"
        "  unsigned r;\n"
        f'  asm("cvt.rn.{short}x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));\n'
        "  return r;\n}",
    )
    for name, short in (("float16", "f16"), ("bfloat16", "bf16"))
}


def _inner(e: Expr, dtype: DType) -> Expr:
    """What is rounded to halves, still in float32."""
    if isinstance(e, Select):
        return Select(e.cond, _inner(e.a, dtype), _inner(e.b, dtype), FLOAT32)
    if isinstance(e, Cast) and e.x.dtype is FLOAT32 and e.dtype is dtype:
        return e.x
    return Cast(e, FLOAT32)


def _in_base_two(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """exp(x) as a power of two. Where x is the difference of a scaled product and a value of its
    row, the factor goes into the scale, and the difference takes one instruction.
    """

    def scaled(e: Expr) -> Expr | None:
        match e:
            case Binary(op="mul", a=Load() as a, b=Const() as c):
                return Binary("mul", a, Const(float(c.value) * _LOG2_E, c.dtype), e.dtype)
            case Select(cond=c, a=a, b=Const() as b) if b.value == -inf:
                inner = scaled(a)
                return None if inner is None else Select(c, inner, b, e.dtype)
        return None

    def put(e: Expr) -> Expr:
        if not isinstance(e, Unary) or e.op != "exp" or e.dtype is not FLOAT32:
            return e
        x, factor = e.x, Const(_LOG2_E, e.dtype)
        if isinstance(x, Binary) and x.op == "sub" and (a := scaled(x.a)) is not None:
            # Of a row that saw nothing yet, the value times the factor would be infinite.
            b = Binary("max", x.b, Const(_FAR_BELOW, e.dtype), e.dtype)
            x = Binary("sub", a, Binary("mul", b, factor, e.dtype), e.dtype)
        else:
            x = Binary("mul", x, factor, e.dtype)
        return Unary("exp", x, e.dtype)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Store) or s.intrinsic is not None:
            return (s,)
        return (
            replace(s, writes=tuple(replace(w, value=rewrite(w.value, put)) for w in s.writes)),
        )

    return rewrite_statements(body, go)


_FAR_BELOW = -1e30  # no product of 16-bit numbers gets there
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Ring:
    """The stages of one tile in shared memory, and what fills them."""

    tile: str
    stages: int
    offset: int  # of the first stage
    nbytes: int  # of a stage
    barriers: int  # of the first barrier: all that say full, then all that say empty
    name: str  # of the variables that count


@dataclass(frozen=True, slots=True)
class _Group:
    """Instructions under way: the registers they use, those they write, and the barriers that say
    of the tiles they read that these are free.
    """

    registers: frozenset[str]
    results: tuple[str, ...]
    free: tuple[str, ...]


def _rings(
    nest: LaunchForm, buffers: dict[str, Buffer], position: Position
) -> tuple[dict[str, _Ring], dict[int, Copy]]:
    """The ring of each tile, and what each statement copies, by its id."""
    tiles = {b.name: b for b in nest.shared}
    copies: dict[int, Copy] = {}
    depth: dict[str, int] = {}

    def walk(body: tuple[Stmt, ...], stages: int) -> None:
        for s in body:
            if isinstance(s, For):
                walk(s.body, s.count(PipelineStages) or LEAST_STAGES)
            elif isinstance(s, If):
                walk(s.body, stages)
            elif isinstance(s, Store) and is_copy(s):
                copies[id(s)] = copy = copy_of(s, buffers, tiles)
                depth[copy.to] = max(stages, depth.get(copy.to, 1))

    walk(nest.body, 1)
    if depth.keys() != tiles.keys():
        raise BuildError("a tile of a matrix instruction is not filled by the copy engine")
    found: dict[str, _Ring] = {}
    offset, barriers = 0, 0
    for name, b in tiles.items():
        nbytes = -(-size_of(b) * b.dtype.nbytes // TILE_ALIGNMENT) * TILE_ALIGNMENT
        ring = _Ring(name, depth[name], offset, nbytes, barriers, position.fresh(name))
        found[name] = ring
        offset += ring.stages * nbytes
        barriers += ring.stages * BARRIERS_NBYTES
    return found, copies


def emit_rings(
    nest: LaunchForm, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers
) -> tuple[str, Launch]:
    """The text of one kernel. `buffers` are those in global memory, in calling order."""
    if dialect.name != "cuda" or nest.num_threads % WARPGROUP:
        raise BuildError(f"matrix instructions have no {dialect.name} code here")
    helpers.texts.setdefault("tensor", template(__file__, "tensor.cu").rstrip())
    helpers.texts.setdefault("pin", _PIN)
    helpers.texts.setdefault("exp2", _EXP2)
    dialect = replace(dialect, functions={**dialect.functions, "exp": "power_of_two_"})
    position = Position(dialect, helpers, Names(), nest.num_threads)
    threads_ = frozenset(f.name for f in nest.threads)
    body = _in_base_two(_by_producer(_without_barriers(nest.body), threads_))
    nest = replace(nest, body=body)
    uses = list(accesses(_without_copies(body)))
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    for b in (*arguments, *nest.shared):
        position.declare(b, position.fresh(b.name))
    rings, copies = _rings(nest, buffers, position)
    groups = nest.num_threads // WARPGROUP
    threads = nest.num_threads + (WARP if groups == 1 else WARPGROUP)
    writer = _Writer(position, nest, rings, copies, groups)
    writer.write()
    params = [f"const __grid_constant__ TensorMap {name}" for name in writer.maps.values()]
    params += [parameter(position, b, b.name in written) for b in arguments]
    resident = 2 if groups == 1 else 1
    head = f'extern "C" __global__ void __launch_bounds__({threads}, {resident}) {symbol}'
    lines = (f"  {x}" for x in position.scopes[0].lines)
    text = "\n".join([f"{head}({', '.join(params)}) {{", *lines, "}"])
    nbytes = TILE_ALIGNMENT + sum(r.stages * (r.nbytes + BARRIERS_NBYTES) for r in rings.values())
    names = tuple(b.name for b in arguments)
    return text, Launch(
        symbol, nest.grid, threads, names, nbytes, maps=tuple(writer.maps), overlaps=True
    )


def _without_barriers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Rings say when a tile may be read or filled, so no barrier among all threads is needed."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For | If):
            out.append(replace(s, body=_without_barriers(s.body)))
        elif not isinstance(s, Sync):
            out.append(s)
    return tuple(out)


def _without_copies(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For | If):
            out.append(replace(s, body=_without_copies(s.body)))
        elif not is_copy(s):
            out.append(s)
    return tuple(out)


def _by_producer(body: tuple[Stmt, ...], threads: frozenset[str]) -> tuple[Stmt, ...]:
    """Copies without the condition that one thread makes them: the producer does."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, If) and all(map(is_copy, s.body)):
            conds = tuple(p for p in s.conds if not p.names & threads)
            out += (replace(s, conds=conds),) if conds else s.body
        elif isinstance(s, For | If):
            out.append(replace(s, body=_by_producer(s.body, threads)))
        else:
            out.append(s)
    return tuple(out)


def _copies_of(s: Stmt) -> list[Store]:
    return [s] if isinstance(s, Store) and is_copy(s) else []


class _Writer:
    def __init__(
        self, position: Position, nest: LaunchForm, rings: dict[str, _Ring],
        copies: dict[int, Copy], groups: int,
    ) -> None:  # fmt: skip
        self.position, self.nest, self.rings, self.groups = position, nest, rings, groups
        self.copies = copies
        every = dict.fromkeys(c.tensor for c in copies.values())
        self.maps = {t: position.fresh(f"{t.buffer}_map") for t in every}
        self.statements = _Statements(position, nest, rings)

    def write(self) -> None:
        p, consumers = self.position, self.nest.num_threads
        for name in ("shared_memory", "tiles", "barriers"):
            assert p.fresh(name) == name, name
        size = sum(r.stages * r.nbytes for r in self.rings.values())
        p.write("extern __shared__ __align__(1024) unsigned char shared_memory[];")
        p.write("const unsigned tiles = (shared_address(shared_memory) + 1023) & ~1023u;")
        p.write(f"const unsigned barriers = tiles + {size};")
        for r in self.rings.values():
            p.write(f"const unsigned {r.name}_full = barriers + {r.barriers};")
            p.write(f"const unsigned {r.name}_empty = {r.name}_full + {8 * r.stages};")
            p.write(f"init_barriers({r.name}_full, {r.name}_empty, {r.stages}, {self.groups});")
            p.write(f"int {r.name}_stage = 0;")
            p.write(f"unsigned {r.name}_phase = 0;")
        p.write("__syncthreads();")
        for line in overlapping(p.helpers, followed=False):
            p.write(line)
        number = "blockIdx.x"
        if _grows(self.nest):  # those that take longest first
            number = p.fresh("block")
            p.write(f"const int {number} = {self.nest.grid - 1} - blockIdx.x;")
        unflatten(p, self.nest.blocks, number)
        registers = REGISTERS.get(self.groups)
        with p.braces(f"if (threadIdx.x >= {consumers})"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.dec.sync.aligned.u32 {registers[0]};");')
            with p.braces(f"if (threadIdx.x == {consumers})"):
                self._produce(self.nest.body)
        with p.braces("else"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.inc.sync.aligned.u32 {registers[1]};");')
            unflatten(p, self.nest.threads, "threadIdx.x")
            self.statements.body(self.nest.body)

    def _produce(self, body: tuple[Stmt, ...]) -> None:
        p = self.position
        for tile, run in groupby(body, _filled):
            if tile:
                self._copy(self.rings[tile], [c for s in run for c in _copies_of(s)])
                continue
            for s in run:
                if not any(map(is_copy, statements((s,)))):
                    continue
                if isinstance(s, For):
                    with p.loop(s.name, s.trips, ROLL):
                        self._produce(s.body)
                elif isinstance(s, If):
                    with p.braces(f"if ({self.statements.integers.conditions(s.conds)})"):
                        self._produce(s.body)

    def _copy(self, ring: _Ring, stores: list[Store]) -> None:
        p, integers, n = self.position, self.statements.integers, ring.name
        copies = [self.copies[id(s)] for s in stores]
        p.write(f"await_barrier({n}_empty + 8*{n}_stage, {n}_phase ^ 1);")
        p.write(f"expect_bytes({n}_full + 8*{n}_stage, {sum(c.nbytes for c in copies)});")
        for c in copies:
            function = bulk_copy(p.helpers, len(c.start))
            for k in range(c.chunks):
                first = (c.start[0] + k * RUN, *c.start[1:])
                at = ", ".join(integers.integer(x).text for x in first)
                to = ring.offset + c.at + k * c.chunk_nbytes
                p.write(
                    f"{function}(tiles + {n}_stage*{ring.nbytes} + {to}, {self.maps[c.tensor]}, "
                    f"{at}, {n}_full + 8*{n}_stage);"
                )
        p.write(_advance(ring))


def _grows(nest: LaunchForm) -> bool:
    """Whether later blocks have more work: conditions on tiles hold for more of them."""
    blocks = [f.name for f in nest.blocks]
    guards = [
        p for s in statements(nest.body) if isinstance(s, If) for p in s.conds
        if any(map(is_product, statements(s.body)))
    ]  # fmt: skip
    return any((p.coefficient(n).const or 0) > 0 for p in guards for n in blocks)


def _filled(s: Stmt) -> str:
    """The tile that a statement fills, if it does nothing else."""
    copies = _copies_of(s)
    return copies[0].writes[0].buffer if copies else ""


def _advance(r: _Ring) -> str:
    if r.stages == 1:
        return f"{r.name}_phase ^= 1;"
    return f"if (++{r.name}_stage == {r.stages}) {{ {r.name}_stage = 0; {r.name}_phase ^= 1; }}"


class _Statements(Statements):
    def __init__(self, position: Position, nest: LaunchForm, rings: dict[str, _Ring]) -> None:
        super().__init__(position)
        self.groups = GroupProducts(position, self.integers, self.expressions, nest, self._address)
        self.inside = False
        self.rings = rings
        self.filled: list[_Ring] = []  # tiles on their way that nothing has waited for yet
        self.running: list[_Group] = []  # instructions under way, in order
        self.from_zero = self.repairing = False
        self.sizes: dict[str, int] = {}  # of registers, by buffer
        local = {s.buffer.name for s in statements(nest.body) if isinstance(s, Alloc)}
        self.packed = {
            x.buffer for s in statements(nest.body) if is_product(s) and isinstance(s, Store)
            for n, x in s.operands if n == "A" and x.buffer in local
        }  # fmt: skip
        self.around: list[str] = []  # loops of the instructions around the place

    def _loop(self, s: For, alone: bool) -> None:
        stores = [t for t in s.body if isinstance(t, Store)]
        if any(w.buffer in self.packed for t in stores for w in t.writes):
            self._pack(s)
            return
        if self.inside:
            self._plain(s, s.trips, UNROLL)
            return
        if self.groups.stored(s):
            return
        factor = None if self.repairing else self._factor(s)
        if factor is None:
            super()._loop(s, alone)
            return
        # Most tiles repair nothing.
        memory = self.position.memories[factor]
        elements = (f"{memory.name}[{k}] != 1.0f" for k in range(HALVES))
        with self.position.braces(f"if (__any_sync(0xffffffffu, {' || '.join(elements)}))"):
            self.repairing = True
            super()._loop(s, alone)
            self.repairing = False

    def _factor(self, s: For) -> str | None:
        """The values of rows that a loop multiplies a fragment by."""
        stores = [t for t in statements((s,)) if isinstance(t, Store)]
        if len(stores) != 1 or len(stores[0].writes) != 1:
            return None
        (w,) = stores[0].writes
        e = w.value
        if not (
            w.accumulates and isinstance(e, Binary) and e.op == "mul" and isinstance(e.b, Load)
        ):
            return None
        sizes = (self.sizes.get(x.buffer) for x in (w.held, e.b))
        return e.b.buffer if next(sizes) != HALVES and next(sizes) == HALVES else None

    def _local(self, s: Alloc) -> None:
        self.sizes[s.buffer.name] = size_of(s.buffer)
        if s.buffer.name not in self.packed:
            super()._local(s)
            return
        name = self.position.fresh(s.buffer.name)
        self.position.declare(s.buffer, name)
        self.position.write(f"unsigned {name}[{size_of(s.buffer) // PAIR}];")

    def _pack(self, s: For) -> None:
        """Two factors at a time, which are one register of the instruction."""
        p = self.position
        body, conds = unguarded(s.body)
        (store,) = body
        if conds or not isinstance(store, Store):
            raise BuildError("a factor of a matrix instruction is written under a condition")
        (w,) = store.writes
        memory = p.memories[w.buffer]
        values = (
            self.expressions.value(_inner(substitute(w.value, {s.name: of(k)}), memory.dtype)).text
            for k in range(PAIR)
        )
        at = linear(w.index, memory.strides).substitute({s.name: ZERO}) // of(PAIR)
        ranges = {n: of(e) for n, e in p.extents.items()}
        place = self.integers.integer(simple_quotients(at, ranges)).text
        helper = _PACKED[memory.dtype.name]
        p.helpers.texts.setdefault(helper[0], helper[1])
        p.write(f"{memory.name}[{place}] = {helper[0]}({', '.join(values)});")

    def _address(self, buffer: str, first: Int) -> str:
        r = self.rings[buffer]
        at = self.integers.integer(first + r.offset).text
        return f"tiles + {r.name}_stage*{r.nbytes} + {at}" if r.stages > 1 else f"tiles + {at}"

    def body(self, body: tuple[Stmt, ...]) -> None:
        if self.inside:
            super().body(body)
            return
        ends = self._last_uses(body)
        alone = len(body) == 1 and len(self.position.scopes) > 1
        outside = len(self.running)
        for k, s in enumerate(body):
            if tile := _filled(s):
                self.filled.append(self.rings[tile])
                continue
            self._await_tiles(s)
            free = [self.rings[name] for name, at in ends.items() if k in at]
            if _is_products(s):
                zero = body[k - 1] if k and self._fills(body[k - 1], s) else None
                self._issue(s, free, zero is not None)
                continue
            if k + 1 < len(body) and self._fills(s, body[k + 1]):
                continue  # the first product starts from zero
            if k and _are_alternatives(body[k - 1], s):
                continue  # written with the one before
            if k + 1 < len(body) and _are_alternatives(s, body[k + 1]):
                self._alternatives(s, body[k + 1])
                continue
            if isinstance(s, For | If) and any(map(is_product, statements(s.body))):
                self._finish(len(self.running))
            else:
                self._finish_users(s)
            self._statement(s, alone)
            for ring in free:
                self._release(ring)
        if len(self.position.scopes) > 1 and len(self.running) > outside:
            self._finish(len(self.running) - outside)

    def _alternatives(self, first: Stmt, second: Stmt) -> None:
        """Of two statements, one is carried out. Both wait for the same instructions."""
        assert isinstance(first, If)
        assert isinstance(second, If)
        touched = {a.buffer for a in accesses((first, second))}
        count = max((k + 1 for k, g in enumerate(self.running) if g.registers & touched), default=0)
        running = list(self.running)
        p = self.position
        name = p.fresh("first")
        p.write(f"const bool {name} = {self.integers.conditions(first.conds)};")
        for head, s in zip((f"if ({name})", f"if (!{name})"), (first, second), strict=True):
            self.running = list(running)
            with p.braces(head), self.joins.perhaps():
                self.body(s.body)
                self._finish(count - (len(running) - len(self.running)))

    def _last_uses(self, body: tuple[Stmt, ...]) -> dict[str, set[int]]:
        """Behind which statements a tile that is filled here is set free."""
        ends: dict[str, set[int]] = {}
        last: dict[str, int | None] = {}
        for k, s in enumerate(body):
            for c in _copies_of(s):
                name = c.writes[0].buffer
                if last.get(name) is not None:
                    ends.setdefault(name, set()).add(last[name] or 0)
                last[name] = None
            if _copies_of(s):
                continue
            own = {
                c.writes[0].buffer for c in statements((s,)) if isinstance(c, Store) and is_copy(c)
            }
            for a in accesses((s,)):
                if a.buffer in last and a.buffer not in own:
                    last[a.buffer] = k
        for name, at in last.items():
            if at is not None:
                ends.setdefault(name, set()).add(at)
        return ends

    def _await_tiles(self, s: Stmt) -> None:
        used = {a.buffer for a in accesses((s,))}
        for n in dict.fromkeys(r.name for r in self.filled if r.tile in used):
            self.position.write(f"await_barrier({n}_full + 8*{n}_stage, {n}_phase);")
        self.filled = [r for r in self.filled if r.tile not in used]

    def _fills(self, s: Stmt, products: Stmt) -> bool:
        """Whether a statement sets the result of the products behind it to zero."""
        stores = [t for t in statements((s,)) if isinstance(t, Store)]
        if len(stores) != 1 or not _is_products(products):
            return False
        (w,) = stores[0].writes
        results = {t.writes[0].buffer for t in statements((products,)) if isinstance(t, Store)}
        zero = isinstance(w.value, Const) and w.value.value == 0
        return zero and results == {w.buffer}

    def _issue(self, s: Stmt, free: list[_Ring], from_zero: bool) -> None:
        """Starts matrix instructions, which run on their own until they are waited for."""
        p = self.position
        stores = [t for t in statements((s,)) if isinstance(t, Store)]
        results = dict.fromkeys(t.writes[0].buffer for t in stores)
        held = {
            x.buffer for t in stores for n, x in t.operands if p.memories[x.buffer].scope == "local"
        }
        busy = {n for g in self.running for n in g.registers}
        if busy & held:
            self._finish_users(s)
        names = [p.memories[n].name for n in results]
        for name in names:
            if not from_zero:
                p.write(f"pin({name});")
        p.write('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");')
        self.inside, self.from_zero, self.around = True, from_zero, []
        self._statement(s, False)
        self.inside, self.from_zero = False, False
        p.write('asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");')
        stages = []
        for ring in free:
            if ring.stages > 1:
                kept = p.fresh(f"{ring.name}_used")
                p.write(f"const unsigned {kept} = {ring.name}_empty + 8*{ring.name}_stage;")
                stages.append(kept)
            else:
                stages.append(f"{ring.name}_empty")
            p.write(_advance(ring))
        self.running.append(_Group(frozenset({*results, *held}), tuple(results), tuple(stages)))

    def _finish_users(self, s: Stmt) -> None:
        """Waits for the instructions whose registers a statement touches."""
        touched = {a.buffer for a in accesses((s,))}
        users = [k for k, g in enumerate(self.running) if g.registers & touched]
        if users:
            self._finish(users[-1] + 1)

    def _finish(self, count: int) -> None:
        """Waits for the first of the instructions that are under way."""
        if not count:
            return
        p = self.position
        left = len(self.running) - count
        p.write(f'asm volatile("wgmma.wait_group.sync.aligned {left};" ::: "memory");')
        for g in self.running[:count]:
            for name in g.results:
                p.write(f"pin({p.memories[name].name});")
            for barrier in g.free:
                p.write(f"release({barrier});")
        del self.running[:count]

    def _release(self, ring: _Ring) -> None:
        self.position.write(f"release({ring.name}_empty + 8*{ring.name}_stage);")
        self.position.write(_advance(ring))

    def _store(self, s: Store) -> None:
        if not is_product(s):
            super()._store(s)
            return
        product = self.groups.product(s)
        x = product.operands["A"]
        left = self.position.memories[x.buffer]
        turned: bool | None = None
        if left.scope == "local":
            at = linear((q.substitute(product.start) for q in x.index), left.strides) // of(PAIR)
            ranges = {n: of(e) for n, e in self.position.extents.items()}
            first = f"{left.name} + {self.integers.integer(simple_quotients(at, ranges)).text}"
        else:
            first, turned = self.groups.descriptor(product, "A")
        second, turned_b = self.groups.descriptor(product, "B")
        function = optional_sum(self.position.helpers, product.unit, turned, turned_b)
        self.position.write(f"{function}({product.result}, {first}, {second}, {self._adds()});")

    def _adds(self) -> str:
        """Whether a product is added to what is there: not the first one, if that is zero."""
        if not self.from_zero:
            return "1"
        return " || ".join(f"{self.position.loops[x]} != 0" for x in self.around) or "0"

    def _plain(self, s: For, extent: int, pragma: str) -> None:
        before = self.around
        self.around = [*before, s.name] if self.inside else []
        super()._plain(s, extent, pragma)
        self.around = before


def _are_alternatives(a: Stmt, b: Stmt) -> bool:
    """Whether one of the two is carried out, whatever their condition is."""
    if not (isinstance(a, If) and isinstance(b, If) and len(a.conds) == len(b.conds) == 1):
        return False
    if any(is_product(t) or is_copy(t) for t in statements((a, b))):
        return False
    return (a.conds[0] + b.conds[0]).const == -1


def _is_products(s: Stmt) -> bool:
    found = [t for t in statements((s,)) if isinstance(t, Store | Join)]
    return bool(found) and all(map(is_product, found))
