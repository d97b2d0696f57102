"""Emits launches: kernels of a Function in launch form, with parameters and shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilesmith.base.dtype import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64, DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.position import Names, Position
from tilesmith.codegen.c.statements import Statements, size_of
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.dynamic import map_loads
from tilesmith.expr.ints import ONE, product
from tilesmith.expr.nodes import Load
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.nodes import Buffer, For, Stmt, Store, Write, rewrite

# From sm_90 on, a launch may begin before the one in front of it is complete, for which it waits
# itself: when all blocks of that one have ended, or earlier if they all say so. They do so only
# before a launch of the same kernel, such as one that adds parts up. Blocks of another kernel would
# gather on the multiprocessors that have room first, and keep others idle: convolutions of 112
# blocks took up to twice as long on an H200.
OVERLAP = """\
__device__ __forceinline__ void await_previous_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}"""
NEXT = """\
__device__ __forceinline__ void begin_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}"""
MAX_GRID = (1 << 31) - 1
# The largest value of an open size whose range is not larger: what is added to it in rounding up to
# tiles stays within an int.
MOST_OF_SIZE = (1 << 31) - (1 << 16)
NO_SIZES: Mapping[str, int] = {}


def emit_launch(
    nest: LaunchForm, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers,
    followed: bool = False, sizes: Mapping[str, int] = NO_SIZES,
) -> tuple[str, Launch]:  # fmt: skip
    """The text of one kernel. `buffers` are those in global memory, in calling order. It may be
    `followed` by another one of the same Function. `sizes` are the open ones with the largest
    value of each; they are arguments behind the buffers.
    """
    open_grid, threads = nest.open_grid, nest.num_threads
    grid = 0 if open_grid.const is None else open_grid.const
    if grid > MAX_GRID:
        raise BuildError(f"{symbol} needs {grid} blocks; a launch has at most {MAX_GRID}")
    if nest.cluster > 1 and not dialect.cluster:
        raise BuildError(f"{symbol} needs clusters of blocks, which {dialect.name} does not have")
    position = Position(dialect, helpers, Names(), threads)
    nest, remote = with_remote_parts(nest)
    scalars = [scalar(position, n, most) for n, most in sizes.items()]
    uses = list(accesses(nest.body))
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    for b in (*arguments, *nest.shared, *remote):
        position.declare(b, position.fresh(b.name))
    for loops, number in ((nest.blocks, dialect.block), (nest.threads, dialect.thread)):
        unflatten(position, loops, number)
    statements = Statements(position)
    statements.body(nest.body)
    arrays = [
        (position.memories[b.name].name, b.dtype, size_of(b)) for b in nest.shared if b.name in used
    ]
    arrays += [(name, _computed(d), threads) for name, d in statements.joins.arrays]
    head, dynamic = _shared_memory(position, arrays)
    for b, (owner, rank) in remote.items():
        name, own = position.memories[b.name].name, position.memories[owner].name
        kind = dialect.type_of(b.dtype)
        head += [x.format(type=kind, name=name, own=own, rank=rank) for x in dialect.remote]
    if dialect.name == "cuda":
        head += overlapping(helpers, followed)
    params = ", ".join([*(parameter(position, b, b.name in written) for b in arguments), *scalars])
    lines = [*head, *position.scopes[0].lines]
    text = "\n".join(
        [
            f"{_kernel(dialect, threads, nest.cluster)} {symbol}({params}) {{",
            *(f"  {x}" for x in lines),
            "}",
        ]
    )
    names = tuple(b.name for b in arguments)
    # Clusters begin when all their blocks can; how that goes with early launches was not measured.
    early = dialect.name == "cuda" and nest.cluster == 1
    return text, Launch(
        symbol, grid, threads, names, dynamic, overlaps=early, sizes=tuple(sizes.items())
    )


def overlapping(helpers: Helpers, followed: bool) -> list[str]:
    """What a kernel of CUDA begins with, so that launches may overlap."""
    helpers.texts.setdefault("overlap", OVERLAP)
    if not followed:
        return ["await_previous_launch();"]
    helpers.texts.setdefault("next", NEXT)
    return ["begin_next_launch();", "await_previous_launch();"]


def _kernel(dialect: Dialect, threads: int, cluster: int) -> str:
    head = dialect.kernel.format(threads=threads)
    return f"{head} {dialect.cluster.format(blocks=cluster)}" if cluster > 1 else head


def with_remote_parts(nest: LaunchForm) -> tuple[LaunchForm, dict[Buffer, tuple[str, int]]]:
    """The launch with a buffer for each block's part of one that a cluster shares, which is indexed
    by the block first. A block writes its own part only. And those that are read: the name of the
    own part, and the number of the block.
    """
    cluster = {b.name: b for b in nest.shared if b.scope == "cluster"}
    if not cluster:
        return nest, {}
    remote: dict[Buffer, tuple[str, int]] = {}
    own = {name: _part(b, name) for name, b in cluster.items()}

    def read(x: Load) -> Load:
        if x.buffer not in cluster:
            return x
        rank = x.index[0].const
        if rank is None:
            raise BuildError(f"{x.buffer} is read at {x.index[0]}, which is not one block's part")
        b = _part(cluster[x.buffer], f"{x.buffer}.{rank}")
        remote[b] = x.buffer, rank
        return Load(b.name, x.index[1:], x.dtype)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Store):
            return (s,)
        writes = []
        for w in s.writes:
            index = w.index[1:] if w.buffer in cluster else w.index
            writes.append(Write(w.buffer, index, map_loads(w.value, read)))
        return (replace(s, writes=tuple(writes)),)

    body = rewrite(nest.body, go)
    shared = tuple(own.get(b.name, b) for b in nest.shared)
    return replace(nest, body=body, shared=shared), remote


def _part(b: Buffer, name: str) -> Buffer:
    """The part of one block."""
    assert b.layout is None
    assert b.align is None
    return replace(b, name=name, shape=b.shape[1:], scope="shared")


def _shared_memory(
    position: Position, arrays: list[tuple[str, DType, int]]
) -> tuple[list[str], int]:
    """Declares the arrays; the bytes that the launch has to give, if they are too many to be
    declared by themselves.
    """
    dialect = position.dialect
    total = sum(_padded(n * d.nbytes) for _, d, n in arrays)
    limit = dialect.static_shared_nbytes
    if limit is None or total <= limit:
        kind = f"{dialect.shared}{dialect.aligned}"
        return [f"{kind}{dialect.type_of(d)} {name}[{n}];" for name, d, n in arrays], 0
    arena = position.names.fresh("shared_memory")
    lines, offset = [dialect.arena.format(name=arena)], 0
    for name, d, n in arrays:
        t = dialect.type_of(d)
        lines.append(
            f"{t}* const {name} = ({t}*)({arena} + {offset});"
            if offset
            else f"{t}* const {name} = ({t}*){arena};"
        )
        offset += _padded(n * d.nbytes)
    return lines, total


def _padded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def _computed(d: DType) -> DType:
    return FLOAT32 if d in (FLOAT16, BFLOAT16) else d


def scalar(position: Position, name: str, largest: int) -> str:
    """An open size as an argument."""
    kind = position.dialect.type_of(INT32 if largest <= MOST_OF_SIZE else INT64)
    return f"const {kind} {position.size(name, largest)}"


def unflatten(position: Position, loops: tuple[For, ...], number: str) -> None:
    """The values of loops that together count blocks or threads, the outermost slowest."""
    if any(f.extent.const is None for f in loops):
        _unflatten_open(position, loops, number)
        return
    inner = prod(f.trips for f in loops)
    total = inner
    for loop in loops:
        extent = loop.trips
        inner //= extent
        name = position.bind(loop.name, extent)
        if extent == 1:
            continue
        value = number if inner == 1 else f"{number} / {inner}"
        if extent * inner < total:
            value += f" % {extent}"
        position.write(f"const int {name} = {value};")


def _unflatten_open(position: Position, loops: tuple[For, ...], number: str) -> None:
    """The same for counts that depend on open sizes. The grid, their product, fits an int."""
    integers = Integers(position)
    for k, loop in enumerate(loops):
        name = bind_open(position, loop)
        inner = product(f.extent for f in loops[k + 1 :])
        value = number if inner == ONE else f"{number} / ({integers.in_int(inner)})"
        if k:
            value = f"({value}) % ({integers.in_int(loop.extent)})"
        position.write(f"const int {name} = {value};")


def bind_open(position: Position, loop: For) -> str:
    """The C name of a loop over blocks whose number depends on open sizes."""
    most = Integers(position).range_of(loop.extent)
    assert most is not None
    return position.bind(loop.name, min(max(1, most[1]), MAX_GRID))


def parameter(position: Position, b: Buffer, written: bool) -> str:
    dialect = position.dialect
    const = "" if written else "const "
    kind = f"{const}{dialect.spaces['global']}{dialect.type_of(b.dtype)}*"
    return f"{kind} {dialect.restrict} {position.memories[b.name].name}"
