"""Matrix instructions of NVIDIA GPUs. The threads of a group carry one out together: operands lie
in shared memory, and each thread holds a part of the result in its registers.

    wgmma     four warps, 64 rows: operands in tiles of 64 contiguous elements, swizzled
    mma       one warp, 16 x 16: operands in any layout
"""

from __future__ import annotations

from tilesmith.base.dtype import FLOAT32
from tilesmith.base.target import Target
from tilesmith.expr.dsl import compute, placeholder, reduce_axis
from tilesmith.expr.ints import Int, var
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import cast
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import Fragment, Intrinsic

WARP, WARPGROUP = 32, 128
ROWS, DEPTH = 64, 16  # of one wgmma
# Elements of 16 bits in a row of a swizzled tile, 128 bytes.
RUN = 64
_SHORT = {"float16": "f16", "bfloat16": "bf16"}
DTYPES = tuple(_SHORT)


def _product(rows: int, columns: int, depth: int, dtype: str, name: str) -> Function:
    """C[i, j] += sum_k A[i, k] * B[k, j], summed in float32."""
    a = placeholder((rows, depth), dtype, name="A")
    b = placeholder((depth, columns), dtype, name="B")
    k = reduce_axis(depth, name="k")
    c = compute(
        (rows, columns),
        lambda i, j: sum_over(cast(a[i, k], FLOAT32) * cast(b[k, j], FLOAT32), axis=k),
        name="C",
    )
    return function([a, b, c], name=name)


def _rest(p: Int, n: int) -> Int:
    return p - p // n * n


def _fragment(columns: int, threads: int) -> Fragment:
    """Warp w holds rows 16 w to 16 w + 15; a quad of lanes holds a row and the one 8 below it, two
    neighbouring columns of every 8 in each lane.
    """
    i, j = var("d0"), var("d1")
    lane = i // 16 * 32 + _rest(i, 8) * 4 + _rest(j, 8) // 2
    register = j // 8 * 4 + _rest(i, 16) // 8 * 2 + _rest(j, 2)
    return Fragment(threads, lane, register, columns // 2)


def _wgmma(columns: int, dtype: str) -> Intrinsic:
    name = f"wgmma_{_SHORT[dtype]}_{ROWS}x{columns}x{DEPTH}"
    return Intrinsic(
        f"cuda.{name}",
        _product(ROWS, columns, DEPTH, dtype, name),
        frozenset({"wgmma"}),
        # The tensor cores of a multiprocessor do 2048 multiply-adds per cycle.
        cost=columns / 2,
        fragment=_fragment(columns, WARPGROUP),
    )


WGMMA = tuple(_wgmma(columns, dtype) for dtype in DTYPES for columns in (256, 192, 128, 96, 64, 32))


MMA_SIZE = 16  # rows, columns and depth: two instructions of 8 columns each


def _mma(dtype: str) -> Intrinsic:
    name = f"mma_{_SHORT[dtype]}_{MMA_SIZE}x{MMA_SIZE}x{MMA_SIZE}"
    return Intrinsic(
        f"cuda.{name}",
        _product(MMA_SIZE, MMA_SIZE, MMA_SIZE, dtype, name),
        frozenset({"mma"}),
        cost=4,  # cycles of a multiprocessor
        fragment=_fragment(MMA_SIZE, WARP),
    )


MMA = tuple(map(_mma, DTYPES))


def _copied() -> Function:
    a = placeholder((1,), DTYPES[0], name="A")
    return function([a, compute((1,), lambda i: a[i], name="C")], name="bulk_copy")


# The copy engine (TMA) moves a box of a tensor to shared memory while threads compute.
BULK_COPY = Intrinsic("cuda.bulk_copy", _copied())


def group_intrinsics(target: Target) -> tuple[Intrinsic, ...]:
    """Those that groups of warps of the target carry out."""
    return WGMMA if target.gpu.group_products else ()


def warp_intrinsics(target: Target) -> tuple[Intrinsic, ...]:
    """Those that a warp of the target carries out."""
    return MMA if target.gpu.warp_products else ()
