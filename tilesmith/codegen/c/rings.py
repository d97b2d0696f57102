"""Emits launches in which several matrix instructions (wgmma, sm_90a) and other work follow one
another, such as attention. Each tile that the copy engine (TMA) fills has a ring of stages in shared
memory of its own, because tiles are set free at different times.

The warps are specialised as in tensor.py: the producer walks through the same loops as all others,
but does nothing except for copies. Consumers wait for a tile before they first use it, and set it
free behind the last use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilesmith.base.errors import BuildError
from tilesmith.base.template import template
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.launches import overlapping, parameter, unflatten
from tilesmith.codegen.c.position import ROLL, Names, Position
from tilesmith.codegen.c.statements import size_of
from tilesmith.codegen.c.tensor import REGISTERS, GroupStatements, bulk_copy
from tilesmith.codegen.c.tensor_plan import Copy, copy_of, is_copy, is_product
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.ints import Int
from tilesmith.ir.intrinsics import RUN, WARP, WARPGROUP
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import BARRIERS_NBYTES, LEAST_STAGES, TILE_ALIGNMENT
from tilesmith.ir.nodes import Buffer, For, If, Join, Stmt, Store, Sync, statements
from tilesmith.ir.notes import PipelineStages

_PIN = """\
template <int N> __device__ __forceinline__ void pin(float (&x)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
}"""


@dataclass(frozen=True, slots=True)
class _Ring:
    """The stages of one tile in shared memory, and what fills them."""

    tile: str
    stages: int
    offset: int  # of the first stage
    nbytes: int  # of a stage
    barriers: int  # of the first barrier: all that say full, then all that say empty
    copies: tuple[Copy, ...]
    name: str  # of the variables that count


def _rings(nest: LaunchForm, buffers: dict[str, Buffer], position: Position) -> dict[str, _Ring]:
    tiles = {b.name: b for b in nest.shared}
    copies: dict[str, list[Copy]] = {}
    depth: dict[str, int] = {}
    places: dict[str, object] = {}

    def walk(body: tuple[Stmt, ...], stages: int) -> None:
        for s in body:
            if isinstance(s, For):
                walk(s.body, s.count(PipelineStages) or LEAST_STAGES)
            elif isinstance(s, If):
                walk(s.body, stages)
            elif isinstance(s, Store) and is_copy(s):
                copy = copy_of(s, buffers, tiles)
                copies.setdefault(copy.to, []).append(copy)
                depth[copy.to] = stages

    walk(nest.body, 1)
    if copies.keys() != tiles.keys():
        raise BuildError("a tile of a matrix instruction is not filled by the copy engine")
    del places
    found: dict[str, _Ring] = {}
    offset, barriers = 0, 0
    for name, b in tiles.items():
        nbytes = -(-size_of(b) * b.dtype.nbytes // TILE_ALIGNMENT) * TILE_ALIGNMENT
        ring = _Ring(name, depth[name], offset, nbytes, barriers, tuple(copies[name]), position.fresh(name))
        found[name] = ring
        offset += ring.stages * nbytes
        barriers += ring.stages * BARRIERS_NBYTES
    return found


def emit_rings(
    nest: LaunchForm, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers
) -> tuple[str, Launch]:
    """The text of one kernel. `buffers` are those in global memory, in calling order."""
    if dialect.name != "cuda" or nest.num_threads % WARPGROUP:
        raise BuildError(f"matrix instructions have no {dialect.name} code here")
    helpers.texts.setdefault("tensor", template(__file__, "tensor.cu").rstrip())
    helpers.texts.setdefault("pin", _PIN)
    position = Position(dialect, helpers, Names(), nest.num_threads)
    body = _without_barriers(nest.body)
    nest = replace(nest, body=body)
    uses = [a for a in accesses(_without_copies(body))]
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    for b in (*arguments, *nest.shared):
        position.declare(b, position.fresh(b.name))
    rings = _rings(nest, buffers, position)
    groups = nest.num_threads // WARPGROUP
    threads = nest.num_threads + (WARP if groups == 1 else WARPGROUP)
    writer = _Writer(position, nest, rings, groups)
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


def _copies_of(s: Stmt) -> list[Store]:
    """The copies of a statement that is nothing else."""
    inner = s.body if isinstance(s, If) else (s,)
    copies = [t for t in inner if isinstance(t, Store) and is_copy(t)]
    return copies if len(copies) == len(inner) else []


class _Writer:
    def __init__(
        self, position: Position, nest: LaunchForm, rings: dict[str, _Ring], groups: int
    ) -> None:
        self.position, self.nest, self.rings, self.groups = position, nest, rings, groups
        every = dict.fromkeys(c.tensor for r in rings.values() for c in r.copies)
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
        unflatten(p, self.nest.blocks, "blockIdx.x")
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
        for s in body:
            if not any(map(is_copy, statements((s,)))):
                continue
            if isinstance(s, For):
                with p.loop(s.name, s.trips, ROLL):
                    self._produce(s.body)
            elif isinstance(s, If):
                conds = tuple(q for q in s.conds if not self._by_thread(q))
                if conds:
                    with p.braces(f"if ({self.statements.integers.conditions(conds)})"):
                        self._produce(s.body)
                else:
                    self._produce(s.body)
            elif isinstance(s, Store):
                self._copy(self.rings[s.writes[0].buffer], s)

    def _by_thread(self, q: Int) -> bool:
        return bool(q.names & {f.name for f in self.nest.threads})

    def _copy(self, ring: _Ring, s: Store) -> None:
        p, integers, n = self.position, self.statements.integers, ring.name
        p.write(f"await_barrier({n}_empty + 8*{n}_stage, {n}_phase ^ 1);")
        p.write(f"expect_bytes({n}_full + 8*{n}_stage, {sum(c.nbytes for c in ring.copies)});")
        for c in ring.copies:
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


def _advance(r: _Ring) -> str:
    if r.stages == 1:
        return f"{r.name}_phase ^= 1;"
    return f"if (++{r.name}_stage == {r.stages}) {{ {r.name}_stage = 0; {r.name}_phase ^= 1; }}"


class _Statements(GroupStatements):
    def __init__(self, position: Position, nest: LaunchForm, rings: dict[str, _Ring]) -> None:
        super().__init__(position, nest)
        self.rings = rings

    def _address(self, buffer: str, first: Int) -> str:
        r = self.rings[buffer]
        at = self.integers.integer(first + r.offset).text
        return f"tiles + {r.name}_stage*{r.nbytes} + {at}" if r.stages > 1 else f"tiles + {at}"

    def body(self, body: tuple[Stmt, ...]) -> None:
        here = dict.fromkeys(c.writes[0].buffer for s in body for c in _copies_of(s))
        body = tuple(s for s in body if not _copies_of(s))
        alone = len(body) == 1 and len(self.position.scopes) > 1 and not here
        used = {
            name: [k for k, s in enumerate(body) if any(a.buffer == name for a in accesses((s,)))]
            for name in here
        }
        for k, s in enumerate(body):
            for name in (n for n, at in used.items() if at[0] == k):
                n = self.rings[name].name
                self.position.write(f"await_barrier({n}_full + 8*{n}_stage, {n}_phase);")
            if _is_products(s) and not self.inside:
                self._products(s)
            else:
                self._statement(s, alone)
            for name in (n for n, at in used.items() if at[-1] == k):
                r = self.rings[name]
                self.position.write(f"release({r.name}_empty + 8*{r.name}_stage);")
                self.position.write(_advance(r))

    def _products(self, s: Stmt) -> None:
        """Matrix instructions run on their own until they are waited for. No other use of their
        registers may move there.
        """
        p = self.position
        results = dict.fromkeys(
            t.writes[0].buffer for t in statements((s,)) if isinstance(t, Store)
        )
        names = [p.memories[n].name for n in results]
        for name in names:
            p.write(f"pin({name});")
        p.write('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");')
        self.inside = True
        self._statement(s, False)
        self.inside = False
        p.write('asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");')
        p.write('asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");')
        for name in names:
            p.write(f"pin({name});")


def _is_products(s: Stmt) -> bool:
    found = [t for t in statements((s,)) if isinstance(t, Store | Join)]
    return bool(found) and all(map(is_product, found))
