"""Emits launches in which several matrix instructions (wgmma, sm_90a) and other work follow one
another, such as attention. Each tile that the copy engine (TMA) fills has a ring of stages of its
own in shared memory, because tiles are set free at different times.

The warps are specialised as in tensor.py: the producer walks through the same loops as all others,
but does nothing except for copies. Consumers wait for a tile before they first use it, and set it
free behind the last use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

from tilesmith.base.errors import BuildError
from tilesmith.base.template import template
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.group_products import bulk_copy
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.launches import NO_SIZES, overlapping, parameter, scalar, unflatten
from tilesmith.codegen.c.position import ROLL, Names, Position
from tilesmith.codegen.c.ring_consumers import PIN, Consumers
from tilesmith.codegen.c.ring_plan import (
    Ring,
    advance,
    by_producer,
    copies_of,
    filled_tile,
    in_base_two,
    rings_of,
    without_barriers,
    without_copies,
)
from tilesmith.codegen.c.tensor import REGISTERS
from tilesmith.codegen.c.tensor_plan import Copy, is_copy, is_product, resident_blocks
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.ir.intrinsics import WARP, WARPGROUP
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import BARRIERS_NBYTES, TILE_ALIGNMENT
from tilesmith.ir.nodes import Buffer, For, If, Stmt, Store, statements
from tilesmith.ir.notes import Count, ResidentBlocks, TakeTurns

# The kernel's own variables.
_OWN = ("shared_memory", "tiles", "tile", "barriers", "turn", "stride", "block")
# Of these launches, factors have 16 bits: what the instruction is off by does not show.
_EXP2 = """\
__device__ __forceinline__ float power_of_two_f(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}"""


def emit_rings(
    nest: LaunchForm, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers,
    sizes: Mapping[str, int] = NO_SIZES,
) -> tuple[str, Launch]:  # fmt: skip
    """The text of one kernel. `buffers` are those in global memory, in calling order; `sizes` are
    the open ones with the largest value of each.
    """
    if dialect.name != "cuda" or nest.num_threads % WARPGROUP:
        raise BuildError(f"matrix instructions have no {dialect.name} code here")
    helpers.texts.setdefault("tensor", template(__file__, "tensor.cu").rstrip())
    helpers.texts.setdefault("pin", PIN)
    helpers.texts.setdefault("exp2", _EXP2)
    dialect = replace(dialect, functions={**dialect.functions, "exp": "power_of_two_"})
    position = Position(dialect, helpers, Names(_OWN), nest.num_threads)
    threads_ = frozenset(f.name for f in nest.threads)
    body = in_base_two(by_producer(without_barriers(nest.body), threads_))
    nest = replace(nest, body=body)
    uses = list(accesses(without_copies(body)))
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    scalars = [scalar(position, n, most) for n, most in sizes.items()]
    for b in (*arguments, *nest.shared):
        position.declare(b, position.fresh(b.name))
    rings, copies = rings_of(nest, buffers, position)
    groups = nest.num_threads // WARPGROUP
    threads = nest.num_threads + (WARP if groups == 1 else WARPGROUP)
    writer = _Writer(position, nest, rings, copies, groups)
    writer.write()
    params = [f"const __grid_constant__ TensorMap {name}" for name in writer.maps.values()]
    params += [parameter(position, b, b.name in written) for b in arguments]
    params += scalars
    resident = 2 if groups == 1 else 1
    head = f'extern "C" __global__ void __launch_bounds__({threads}, {resident}) {symbol}'
    lines = (f"  {x}" for x in position.scopes[0].lines)
    text = "\n".join([f"{head}({', '.join(params)}) {{", *lines, "}"])
    nbytes = TILE_ALIGNMENT + sum(r.stages * (r.nbytes + BARRIERS_NBYTES) for r in rings.values())
    names = tuple(b.name for b in arguments)
    grid = writer.resident or nest.open_grid.const or 0
    return text, Launch(
        symbol, grid, threads, names, nbytes, maps=tuple(writer.maps), overlaps=True,
        sizes=tuple(sizes.items()),
    )  # fmt: skip


class _Writer:
    """Prints the body of a kernel: its barriers, the producer, and the consumers."""

    def __init__(
        self, position: Position, nest: LaunchForm, rings: dict[str, Ring],
        copies: dict[int, Copy], groups: int,
    ) -> None:  # fmt: skip
        self.position, self.nest, self.rings, self.groups = position, nest, rings, groups
        self.copies = copies
        every = dict.fromkeys(c.tensor for c in copies.values())
        self.maps = {t: position.fresh(f"{t.buffer}_map") for t in every}
        self.statements = Consumers(position, nest, rings)
        self.resident = resident_blocks(nest, _count(nest, ResidentBlocks))
        self.takes_turns = groups > 1 and _count(nest, TakeTurns) > 0

    def write(self) -> None:
        p, consumers = self.position, self.nest.num_threads
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
        registers = REGISTERS.get(self.groups)
        with p.braces(f"if (threadIdx.x >= {consumers})"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.dec.sync.aligned.u32 {registers[0]};");')
            with p.braces(f"if (threadIdx.x == {consumers})"):
                self._tiles(lambda: self._produce(self.nest.body))
        with p.braces("else"):
            if registers:
                p.write(f'asm volatile("setmaxnreg.inc.sync.aligned.u32 {registers[1]};");')
            unflatten(p, self.nest.threads, "threadIdx.x")
            if self.takes_turns:
                self.statements.first_turn(self.groups)
            self._tiles(lambda: self.statements.body(self.nest.body))

    def _tiles(self, body: Callable[[], None]) -> None:
        """What is done for each block's tile: once, or for several ones. Of tiles that take longer
        and longer, those that take longest come first, and every other round goes backwards, so
        that all blocks have about the same work.
        """
        p, resident = self.position, self.resident
        integers, blocks = self.statements.integers, self.nest.open_grid
        grid = integers.in_int(blocks)
        grows = _grows(self.nest)
        number = f"{integers.in_int(blocks - 1)} - turn" if grows else "turn"
        if resident:
            stride = f"2*({resident - 1} - (int)blockIdx.x) + 1" if grows else f"{resident}"
            then = (
                f"turn += stride, stride = {2 * resident} - stride" if grows else "turn += stride"
            )
            head = f"for (int turn = blockIdx.x, stride = {stride}; turn < {grid}; {then})"
            with p.braces(head, ROLL):
                self._tile(number, body)
        else:
            p.write("const int turn = blockIdx.x;")
            self._tile(number, body)

    def _tile(self, number: str, body: Callable[[], None]) -> None:
        p = self.position
        p.write(f"const int block = {number};")
        unflatten(p, self.nest.blocks, "block")
        body()

    def _produce(self, body: tuple[Stmt, ...]) -> None:
        p = self.position
        for tile, run in groupby(body, filled_tile):
            if tile:
                self._copy(self.rings[tile], [c for s in run for c in copies_of(s)])
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

    def _copy(self, ring: Ring, stores: list[Store]) -> None:
        p, integers, n = self.position, self.statements.integers, ring.name
        copies = [self.copies[id(s)] for s in stores]
        p.write(f"await_barrier({n}_empty + 8*{n}_stage, {n}_phase ^ 1);")
        p.write(f"expect_bytes({n}_full + 8*{n}_stage, {sum(c.nbytes for c in copies)});")
        for c in copies:
            function = bulk_copy(p.helpers, len(c.start))
            for k in range(c.chunks):
                first = (c.start[0] + k * c.run, *c.start[1:])
                at = ", ".join(integers.integer(x).text for x in first)
                to = ring.offset + c.at + k * c.chunk_nbytes
                p.write(
                    f"{function}(tiles + {n}_stage*{ring.nbytes} + {to}, {self.maps[c.tensor]}, "
                    f"{at}, {n}_full + 8*{n}_stage);"
                )
        p.write(advance(ring))


def _count(nest: LaunchForm, kind: type[Count]) -> int:
    """The largest number that a loop's note has; 0 if no loop has one."""
    return max((s.count(kind) or 0 for s in statements(nest.body) if isinstance(s, For)), default=0)


def _grows(nest: LaunchForm) -> bool:
    """Whether later blocks have more work: conditions on tiles hold for more of them."""
    blocks = [f.name for f in nest.blocks]
    guards = [
        p for s in statements(nest.body) if isinstance(s, If) for p in s.conds
        if any(map(is_product, statements(s.body)))
    ]  # fmt: skip
    return any((p.coefficient(n).const or 0) > 0 for p in guards for n in blocks)
