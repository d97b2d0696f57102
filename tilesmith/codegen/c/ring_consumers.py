"""Prints what the consumer warps of a launch with rings of tiles (rings.py) do: they wait for
tiles, start matrix instructions, wait for those whose registers are used next, set tiles free
behind the last use, and pack factors that stay in registers.
"""

from __future__ import annotations

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32, DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.c.group_products import GroupProducts, optional_sum
from tilesmith.codegen.c.position import UNROLL, Position
from tilesmith.codegen.c.ring_plan import Ring, advance, copies_of, filled_tile
from tilesmith.codegen.c.statements import Statements, size_of
from tilesmith.codegen.c.tensor_plan import is_copy, is_product
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.intervals import linear, simple_quotients
from tilesmith.expr.ints import ZERO, Int, of
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select, substitute
from tilesmith.ir.intrinsics import HALVES, PAIR, WARPGROUP
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.nests import unguarded
from tilesmith.ir.nodes import Alloc, For, If, Join, Stmt, Store, statements
from tilesmith.ir.notes import TakeTurns

PIN = """\
template <int N> __device__ __forceinline__ void pin(float (&x)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
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


@dataclass(frozen=True, slots=True)
class _Group:
    """Instructions under way: the registers they use, those they write, and the barriers that say
    of the tiles they read that these are free.
    """

    registers: frozenset[str]
    results: tuple[str, ...]
    free: tuple[str, ...]


class Consumers(Statements):
    """The statements of the consumers. Copies are the producer's: of these, nothing is printed."""

    def __init__(self, position: Position, nest: LaunchForm, rings: dict[str, Ring]) -> None:
        super().__init__(position)
        self.groups = GroupProducts(position, self.integers, self.expressions, nest, self._address)
        self.inside = False
        self.rings = rings
        self.filled: list[Ring] = []  # tiles on their way that nothing has waited for yet
        self.running: list[_Group] = []  # instructions under way, in order
        self.from_zero = self.repairing = False
        self.sizes: dict[str, int] = {}  # of registers, by buffer
        local = {s.buffer.name for s in statements(nest.body) if isinstance(s, Alloc)}
        self.packed = {
            x.buffer for s in statements(nest.body) if is_product(s) and isinstance(s, Store)
            for n, x in s.operands if n == "A" and x.buffer in local
        }  # fmt: skip
        self.around: list[str] = []  # loops of the instructions around the place
        self.num_groups = nest.num_threads // WARPGROUP
        self.in_turn = False  # whether groups start their instructions one after another

    def _loop(self, s: For, alone: bool) -> None:
        stores = [t for t in s.body if isinstance(t, Store)]
        if any(w.buffer in self.packed for t in stores for w in t.writes):
            self._pack(s)
            return
        if self.inside:
            self._plain(s, s.trips, UNROLL)
            return
        if s.count(TakeTurns) and self.num_groups > 1 and not self.in_turn:
            self.in_turn = True
            self._loop(s, alone)
            self.in_turn = False
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

    def first_turn(self, groups: int) -> None:
        """The first group begins: the last one says so before it does anything else."""
        with self.position.braces(f"if (threadIdx.x / {WARPGROUP} == {groups - 1})"):
            self.position.write(f'asm volatile("bar.arrive 1, {2 * WARPGROUP};" ::: "memory");')

    def _begin_turn(self) -> None:
        p, threads = self.position, 2 * WARPGROUP
        at = f"1 + threadIdx.x / {WARPGROUP}"
        p.write(f'asm volatile("bar.sync %0, {threads};" :: "r"({at}) : "memory");')

    def _end_turn(self) -> None:
        p, threads = self.position, 2 * WARPGROUP
        at = f"1 + (threadIdx.x / {WARPGROUP} + 1) % {self.num_groups}"
        p.write(f'asm volatile("bar.arrive %0, {threads};" :: "r"({at}) : "memory");')

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
        started = [k for k, s in enumerate(body) if _is_products(s)]
        in_turn = self.in_turn and len(started) > 1
        for k, s in enumerate(body):
            if tile := filled_tile(s):
                self.filled.append(self.rings[tile])
                continue
            self._await_tiles(s)
            free = [self.rings[name] for name, at in ends.items() if k in at]
            if _is_products(s):
                zero = body[k - 1] if k and self._fills(body[k - 1], s) else None
                if in_turn and k == started[0]:
                    self._begin_turn()
                self._issue(s, free, zero is not None)
                if in_turn and k == started[-1]:
                    self._end_turn()
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
            for c in copies_of(s):
                name = c.writes[0].buffer
                if last.get(name) is not None:
                    ends.setdefault(name, set()).add(last[name] or 0)
                last[name] = None
            if copies_of(s):
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

    def _issue(self, s: Stmt, free: list[Ring], from_zero: bool) -> None:
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
            p.write(advance(ring))
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

    def _release(self, ring: Ring) -> None:
        self.position.write(f"release({ring.name}_empty + 8*{ring.name}_stage);")
        self.position.write(advance(ring))

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


def _inner(e: Expr, dtype: DType) -> Expr:
    """What is rounded to halves, still in float32."""
    if isinstance(e, Select):
        return Select(e.cond, _inner(e.a, dtype), _inner(e.b, dtype), FLOAT32)
    if isinstance(e, Cast) and e.x.dtype is FLOAT32 and e.dtype is dtype:
        return e.x
    return Cast(e, FLOAT32)
