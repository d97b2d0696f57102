"""Matrix instructions of groups of threads (wgmma, sm_90a) as text: the instructions themselves,
where their operands lie in shared memory, copies by the copy engine (TMA), and how the threads of a
group store what they hold together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

from tilesmith.base.dataclass import dataclass
from tilesmith.codegen.c.expressions import Expressions
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.position import UNROLL, Position
from tilesmith.expr.intervals import linear, simple_quotients
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Load, map_ints
from tilesmith.ir.intrinsics import factor_of, ptx_types
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.nests import unguarded
from tilesmith.ir.nodes import For, Intrinsic, Store, Write


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


def instruction(
    helpers: Helpers, unit: Intrinsic, turned_a: bool | None, turned_b: bool, optional: bool = False
) -> str:
    """The function of a matrix instruction. An operand is turned if its rows (of A) or columns (of
    B) run fastest in memory. With None, A is in registers, two elements of 16 bits in each. If it
    is `optional`, a last argument says whether to add to what is there.
    """
    assert unit.fragment is not None
    place = "r" if turned_a is None else int(turned_a)
    name = f"{unit.name.removeprefix('cuda.')}_{place}{int(turned_b)}"
    name += "_optional" if optional else ""
    if name not in helpers.texts:
        rows, columns, depth = unit.name.rpartition("_")[2].split("x")
        first, second, total = ptx_types(unit)
        shape = f"m{rows}n{columns}k{depth}.{total}.{first}.{second}"
        result, constraint = ("int", "+r") if total == "s32" else ("float", "+f")
        n = unit.fragment.registers
        held = ", ".join(f"%{i}" for i in range(n))
        values = ", ".join(f'"{constraint}"(d[{i}])' for i in range(n))
        kind, left, count = "unsigned long long a", '"l"(a)', 1
        turned = f"{int(turned_a or 0)}, "
        if turned_a is None:
            kind, count, turned = "const unsigned* a", 4, ""
            left = ", ".join(f'"r"(a[{i}])' for i in range(4))
        if factor_of(unit).bits != 16:  # their rows (of A) and columns (of B) are contiguous
            assert not turned_a
            assert not turned_b
            orders = ""
        else:
            orders = f", {turned}{int(turned_b)}"
        signs = "" if total == "s32" else ", 1, 1"
        given = ", ".join(f"%{n + i}" for i in range(count))
        given = f"{{{given}}}" if turned_a is None else given
        adds, last, also = (
            (f"%{n + count + 1}", ", int adds", ', "r"(adds)') if optional else ("1", "", "")
        )
        helpers.texts[name] = (
            f"__device__ __forceinline__ void {name}({result}* d, {kind}, "
            f"unsigned long long b{last}) {{\n"
            f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {adds}, 0;\\n"\n'
            f'    "wgmma.mma_async.sync.aligned.{shape} "\n'
            f'    "{{{held}}}, "\n    "{given}, %{n + count}, p{signs}{orders};'
            f'\\n}}"\n    : {values} : {left}, "l"(b){also});\n}}'
        )
    return name


def optional_sum(helpers: Helpers, unit: Intrinsic, turned_a: bool | None, turned_b: bool) -> str:
    return instruction(helpers, unit, turned_a, turned_b, optional=True)


@dataclass(frozen=True, slots=True)
class _Quads:
    """What four threads store together."""

    pair: str  # the loop over the two results of a thread
    write: Write
    at: Int  # where the first thread's are
    conds: tuple[Int, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """One instruction: its result, as text, and its operands, over the loops of its tile."""

    unit: Intrinsic
    result: str
    operands: Mapping[str, Load]
    depth: str  # the loop that is summed over
    start: dict[str, Int]  # the tile's loops at its first element


class GroupProducts:
    """What launches with such instructions write. `address` gives where an element of a tile lies
    in shared memory; it is told the tile, and the bytes from its start.
    """

    def __init__(
        self, position: Position, integers: Integers, expressions: Expressions, nest: LaunchForm,
        address: Callable[[str, Int], str],
    ) -> None:  # fmt: skip
        self.position, self.integers, self.expressions = position, integers, expressions
        self.nest, self.address = nest, address

    def stored(self, s: For) -> bool:
        """Writes the loop if it stores what the threads of quads hold next to each other."""
        quads = self._quads(s)
        if quads is not None:
            self._exchange(s, quads)
        return quads is not None

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

    def product(self, s: Store) -> Product:
        assert s.intrinsic is not None
        m, n, k = (name for name, _ in s.tile)
        start: dict[str, Int] = dict.fromkeys((m, n, k), ZERO)
        (w,) = s.writes
        memory = self.position.memories[w.buffer]
        first = tuple(q.substitute(start) for q in w.index)
        result = f"{memory.name} + {self.integers.address(memory, first)}"
        return Product(s.intrinsic, result, dict(s.operands), k, start)

    def descriptor(self, product: Product, operand: str) -> tuple[str, bool]:
        """Where an operand begins and how it lies; whether rows or columns run fastest in it."""
        x, start = product.operands[operand], product.start
        memory = self.position.memories[x.buffer]
        turned = product.depth not in x.index[-1].names
        nbytes = memory.dtype.nbytes
        far = memory.strides[-3].number * nbytes if turned else 16
        first = linear((q.substitute(start) for q in x.index), memory.strides)
        address = self.address(x.buffer, first * nbytes)
        # distances in bytes / 16: between tiles of 64 columns, and between groups of 8 rows
        rest = (far >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62
        return f"tile_descriptor({address}, {rest:#x}ull)", turned


def _same_in_quads(conds: tuple[Int, ...], thread: str, loops: set[str]) -> bool:
    """Whether the conditions neither tell four threads apart nor iterations of the loops."""
    env, ranges = {thread: var("quad") * 4 + var("lane")}, {"lane": of(4)}
    apart = {"lane", *loops}
    return all(apart.isdisjoint(simple_quotients(p.substitute(env), ranges).names) for p in conds)


def _put(env: Mapping[str, Int], p: Int) -> Int:
    return p.substitute(env)
