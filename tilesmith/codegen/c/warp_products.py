"""Emits matrix instructions of a warp (mma.sync, sm_80): loads the operands of a tile of
instructions from shared memory into registers (ldmatrix), each once, then computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilesmith.base.dtype import FLOAT32, DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.position import UNROLL, Position
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Load
from tilesmith.ir.intrinsics import WARP, ptx_types
from tilesmith.ir.nests import perfect_nest
from tilesmith.ir.nodes import For, Intrinsic, Stmt, Store

_LOADED_NBYTES = 16  # contiguous, that one lane's address gives

_TEXTS = {
    # Each lane gives the address of a row of one of four matrices of 8 x 8 elements.
    "load_matrices": """\
__device__ __forceinline__ void load_matrices(unsigned* r, const unsigned short* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
    : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory");
}""",
    "load_turned": """\
__device__ __forceinline__ void load_turned(unsigned* r, const unsigned short* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
    : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory");
}""",
    # The same one by one: `line` is the distance of rows of A or columns of B, `step` that along k.
    "load_elements": """\
__device__ __forceinline__ void load_elements(unsigned* r, const unsigned short* p, int line,
                                              int step, bool rows) {
  const int lane = threadIdx.x % 32;
  #pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int i = lane / 4 + 8*(rows ? q % 2 : q / 2), k = lane % 4 * 2 + 8*(rows ? q / 2 : q % 2);
    r[q] = (unsigned)p[i*line + k*step] | (unsigned)p[i*line + (k + 1)*step] << 16;
  }
}""",
    "load_bytes": """\
__device__ __forceinline__ void load_bytes(unsigned* r, const void* from, int line, int step,
                                           bool rows) {
  const unsigned char* p = (const unsigned char*)from;
  const int lane = threadIdx.x % 32;
  #pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int i = lane / 4 + 8*(rows ? q % 2 : q / 2), k = lane % 4 * 4 + 16*(rows ? q / 2 : q % 2);
    const unsigned low = p[i*line + k*step] | (unsigned)p[i*line + (k + 1)*step] << 8;
    const unsigned high = p[i*line + (k + 2)*step] | (unsigned)p[i*line + (k + 3)*step] << 8;
    r[q] = low | high << 16;
  }
}""",
    "load_words": """\
__device__ __forceinline__ void load_words(unsigned* r, const float* p, int line, int step,
                                           bool rows) {
  const int lane = threadIdx.x % 32;
  #pragma unroll
  for (int q = 0; q < 4; ++q) {
    const int i = lane / 4 + 8*(rows ? q % 2 : q / 2), k = lane % 4 + 4*(rows ? q / 2 : q % 2);
    r[q] = __float_as_uint(p[i*line + k*step]);
  }
}""",
    # Rounds to the nearest, which instructions do not: they cut digits off.
    "round_to_tf32": """\
__device__ __forceinline__ void round_to_tf32(unsigned* r) {
  #pragma unroll
  for (int q = 0; q < 4; ++q)
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[q]) : "f"(__uint_as_float(r[q])));
}""",
}
# The one-by-one load of elements, by their bytes.
_ELEMENTS = {1: "load_bytes", 2: "load_elements", 4: "load_words"}


def product_of(s: Stmt) -> tuple[list[For], Store] | None:
    """The loops of a tile of instructions and its statement, if s is one: loops directly inside of
    one another that each move one operand only.
    """
    loops, body = perfect_nest((s,))
    if len(body) != 1 or not isinstance(s := body[0], Store):
        return None
    if s.intrinsic is None or s.intrinsic.fragment is None:
        return None
    if s.intrinsic.fragment.threads != WARP:
        return None
    a, b = (_names(x) for n, x in s.operands if n != s.intrinsic.output)
    return (loops, s) if all((f.name in a) != (f.name in b) for f in loops) else None


class WarpProducts:
    def __init__(self, position: Position, integers: Integers) -> None:
        self.position, self.integers = position, integers

    def emit(self, loops: Sequence[For], s: Store) -> None:
        assert s.intrinsic is not None
        if self.position.dialect.name != "cuda":
            raise BuildError(f"{s.intrinsic.name} has no {self.position.dialect.name} code")
        if self.position.threads % WARP:
            raise BuildError(f"{self.position.threads} threads are not a multiple of a warp")
        m, n, k = (name for name, _ in s.tile)
        operands = dict(s.operands)
        p = self.position
        with p.braces(""):
            held = {
                "A": self._loaded(loops, operands["A"], m, k, rows=True),
                "B": self._loaded(loops, operands["B"], n, k, rows=False),
            }
            self._nest(loops, lambda: self._product(s, held))

    def _nest(self, loops: Sequence[For], body: Callable[[], None]) -> None:
        if not loops:
            body()
            return
        with self.position.loop(loops[0].name, loops[0].trips, UNROLL):
            self._nest(loops[1:], body)

    def _loaded(
        self, loops: Sequence[For], x: Load, line: str, step: str, rows: bool
    ) -> tuple[str, Int]:
        """The registers with an operand of all instructions, and where one's begins."""
        mine = [f for f in loops if f.name in _names(x)]
        name = self.position.fresh("a" if rows else "b")
        count = prod(f.trips for f in mine)
        self.position.write(f"unsigned {name}[{4 * count}];")
        at = linear((var(f.name) for f in mine), row_major(tuple(f.extent for f in mine))) * 4
        self._nest(mine, lambda: self._load(name, at, x, line, step, rows))
        return name, at

    def _load(self, name: str, at: Int, x: Load, line: str, step: str, rows: bool) -> None:
        memory = self.position.memories[x.buffer]
        zero: dict[str, Int] = dict.fromkeys((line, step), ZERO)
        place = linear(x.index, memory.strides)
        start = place.substitute(zero)
        by_line, by_step = (
            (place.substitute({**zero, n: of(1)}) - start).number for n in (line, step)
        )
        address = self.integers.address(memory, tuple(p.substitute(zero) for p in x.index))
        lane = "threadIdx.x % 32"
        to = f"{name} + {self.integers.integer(at).text}"
        nbytes = memory.dtype.nbytes
        loaded = _LOADED_NBYTES // nbytes
        even = all(c % loaded == 0 for c in start.terms.values())
        wide, far = (by_step, by_line) if by_step == 1 else (by_line, by_step)
        turned = by_step != 1
        aligned = memory.scope == "shared" and wide == 1 and far % loaded == 0 and even
        if not aligned or (turned and nbytes != 2):  # only elements of 16 bits are turned
            function = self._helper(_ELEMENTS[nbytes])
            from_ = f"{memory.name} + {address}, {by_line}, {by_step}, {str(rows).lower()}"
            self.position.write(f"{function}({to}, {from_});")
            self._round(memory.dtype, to)
            return
        # Which row, and which of two runs of 8 elements, each lane's address is of.
        if rows != turned:
            row, run = "(threadIdx.x % 16)", f"({lane} / 16)"
        else:
            row, run = f"(threadIdx.x % 8 + {lane} / 16 * 8)", "(threadIdx.x / 8 % 2)"
        function = self._helper("load_turned" if turned else "load_matrices")
        from_ = f"{memory.name} + {address} + {row}*{far} + {run}*{loaded}"
        if nbytes != 2:
            from_ = f"(const unsigned short*)({from_})"
        self.position.write(f"{function}({to}, {from_});")
        self._round(memory.dtype, to)

    def _round(self, d: DType, registers: str) -> None:
        if d is FLOAT32:
            self.position.write(f"{self._helper('round_to_tf32')}({registers});")

    def _product(self, s: Store, held: dict[str, tuple[str, Int]]) -> None:
        (w,) = s.writes
        assert s.intrinsic is not None
        zero: dict[str, Int] = {name: ZERO for name, _ in s.tile}
        memory = self.position.memories[w.buffer]
        c = self.integers.address(memory, tuple(p.substitute(zero) for p in w.index))
        (a, at), (b, bt) = held["A"], held["B"]
        function = self._instruction(s.intrinsic)
        first, second = (self.integers.integer(x).text for x in (at, bt))
        self.position.write(f"{function}({memory.name} + {c}, {a} + {first}, {b} + {second});")

    def _helper(self, name: str) -> str:
        self.position.helpers.texts.setdefault(name, _TEXTS[name])
        return name

    def _instruction(self, unit: Intrinsic) -> str:
        name = unit.name.removeprefix("cuda.")
        depth = name.rpartition("x")[2]
        first, second, total = ptx_types(unit)
        result, constraint = ("int", "+r") if total == "s32" else ("float", "+f")
        lines = "\n".join(
            f'  asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.'
            f'{total}.{first}.{second}.{total} "\n'
            '    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"\n    : '
            + ", ".join(f'"{constraint}"(c[{4 * h + i}])' for i in range(4))
            + '\n    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), '
            f'"r"(b[{2 * h}]), "r"(b[{2 * h + 1}]));'
            for h in (0, 1)
        )
        head = f"__device__ __forceinline__ void {name}({result}* c, const unsigned* a, "
        self.position.helpers.texts.setdefault(name, f"{head}const unsigned* b) {{\n{lines}\n}}")
        return name


def _names(x: Load) -> frozenset[str]:
    return frozenset(n for p in x.index for n in p.names)
