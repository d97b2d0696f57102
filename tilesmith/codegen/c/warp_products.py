"""Emits matrix instructions of a warp (mma.sync, sm_80): loads the operands of a tile of
instructions from shared memory into registers (ldmatrix), each once, then computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilesmith.base.errors import BuildError
from tilesmith.codegen.c.integers import Integers
from tilesmith.codegen.c.position import UNROLL, Position
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Load
from tilesmith.ir.intrinsics import WARP
from tilesmith.ir.nests import perfect_nest
from tilesmith.ir.nodes import For, Stmt, Store

_LOADED = 8  # contiguous elements, 16 bytes, that one lane's address gives

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
}


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
        even = all(c % _LOADED == 0 for c in start.terms.values())
        wide, far = (by_step, by_line) if by_step == 1 else (by_line, by_step)
        if memory.scope != "shared" or wide != 1 or far % _LOADED or not even:
            function = self._helper("load_elements")
            from_ = f"{memory.name} + {address}, {by_line}, {by_step}, {str(rows).lower()}"
            self.position.write(f"{function}({to}, {from_});")
            return
        # Which row, and which of two runs of 8 elements, each lane's address is of.
        plain = by_step == 1
        if rows == plain:
            row, run = "(threadIdx.x % 16)", f"({lane} / 16)"
        else:
            row, run = f"(threadIdx.x % 8 + {lane} / 16 * 8)", "(threadIdx.x / 8 % 2)"
        function = self._helper("load_matrices" if plain else "load_turned")
        self.position.write(f"{function}({to}, {memory.name} + {address} + {row}*{far} + {run}*8);")

    def _product(self, s: Store, held: dict[str, tuple[str, Int]]) -> None:
        (w,) = s.writes
        assert s.intrinsic is not None
        zero: dict[str, Int] = {name: ZERO for name, _ in s.tile}
        memory = self.position.memories[w.buffer]
        c = self.integers.address(memory, tuple(p.substitute(zero) for p in w.index))
        (a, at), (b, bt) = held["A"], held["B"]
        function = self._instruction(s.intrinsic.name)
        first, second = (self.integers.integer(x).text for x in (at, bt))
        self.position.write(f"{function}({memory.name} + {c}, {a} + {first}, {b} + {second});")

    def _helper(self, name: str) -> str:
        self.position.helpers.texts.setdefault(name, _TEXTS[name])
        return name

    def _instruction(self, unit: str) -> str:
        name = unit.removeprefix("cuda.")
        short = name.split("_")[1]
        lines = "\n".join(
            f'  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32 "\n'
            '    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"\n'
            f'    : "+f"(c[{4 * h}]), "+f"(c[{4 * h + 1}]), "+f"(c[{4 * h + 2}]), '
            f'"+f"(c[{4 * h + 3}])\n'
            '    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), '
            f'"r"(b[{2 * h}]), "r"(b[{2 * h + 1}]));'
            for h in (0, 1)
        )
        head = f"__device__ __forceinline__ void {name}(float* c, const unsigned* a, "
        self.position.helpers.texts.setdefault(name, f"{head}const unsigned* b) {{\n{lines}\n}}")
        return name


def _names(x: Load) -> frozenset[str]:
    return frozenset(n for p in x.index for n in p.names)
