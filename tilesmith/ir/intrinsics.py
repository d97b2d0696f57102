"""Hardware instructions for `tensorize`. Each states what it computes, in the DSL, how its operands
lie in memory, and which features a target needs. The back ends emit the code
(codegen/llvm/intrinsics.py, codegen/c/tensor.py).

Those of NVIDIA GPUs (tensor cores) are carried out by the threads of a group together: operands lie
in shared memory, and each thread holds a part of the result in its registers.

    wgmma     four warps, 64 rows: operands in tiles of 128 contiguous bytes, swizzled
    mma       one warp, 16 x 16: operands in any layout

Both sum 32 bytes of a row at once: 32 elements of 8 bits, 16 of 16, or 8 of 32. Of float32 they
read the digits that a TF32 has (`Intrinsic.roundoff`, schedule/rounding.py). Products of bytes are
summed in int32, exactly.

Those of processors are dot products of bytes (VNNI, SDOT) and of bfloat16 (BFDOT, VDPBF16PS),
products of 2 x 2 blocks (SMMLA, BFMMLA) and products of tiles (AMX).

BFDOT and BFMMLA add two products at a time: these are exact, their sum and its sum with what was
there before are rounded to odd (the last digit of what is not exact is 1), which is off by up to
two roundoffs where the nearest number is off by one, and to either side alike. Subnormal numbers
are 0. VDPBF16PS rounds to the nearest, and takes subnormal numbers as 0, too. Sums of K products
are rounded K times, as sums of single terms are: within a quarter of the bound that the check of
kernels allows (`ir/error_bounds.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache, partial

from tilesmith.base.dtype import FLOAT16, FLOAT32, INT32, DType, dtype
from tilesmith.base.identity import digest, identity
from tilesmith.base.machines.machine import BlockProduct, DotProduct
from tilesmith.base.machines.x86_64 import X86_64
from tilesmith.base.target import MACHINES, Target
from tilesmith.expr.dsl import compute, placeholder, reduce_axis
from tilesmith.expr.ints import Int, var
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import cast
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import Fragment, Intrinsic

WARP, WARPGROUP = 32, 128
ROWS = 64  # of one wgmma
_DEPTH_NBYTES, _RUN_NBYTES = 32, 128
# The types of the factors, by the word for them in names of instructions.
_GPU_FACTORS = {
    "f16": ("float16", "float16"),
    "bf16": ("bfloat16", "bfloat16"),
    "tf32": ("float32", "float32"),
    "s8": ("int8", "int8"),
    "u8": ("uint8", "uint8"),
    "u8s8": ("uint8", "int8"),
    "s8u8": ("int8", "uint8"),
}
TF32_ROUNDOFF = 2.0**-11  # of eleven binary digits, with the leading one


def depth_of(d: DType) -> int:
    """Elements of a row that one instruction sums."""
    return _DEPTH_NBYTES // d.nbytes


def run_of(d: DType) -> int:
    """Elements in a row of a swizzled tile."""
    return _RUN_NBYTES // d.nbytes


DEPTH, RUN = depth_of(FLOAT16), run_of(FLOAT16)


def _product(
    size: tuple[int, int, int], left: str, right: str, name: str, total: DType = FLOAT32
) -> Function:
    """C[i, j] += sum_k A[i, k] * B[k, j], summed in `total`; size: rows, columns and depth."""
    rows, columns, depth = size
    a = placeholder((rows, depth), left, name="A")
    b = placeholder((depth, columns), right, name="B")
    k = reduce_axis(depth, name="k")
    c = compute(
        (rows, columns),
        lambda i, j: sum_over(cast(a[i, k], total) * cast(b[k, j], total), axis=k),
        name="C",
    )
    return function([a, b, c], name=name)


def _rest(p: Int, n: int) -> Int:
    return p - p // n * n


@lru_cache  # of the same few for each type
def _fragment(columns: int, threads: int) -> Fragment:
    """Warp w holds rows 16 w to 16 w + 15; a quad of lanes holds a row and the one 8 below it, two
    neighbouring columns of every 8 in each lane.
    """
    i, j = var("d0"), var("d1")
    lane = i // 16 * 32 + _rest(i, 8) * 4 + _rest(j, 8) // 2
    register = j // 8 * 4 + _rest(i, 16) // 8 * 2 + _rest(j, 2)
    return Fragment(threads, lane, register, columns // 2)


def rows_of(fragment: Fragment) -> Fragment:
    """How the same threads hold a value for each row: all four lanes of a quad have the two of its
    rows. `lane` is the first of them.
    """
    i = var("d0")
    return Fragment(fragment.threads, i // 16 * 32 + _rest(i, 8) * 4, _rest(i, 16) // 8, 2)


QUAD = 4  # lanes that hold a row together
PAIR, HALVES, EIGHT = 2, 2, 8


def own_row(thread: Int, half: Int) -> Int:
    """The row of one of the two values that a thread of the group holds."""
    return thread // 32 * 16 + half * EIGHT + _rest(thread, 32) // QUAD


def own_column(thread: Int, chunk: Int, pair: Int) -> Int:
    """The column of one of the two values that a thread has in a chunk of eight."""
    return chunk * EIGHT + _rest(thread, QUAD) * PAIR + pair


def _described(kind: str, word: str, rows: int, columns: int) -> tuple[str, partial[Function]]:
    """The name of an instruction of a GPU, and what it computes."""
    left, right = _GPU_FACTORS[word]
    size = rows, columns, depth_of(dtype(left))
    name = f"{kind}_{word}_{'x'.join(map(str, size))}"
    total = INT32 if dtype(left).is_int else FLOAT32
    return f"cuda.{name}", partial(_product, size, left, right, name, total)


def _wgmma(columns: int, word: str) -> Intrinsic:
    return Intrinsic(
        *_described("wgmma", word, ROWS, columns),
        frozenset({"wgmma"}),
        # The tensor cores of a multiprocessor multiply 4096 bytes per cycle; and they read the
        # rows from shared memory, whatever the number of columns.
        cost=max(columns / 2, ROWS * _DEPTH_NBYTES / 128),
        fragment=_fragment(columns, WARPGROUP),
        roundoff=_roundoff(word),
    )


def _roundoff(word: str) -> float:
    return TF32_ROUNDOFF if word == "tf32" else 0.0


COLUMNS = (256, 192, 128, 96, 64, 32, 16, 8)
WGMMA = tuple(_wgmma(columns, word) for word in _GPU_FACTORS for columns in COLUMNS)
# For results that stay in registers beside others: numbers between these decide what fits.
WGMMA_BETWEEN = tuple(
    _wgmma(columns, word) for word in ("f16", "bf16") for columns in (176, 160, 112, 80)
)


MMA_SIZE = 16  # rows and columns: two instructions of 8 columns each


def _mma(word: str) -> Intrinsic:
    return Intrinsic(
        *_described("mma", word, MMA_SIZE, MMA_SIZE),
        frozenset({"mma"}),
        cost=4,  # cycles of a multiprocessor
        fragment=_fragment(MMA_SIZE, WARP),
        roundoff=_roundoff(word),
    )


MMA = tuple(map(_mma, _GPU_FACTORS))


def factor_of(unit: Intrinsic) -> DType:
    """The type of the factors of a product; of two types of 8 bits, that of the first."""
    factor: DType = unit.description.inputs[0].dtype
    return factor


def factors_of(unit: Intrinsic) -> frozenset[DType]:
    return frozenset(b.dtype for b in unit.description.inputs)


# As instructions call the types of their operands.
_PTX = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "int8": "s8", "uint8": "u8"}


def ptx_types(unit: Intrinsic) -> tuple[str, str, str]:
    """Of the two factors of a product and of its sums, as instructions call them."""
    left, right = (_PTX[b.dtype.name] for b in unit.description.inputs)
    return left, right, "s32" if factor_of(unit).is_int else "f32"


def _copied() -> Function:
    a = placeholder((1,), FLOAT16, name="A")
    return function([a, compute((1,), lambda i: a[i], name="C")], name="bulk_copy")


# The copy engine (TMA) moves a box of a tensor to shared memory while threads compute.
BULK_COPY = Intrinsic("cuda.bulk_copy", _copied)


def group_intrinsics(target: Target, between: bool = False) -> tuple[Intrinsic, ...]:
    """Those that groups of warps of the target carry out; with `between`, of more widths."""
    widths = (*WGMMA, *WGMMA_BETWEEN) if between else WGMMA
    return widths if target.gpu.group_products else ()


def of_halves(units: Iterable[Intrinsic]) -> tuple[Intrinsic, ...]:
    """Those whose factors have 16 bits."""
    return tuple(u for u in units if factor_of(u).bits == 16)


def warp_intrinsics(target: Target) -> tuple[Intrinsic, ...]:
    """Those that a warp of the target carries out."""
    return MMA if target.gpu.warp_products else ()


_WORD = 32  # bits of a lane of a dot product
_SHORT = {"int8": "s8", "uint8": "u8", "bfloat16": "bf16"}


def _dot(lanes: int, left: str, right: str, name: str) -> Function:
    """Sums the products of neighbours into each lane: C[i] += sum_k A[k] * B[i, k]."""
    count = _WORD // dtype(left).bits
    total = FLOAT32 if dtype(left).is_float else INT32
    a = placeholder((count,), left, name="A")
    b = placeholder((lanes, count), right, name="B")
    k = reduce_axis(count, name="k")
    c = compute(
        (lanes,), lambda i: sum_over(cast(a[k], total) * cast(b[i, k], total), axis=k), name="C"
    )
    return function([a, b, c], name=name)


def _of_dot(d: DotProduct) -> Intrinsic:
    name = f"dot_{_SHORT[d.left]}{_SHORT[d.right]}"
    described = partial(_dot, d.lanes, d.left, d.right, name)
    return Intrinsic(f"{d.family}.{name}", described, d.features)


# In the order in which rules try them, with what LLVM calls them.
DOTS = {_of_dot(d): d for m in MACHINES.values() for d in m.dots}

BLOCK = 2  # rows and columns of a product of blocks
_REGISTER = 128  # bits


def _block_product(left: str, right: str, total: str, name: str) -> Function:
    """C[i, j] += sum_k A[i, k] * B[j, k] for two rows and two columns."""
    depth, summed = _REGISTER // BLOCK // dtype(left).bits, dtype(total)
    a = placeholder((BLOCK, depth), left, name="A")
    b = placeholder((BLOCK, depth), right, name="B")
    k = reduce_axis(depth, name="k")
    c = compute(
        (BLOCK, BLOCK),
        lambda i, j: sum_over(cast(a[i, k], summed) * cast(b[j, k], summed), axis=k),
        name="C",
    )
    return function([a, b, c], name=name)


def _of_block(p: BlockProduct) -> Intrinsic:
    name = f"block_{_SHORT[p.left]}{_SHORT[p.right]}"
    described = partial(_block_product, p.left, p.right, p.total, name)
    return Intrinsic(f"{p.family}.{name}", described, p.features)


BLOCKS = {_of_block(p): p for m in MACHINES.values() for p in m.blocks}

assert X86_64.tiles is not None
AMX_ROWS, AMX_NBYTES = X86_64.tiles.rows, X86_64.tiles.nbytes  # of a tile register


def _tiles(rows: int, columns: int, left: str, right: str) -> Intrinsic:
    """Products of AMX tiles: `rows` x `columns` of the result stay in tile registers."""
    depth = AMX_ROWS * _amx_group(left)
    # Other names than those of an earlier layout of B, whose records do not fit any more.
    name = f"tiles_{_SHORT[left]}{_SHORT[right]}_{rows}x{columns}x{depth}"
    return Intrinsic(
        f"amx.{name}",
        partial(_tile_product, rows, columns, left, right, name),
        frozenset({"amx", "amxbf16"} if left == "bfloat16" else {"amx"}),
        # A product takes 16 cycles, as 32 vector instructions do.
        cost=32 * (rows // AMX_ROWS) * (columns // AMX_ROWS),
        by_address=frozenset({"A", "C"}),
        held=True,
    )


def _amx_group(left: str) -> int:
    """Neighbours in the sum that fill 32 bits."""
    return 2 if left == "bfloat16" else 4


def _tile_product(rows: int, columns: int, left: str, right: str, name: str) -> Function:
    """A register of B holds, for each column, groups of neighbours in the sum. In memory one
    register follows the other.
    """
    group = _amx_group(left)
    total = FLOAT32 if left == "bfloat16" else INT32
    described = _product((rows, columns, AMX_ROWS * group), left, right, name, total)
    at, column = var("d0"), var("d1")
    tile = column // AMX_ROWS
    grouped = (tile, at // group, column - tile * AMX_ROWS, at - at // group * group)
    params = tuple(replace(p, layout=grouped if p.name == "B" else None) for p in described.params)
    return replace(described, params=params)


AMX_TILES = {
    _tiles(rows, 32, left, right): (left, right)
    for left, right in (
        ("int8", "int8"),
        ("uint8", "int8"),
        ("int8", "uint8"),
        ("uint8", "uint8"),
        ("bfloat16", "bfloat16"),
    )
    for rows in (32, 16)
}


def operand_types(target: Target) -> frozenset[DType]:
    """What the instructions of a processor take."""
    dots = {unit: (d.left, d.right) for unit, d in DOTS.items()}
    blocks = {unit: (p.left, p.right) for unit, p in BLOCKS.items()}
    taken = {**dots, **blocks, **AMX_TILES}
    usable = (types for unit, types in taken.items() if unit.features <= target.features)
    return frozenset(dtype(name) for types in usable for name in types)


INTRINSICS = (*DOTS, *BLOCKS, *AMX_TILES, *WGMMA, *WGMMA_BETWEEN, *MMA)

_BUILT_IN = {i.name: i for i in INTRINSICS}
AVX512_DOT_U8S8, NEON_DOT_S8S8, NEON_DOT_U8U8 = (
    _BUILT_IN[name] for name in ("avx512.dot_u8s8", "neon.dot_s8s8", "neon.dot_u8u8")
)


@lru_cache(1024)
def label_of(unit: Intrinsic) -> str:
    """What stored traces call an instruction. One of a user's own has, behind its name, a digest of
    what it computes and of its code: measurements of other code are not its measurements.
    """
    known = _BUILT_IN.get(unit.name)
    if known is unit or (known is not None and _content(known) == _content(unit)):
        return unit.name
    return f"{unit.name}@{digest(*_content(unit))[:16]}"


def _content(unit: Intrinsic) -> tuple[str, ...]:
    how: tuple[object, ...] = (unit.features, unit.by_address, unit.held, repr(unit.fragment))
    how += (unit.roundoff,) if unit.roundoff else ()
    return unit.description.digest, identity(how), identity(unit.emitters)
