"""Helper functions of the generated C: operations for which C has no operator of the right meaning
(expr/semantics.py). A module gets those that it calls.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.base.dtype import INT64, DType
from tilesmith.codegen.c.dialect import Dialect

# {T} is the type, {U} the unsigned integer of the same width, {W} that of at least 32 bits, {least}
# and {bits} belong to the type, {f} is the suffix of its functions.
_INTEGERS = {
    # An integer divided by 0 is 0, and the least one by -1 wraps around.
    "floordiv": (
        "if (b == 0) return 0;{minus_one}\n  {T} q = a / b;\n"
        "  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;"
    ),
    "mod": (
        "if (b == 0{or_minus_one}) return 0;\n  {T} r = a % b;\n"
        "  return r != 0 && (r < 0) != (b < 0) ? r + b : r;"
    ),
    "truncdiv": "if (b == 0) return 0;{minus_one}\n  return a / b;",
    "fmod": "return b == 0{or_minus_one} ? 0 : a % b;",
    # A shift by the width or more leaves nothing, or the sign.
    "shl": "return ({U})b < {bits} ? ({T})(({W})a << b) : 0;",
    "shr": "return a >> (({U})b < {bits} ? b : {bits} - 1);",
}
_UNSIGNED = {
    "floordiv": "return b == 0 ? 0 : a / b;",
    "mod": "return b == 0 ? 0 : a % b;",
    "truncdiv": "return b == 0 ? 0 : a / b;",
    "fmod": "return b == 0 ? 0 : a % b;",
    "shl": "return b < {bits} ? ({T})(({W})a << b) : 0;",
    "shr": "return b < {bits} ? a >> b : 0;",
}
_FLOATS = {
    # NaN if one side is NaN
    "max": "return a > b || a != a ? a : b;",
    "min": "return a < b || a != a ? a : b;",
}
_CUDA_EXTREME = """\
#if __CUDA_ARCH__ >= 800
  float r;
  asm("{op}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return a {sign} b || a != a ? a : b;
#endif"""

_CUDA_HALVES = {
    "float16_to_float": ("float", "unsigned short", "return __nv_half2float(x);"),
    "float_to_float16": ("unsigned short", "float", "return __nv_float2half_rn(x);"),
    "double_to_float16": ("unsigned short", "double", (
        'unsigned short h;\n  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(h) : "d"(x));\n  return h;'
    )),
    "bfloat16_to_float": ("float", "unsigned short", "return __uint_as_float((unsigned)x << 16);"),
    "float_to_bfloat16": ("unsigned short", "float", (
        "#if __CUDA_ARCH__ >= 800\n  unsigned short h;\n"
        '  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));\n  return h;\n#else\n'
        "  unsigned u = __float_as_uint(x);\n"
        "  return (x != x ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16;\n#endif"
    )),
}  # fmt: skip
# Functions of libdevice, which NVRTC links. The header that declares them takes longer to read than
# a kernel to compile; and unlike `asm`, the compiler moves and merges them.
_LIBDEVICE = {
    "__nv_half2float": 'extern "C" __device__ float __nv_half2float(unsigned short);',
    "__nv_float2half_rn": 'extern "C" __device__ unsigned short __nv_float2half_rn(float);',
}
_OPENCL_HALVES = {
    "float16_to_float": ("float", "ushort", "return vload_half(0, (const half*)&x);"),
    "float_to_float16": ("ushort", "float", (
        "ushort h;\n  vstore_half_rte(x, 0, (half*)&h);\n  return h;"
    )),
    "double_to_float16": ("ushort", "double", (
        "ushort h;\n  vstore_half_rte(x, 0, (half*)&h);\n  return h;"
    )),
    "bfloat16_to_float": ("float", "ushort", "return as_float((uint)x << 16);"),
    "float_to_bfloat16": ("ushort", "float", (
        "uint u = as_uint(x);\n"
        "  return (x != x ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16;"
    )),
}  # fmt: skip


# Atomic functions that a language has, by operation and whether it is one of floats.
_ATOMIC = {
    ("cuda", "add", True): "atomicAdd", ("cuda", "add", False): "atomicAdd",
    ("cuda", "max", False): "atomicMax", ("cuda", "min", False): "atomicMin",
    ("opencl", "add", False): "atomic_add", ("opencl", "max", False): "atomic_max",
    ("opencl", "min", False): "atomic_min",
}  # fmt: skip
# From a float to its bits and back.
_BITS = {
    "cuda": {
        "float32": ("__float_as_uint", "__uint_as_float"),
        "float64": ("(unsigned long long)__double_as_longlong", "__longlong_as_double"),
    },
    "opencl": {"float32": ("as_uint", "as_float"), "float64": ("as_ulong", "as_double")},
}


class Helpers:
    """The helpers that a module calls so far."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.texts: dict[str, str] = {}

    def _add(self, name: str, make: Callable[[], tuple[str, str, str]]) -> str:
        if name not in self.texts:
            kind, args, body = make()
            first = "" if body.startswith("#") else "  "
            declared = "".join(f"{text}\n" for f, text in _LIBDEVICE.items() if f"{f}(" in body)
            self.texts[name] = (
                f"{declared}{self.dialect.function} {kind} {name}({args}) {{\n{first}{body}\n}}"
            )
        return name

    def binary(self, op: str, d: DType) -> str:
        """The function of two values of a dtype: {op}_{dtype}."""
        return self._add(f"{op}_{d.name}", lambda: self._binary(op, d))

    def _binary(self, op: str, d: DType) -> tuple[str, str, str]:
        t = self.dialect.value_type(d)
        args = f"{t} a, {t} b"
        if d.is_float:
            return t, args, self._floats(op, t, d)
        unsigned = self.unsigned(d)
        wide = self.unsigned(d, least=32)
        table = _UNSIGNED if d.kind == "u" else _INTEGERS
        body = table[op].format(
            T=t, U=unsigned, W=wide, bits=d.bits,
            minus_one=f"\n  if (b == -1) return ({t})(0 - ({wide})a);",
            or_minus_one=" || b == -1",
        )  # fmt: skip
        return t, args, body

    def _floats(self, op: str, t: str, d: DType) -> str:
        cuda = self.dialect.name == "cuda"
        if op in ("max", "min"):
            if cuda and t == "float":
                return _CUDA_EXTREME.format(op=op, sign=">" if op == "max" else "<")
            return _FLOATS[op]
        # mod: every step is rounded by itself, as on a CPU, so that a - b*(a // b) is what it says
        floor = self.dialect.call("floor", d)
        if cuda:
            k = "f" if t == "float" else "d"
            return f"return __{k}sub_rn(a, __{k}mul_rn({floor}(__{k}div_rn(a, b)), b));"
        off = "#pragma OPENCL FP_CONTRACT OFF"
        return f"{off}\n  {t} whole = {floor}(a / b) * b;\n  return a - whole;"

    def atomic(self, op: str, d: DType, joined: str) -> str:
        """The function that makes an element a the value `joined` of a and b, without another
        thread coming in between.
        """
        t, cuda = self.dialect.type_of(d), self.dialect.name == "cuda"
        bits = self.unsigned(d)
        space = self.dialect.spaces["global"]
        volatile = "" if cuda else "volatile "
        name = _ATOMIC.get((self.dialect.name, op, d.kind == "f"))
        if name is not None and (not d.is_float or d.bits == 32 or cuda):
            at = {"add": bits}.get(op, t) if not d.is_float else t
            if op != "add" and cuda and d is INT64:
                at = "long long"
            prefix = name if cuda or d.bits == 32 else name.replace("atomic_", "atom_")
            body = f"{prefix}(({volatile}{space}{at}*)p, ({at})b);"
        else:
            swap = "atomicCAS" if cuda else f"{'atomic' if d.bits == 32 else 'atom'}_cmpxchg"
            to_bits, of_bits = _BITS[self.dialect.name].get(d.name, (f"({bits})", f"({t})"))
            body = (
                f"{volatile}{space}{bits}* q = ({volatile}{space}{bits}*)p;\n"
                f"  {bits} old = *q, seen;\n"
                "  do {\n"
                "    seen = old;\n"
                f"    const {t} a = {of_bits}(seen);\n"
                f"    old = {swap}(q, seen, {to_bits}({joined}));\n"
                "  } while (old != seen);"
            )
        called = f"atomic{'64' if d.bits == 64 else ''}_{op}_{d.name}"
        return self._add(called, lambda: ("void", f"{space}{t}* p, {t} b", body))

    def sigmoid(self, d: DType) -> str:
        """e^-|x| cannot overflow, and over 1 + e^-|x| it keeps the small results of negative x."""
        t, name = self.dialect.value_type(d), "sigmoid_double" if d.bits == 64 else "sigmoid_float"
        exp, fabs = self.dialect.call("exp", d), self.dialect.call("abs", d)
        one, zero = ("1.0", "0.0") if d.bits == 64 else ("1.0f", "0.0f")
        body = f"{t} e = {exp}(-{fabs}(x));\n  return (x < {zero} ? e : {one}) / ({one} + e);"
        return self._add(name, lambda: (t, f"{t} x", body))

    def absolute(self, d: DType) -> str:
        t, wide = self.dialect.value_type(d), self.unsigned(d, least=32)
        body = f"return ({t})(a < 0 ? 0 - ({wide})a : ({wide})a);"
        return self._add(f"abs_{d.name}", lambda: (t, f"{t} a", body))

    def to_integer(self, have: DType, want: DType) -> str:
        """Rounds a float towards zero; saturates; NaN becomes 0."""
        t, x = self.dialect.value_type(want), self.dialect.value_type(have)
        low, high = int(want.lowest()), int(want.highest())
        suffix = "" if x == "double" else "f"
        top, bottom = f"{float(high + 1)!r}{suffix}", f"{float(low)!r}{suffix}"
        least, most = self.integer(low, want), self.integer(high, want)
        inside = f"x >= {bottom} ? ({t})x : {least if low == 0 else f'x != x ? 0 : {least}'}"
        return self._add(
            f"{'double' if x == 'double' else 'float'}_to_{want.name}",
            lambda: (t, f"{x} x", f"return x >= {top} ? {most} : {inside};"),
        )

    def half(self, name: str) -> str:
        """A conversion from or to half precision, which is stored as its bits."""
        table = _CUDA_HALVES if self.dialect.name == "cuda" else _OPENCL_HALVES
        kind, arg, body = table[name]
        return self._add(name, lambda: (kind, f"{arg} x", body))

    def unsigned(self, d: DType, least: int = 8) -> str:
        """The unsigned type of the width of d, or wider."""
        return self.dialect.types[f"uint{max(d.bits, least)}"]

    def integer(self, value: int, d: DType) -> str:
        """A literal. The least signed number has none: C reads -2147483648 as -(2147483648)."""
        wide = self.dialect.long_suffix if d.bits == 64 else ""
        if d.kind == "u" and d.bits >= 32:
            return f"{value}u{wide}"
        if d.kind == "i" and d.bits >= 32 and value == d.lowest():
            return f"(-{-(value + 1)}{wide} - 1)"
        return f"{value}{wide}"
