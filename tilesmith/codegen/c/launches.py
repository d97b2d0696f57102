"""Emits launches: kernels of a Function in launch form, with parameters and shared memory."""

from __future__ import annotations

from math import prod

from tilesmith.base.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import Launch
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.names import Names
from tilesmith.codegen.c.position import Position
from tilesmith.codegen.c.statements import Statements, extent_of, size_of
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.nodes import Buffer, For

# From sm_90 on, a launch may begin while the one before it ends: the next one may begin as soon as
# all blocks of this one run, and this one waits until the one before is complete.
OVERLAP = """\
__device__ __forceinline__ void await_previous_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}"""
_MAX_GRID = (1 << 31) - 1


def emit_launch(
    nest: LaunchForm, symbol: str, buffers: dict[str, Buffer], dialect: Dialect, helpers: Helpers
) -> tuple[str, Launch]:
    """The text of one kernel. `buffers` are those in global memory, in calling order."""
    grid, threads = nest.grid, nest.num_threads
    if grid > _MAX_GRID:
        raise BuildError(f"{symbol} needs {grid} blocks; a launch has at most {_MAX_GRID}")
    position = Position(dialect, helpers, Names(), threads)
    uses = list(accesses(nest.body))
    used, written = {a.buffer for a in uses}, {a.buffer for a in uses if a.write}
    arguments = [b for name, b in buffers.items() if name in used]
    for b in (*arguments, *nest.shared):
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
    if dialect.name == "cuda":
        helpers.texts.setdefault("overlap", OVERLAP)
        head.append("await_previous_launch();")
    params = ", ".join(parameter(position, b, b.name in written) for b in arguments)
    lines = [*head, *position.scopes[0].lines]
    text = "\n".join(
        [
            f"{dialect.kernel.format(threads=threads)} {symbol}({params}) {{",
            *(f"  {x}" for x in lines),
            "}",
        ]
    )
    names = tuple(b.name for b in arguments)
    return text, Launch(symbol, grid, threads, names, dynamic, overlaps=dialect.name == "cuda")


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


def unflatten(position: Position, loops: tuple[For, ...], number: str) -> None:
    """The values of loops that together count blocks or threads, the outermost slowest."""
    inner = prod(map(extent_of, loops))
    total = inner
    for loop in loops:
        extent = extent_of(loop)
        inner //= extent
        name = position.bind(loop.name, extent)
        if extent == 1:
            continue
        value = number if inner == 1 else f"{number} / {inner}"
        if extent * inner < total:
            value += f" % {extent}"
        position.write(f"const int {name} = {value};")


def parameter(position: Position, b: Buffer, written: bool) -> str:
    dialect = position.dialect
    const = "" if written else "const "
    kind = f"{const}{dialect.spaces['global']}{dialect.type_of(b.dtype)}*"
    return f"{kind} {dialect.restrict} {position.memories[b.name].name}"
