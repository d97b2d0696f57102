"""Vector functions against wider arithmetic: whole ranges, special values, and no calls."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from scipy import special

from tests.support.thorough import drawn
from tilesmith.base.errors import BuildError
from tilesmith.base.target import MACHINES
from tilesmith.codegen.llvm import vecmath
from tilesmith.codegen.llvm.builder import Builder, Type, V

Array = np.ndarray[Any, np.dtype[Any]]
ELEM = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
BLOCK = 16  # arrays are padded to whole vectors of this many
TWO = ("pow", "fmod")
ONE = [op for op in vecmath.FUNCTIONS if op not in TWO]
PLAIN = frozenset({"fma"})
OLD: frozenset[str] = frozenset()  # x86 without fused multiply-add

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
HOST = llvm.get_host_cpu_features()
FEATURES = frozenset(f for f, on in HOST.items() if on)
ARCH = "aarch64" if llvm.get_default_triple().startswith(("aarch64", "arm64")) else "x86-64"
needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant <= 52, reason="nothing wider than double to compare with"
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def loop(name: str, op: str, t: Type, arch: str, features: frozenset[str]) -> tuple[str, set[str]]:
    """void name(out, x, y, n): out[i] = op(x[i]) or op(x[i], y[i]); and the declarations."""
    b = Builder(MACHINES[arch])
    b.features = features
    args = [b.value(t, f"load {t}, ptr %px, align {t.bits // 8}")]
    if op in TWO:
        args.append(b.value(t, f"load {t}, ptr %py, align {t.bits // 8}"))
    result = vecmath.emit(b, op, *args)
    body = "\n".join(b.lines)
    text = f"""
define void @{name}(ptr %out, ptr %x, ptr %y, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %px = getelementptr {t.elem}, ptr %x, i64 %i
  %py = getelementptr {t.elem}, ptr %y, i64 %i
  %pout = getelementptr {t.elem}, ptr %out, i64 %i
{body}
  store {result}, ptr %pout, align {t.bits // 8}
  %next = add i64 %i, {t.lanes}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    return text, set(b.declarations.values())


def run(
    op: str, x: Array, y: Array | None = None, lanes: int = 16,
    features: frozenset[str] = FEATURES, arch: str = ARCH,
) -> Array:  # fmt: skip
    text, declarations = loop("f", op, Type(ELEM[x.dtype], lanes), arch, features)
    module = llvm.parse_assembly("\n".join([text, *sorted(declarations)]))
    module.verify()
    words = (llvm.get_host_cpu_name(), HOST.flatten())
    if not features and ARCH == "x86-64":
        words = ("sandybridge", "")
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=words[0], features=words[1], opt=2
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(
        engine.get_function_address("f")
    )
    padding = np.ones(-len(x) % BLOCK, x.dtype)
    left = np.concatenate([x, padding])
    right = left if y is None else np.concatenate([y, padding])
    out = np.empty_like(left)
    call(out.ctypes.data, left.ctypes.data, right.ctypes.data, len(left))
    return out[: len(x)]


def ulps(got: Array, want: Array) -> Array:
    """|got - want| in units of the last place of want; an infinity counts as the power above."""
    info = np.finfo(got.dtype)
    top = np.exp2(want.dtype.type(info.maxexp))
    g, w = (np.clip(a.astype(want.dtype), -top, top) for a in (got, want))
    unit = np.spacing(np.minimum(np.abs(w), want.dtype.type(info.max)).astype(got.dtype))
    error = np.abs(g - w) / unit.astype(want.dtype)
    nan = np.isnan(want)
    error = np.where(nan & np.isnan(got), 0, error)
    # NaN on one side only, and a zero of the wrong sign
    wrong = (nan != np.isnan(got)) | ((want == 0) & (np.signbit(got) != np.signbit(want)))
    return np.where(wrong, np.inf, error).astype(np.float64)


def check(op: str, got: Array, want: Array, *args: Array) -> None:
    bound = vecmath.ULP[op][got.dtype == np.float64]
    error = ulps(got, want)
    i = int(np.argmax(error))
    at = ", ".join(repr(a[i]) for a in args)
    assert error[i] <= bound, f"{op}({at}) is {got[i]!r}, not {want[i]!r}: {error[i]} ulp"


def same(a: Array, b: Array) -> bool:
    return np.array_equal(a, b, equal_nan=True) and bool(
        np.all((np.signbit(a) == np.signbit(b)) | np.isnan(a))
    )


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, x.dtype.type(1)) / (1 + e))


def _erf(x: Array) -> Array:
    """2/sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (1 3 5 ... (2n+1)): every term has one sign."""
    if x.dtype == np.float64:
        return np.asarray(special.erf(x))
    a = np.clip(x, -7, 7)
    term = total = a
    for n in range(1, 200):
        term = term * (2 * a * a / (2 * n + 1))
        total = total + term
    return np.asarray(total * np.exp(-a * a) / np.sqrt(np.arctan(x.dtype.type(1))))


REFERENCE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "expm1": np.expm1,
    "trunc": np.trunc,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}

# what is special about some function's result, or the last number before it is
TURNS = [0.0, 0.5, 0.75, 1.0, 1.5, 2.5, 3.92, 4.0, 5.93, 6.0, 9.01, 10.0, 17.33, 19.06, 20.0]
TURNS += [87.3365, 88.7228, 89.0, 103.278, 103.972, 104.0, 708.39, 709.78, 710.0, 745.13, 746.0]
TURNS += [np.pi / 2, np.pi, 3 * np.pi / 2, np.log(2) / 2, np.log(2), 2.0**22, 2.0**23, 2.0**52]


def special_values(dtype: type[np.floating[Any]]) -> Array:
    info = np.finfo(dtype)
    base = np.array([*TURNS, info.max, info.tiny, info.smallest_subnormal, np.inf, np.nan], dtype)
    base = np.concatenate([base, dtype(2) ** np.arange(-30, 30).astype(dtype)])
    near = [base]
    for way in (np.inf, -np.inf):
        step = base
        for _ in range(3):
            step = np.nextafter(step, dtype(way))
            near.append(step)
    every = np.concatenate(near)
    return np.concatenate([every, -every])


def sweep32() -> Array:
    """Every 4093rd pattern of bits: a million, denormals and NaN among them."""
    patterns = np.arange(0, 2**32, drawn(4093, 1021), dtype=np.uint64).astype(np.uint32)
    turns = np.pi / 2 * np.arange(0, drawn(50_000, 200_000))
    close = np.array([*turns, CLOSEST[1]]).astype(np.float32)
    return np.concatenate([special_values(np.float32), patterns.view(np.float32), close])


# The double and the float that come closest to a multiple of pi / 2.
CLOSEST = (6381956970095103 * 2.0**797, 16367173 * 2.0**72)


def sweep64() -> Array:
    rng = np.random.default_rng(20)
    n = drawn(15_000, 40_000)
    patterns = rng.integers(0, 2**64, n, dtype=np.uint64).view(np.float64)
    small = 10.0 ** rng.uniform(-20, 3, n) * rng.choice([-1.0, 1.0], n)
    return np.concatenate(
        [
            special_values(np.float64),
            patterns,
            small,
            rng.uniform(-750, 750, n),
            rng.normal(0, 3, n),
            np.pi / 2 * rng.integers(0, 2**33, n),
            np.array(CLOSEST),
        ]
    )


@pytest.mark.turns(4)
@pytest.mark.parametrize("op", ONE)
def test_float_over_all_bit_patterns(op: str) -> None:
    x = sweep32()
    want = REFERENCE[op](x.astype(np.float64))
    plain = run(op, x, features=PLAIN)
    check(op, plain, want, x)
    for other in (run(op, x), run(op, x, lanes=8, features=OLD)):
        if not same(other, plain):
            check(op, other, want, x)


@needs_long_double
@pytest.mark.parametrize("op", ["sin", "cos", "log2", "log10"])
def test_without_fused_multiply_add(op: str) -> None:
    """The code for old x86 processors, on whichever this is."""
    for x, wide in ((sweep32()[::101], np.float64), (sweep64()[::3], np.longdouble)):
        x = np.concatenate([x, np.array(CLOSEST[x.dtype == np.float32 :]).astype(x.dtype)])
        check(
            op, run(op, x, lanes=4, features=OLD, arch="x86-64"), REFERENCE[op](x.astype(wide)), x
        )


@needs_long_double
@pytest.mark.parametrize("op", ONE)
def test_double_over_random_bit_patterns(op: str) -> None:
    x = sweep64()
    want = REFERENCE[op](x.astype(np.longdouble))
    for lanes, features in ((8, FEATURES), (4, PLAIN), (4, OLD)):
        check(op, run(op, x, lanes=lanes, features=features), want, x)


@pytest.mark.parametrize("op", vecmath.FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lane_counts_agree(op: str, dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(7)
    x = np.concatenate([special_values(dtype), rng.normal(0, 20, 20_000).astype(dtype)])
    y = rng.permutation(x)
    want = run(op, x, y, lanes=16, features=PLAIN)
    for lanes in (1, 2, 4, 8):
        assert same(run(op, x, y, lanes=lanes, features=PLAIN), want)


def powers(dtype: type[np.floating[Any]]) -> tuple[Array, Array]:
    rng = np.random.default_rng(11)
    n = drawn(20_000, 60_000)
    steep, end = (1e5, 150) if dtype is np.float32 else (7e5, 1080)
    bits = np.uint32 if dtype is np.float32 else np.uint64
    patterns = rng.integers(0, np.iinfo(bits).max, (2, n), dtype=bits).view(dtype)
    pairs = [
        (10 ** rng.uniform(-5, 5, n), rng.uniform(-60, 60, n)),
        (rng.uniform(0.5, 2, n), rng.uniform(-end, end, n)),
        (1 + rng.normal(0, 1e-3, n), rng.uniform(-steep, steep, n)),
        (-(10 ** rng.uniform(-3, 3, n)), rng.integers(-40, 40, n)),
        (patterns[0], patterns[1]),
        (patterns[0], rng.uniform(-2, 2, n)),
    ]
    edge = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 1e20, 1e-40, np.inf, np.nan])
    edge = np.concatenate([edge, -edge])
    pairs.append((np.repeat(edge, len(edge)), np.tile(edge, len(edge))))
    x, y = (np.concatenate([p[i] for p in pairs]).astype(dtype) for i in (0, 1))
    return x, y


@needs_long_double
@pytest.mark.parametrize("features", [FEATURES, PLAIN, OLD])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow(dtype: type[np.floating[Any]], features: frozenset[str]) -> None:
    x, y = powers(dtype)
    wide = np.float64 if dtype is np.float32 else np.longdouble
    want = np.power(x.astype(wide), y.astype(wide))
    check("pow", run("pow", x, y, lanes=8, features=features), want, x, y)


@pytest.mark.parametrize("features", [FEATURES, PLAIN, OLD])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fmod(dtype: type[np.floating[Any]], features: frozenset[str]) -> None:
    """Exact: C's is, too."""
    rng = np.random.default_rng(12)
    x, y = powers(dtype)
    near = (x * rng.integers(1, 1000, len(x))).astype(dtype)  # next to a whole quotient
    x, y = np.concatenate([x, y, near, near + x]), np.concatenate([y, x, x, x])
    if dtype is np.float64 and not features and ARCH != "aarch64":
        sizes = [(np.abs(v) > 2.0**-850) & (np.abs(v) < 2.0**850) for v in (x, y)]
        keep = ~np.isfinite(x) | ~np.isfinite(y) | (x == 0) | (y == 0) | (sizes[0] & sizes[1])
        x, y = x[keep], y[keep]
    check("fmod", run("fmod", x, y, lanes=8, features=features), np.fmod(x, y), x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_are_exact(dtype: type[np.floating[Any]]) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([0.0, -0.0, 1.0, inf, -inf, nan, -1.0], dtype)
    expected: dict[str, list[float | None]] = {
        "exp": [1, 1, None, inf, 0, nan, None],
        "log": [-inf, -inf, 0, inf, nan, nan, nan],
        "log2": [-inf, -inf, 0, inf, nan, nan, nan],
        "log10": [-inf, -inf, 0, inf, nan, nan, nan],
        "tanh": [0, -0.0, None, 1, -1, nan, None],
        "erf": [0, -0.0, None, 1, -1, nan, None],
        "sigmoid": [0.5, 0.5, None, 1, 0, nan, None],
        "rsqrt": [inf, -inf, 1, 0, nan, nan, nan],
        "sin": [0, -0.0, None, nan, nan, nan, None],
        "cos": [1, 1, None, nan, nan, nan, None],
        "atan": [0, -0.0, np.pi / 4, np.pi / 2, -np.pi / 2, nan, -np.pi / 4],
        "expm1": [0, -0.0, None, inf, -1, nan, None],
        "trunc": [0, -0.0, 1, inf, -inf, nan, -1],
    }
    for op, row in expected.items():
        known = np.array([v is not None for v in row])
        want = np.array([v for v in row if v is not None], dtype)
        for lanes, features in ((16, FEATURES), (8, FEATURES), (4, PLAIN), (4, OLD)):
            assert same(run(op, x, lanes=lanes, features=features)[known], want), op


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("op", "base"), [("log2", 2), ("log10", 10)])
def test_logarithms_of_powers_are_whole(op: str, base: int, dtype: type[np.floating[Any]]) -> None:
    info = np.finfo(dtype)
    n = np.arange(info.minexp, info.maxexp)
    if base == 10:
        n = n[(n >= np.log10(float(info.tiny))) & (n <= np.log10(float(info.max)))]
    x = np.array([float(base) ** int(k) for k in n]).astype(dtype)
    for lanes, features in ((16, FEATURES), (1, FEATURES), (4, OLD)):
        np.testing.assert_array_equal(run(op, x, lanes=lanes, features=features), n.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounded_functions_stay_in_their_bounds(dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.uniform(-30, 30, 300_000), 10 ** rng.uniform(-5, 38, 100_000)])
    for op in ("tanh", "erf", "sigmoid", "sin", "cos"):
        assert np.abs(run(op, x.astype(dtype))).max() <= 1


AVX512 = frozenset({"avx512f", "avx512vl", "fma"})
TARGETS = [
    ("x86_64-unknown-linux-gnu", "x86-64-v2", "x86-64", OLD),
    ("x86_64-unknown-linux-gnu", "x86-64-v3", "x86-64", PLAIN),
    ("x86_64-unknown-linux-gnu", "skylake-avx512", "x86-64", AVX512),
    ("aarch64-unknown-linux-gnu", "neoverse-n1", "aarch64", PLAIN),
]


@pytest.mark.parametrize(
    ("triple", "cpu", "arch", "features"), TARGETS, ids=[t[1] for t in TARGETS]
)
def test_assembly_has_no_calls(triple: str, cpu: str, arch: str, features: frozenset[str]) -> None:
    text, declarations = [f'target triple = "{triple}"'], set()
    for op in vecmath.FUNCTIONS:
        for t in [Type("float", n) for n in (1, 4, 8, 16)] + [Type("double", n) for n in (1, 2, 8)]:
            body, used = loop(f"{op}_{t.suffix}", op, t, arch, features)
            text.append(body)
            declarations |= used
    module = llvm.parse_assembly("\n".join([*text, *sorted(declarations)]))
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, opt=2, reloc="pic", codemodel="small"
    )
    assembly = machine.emit_assembly(module)
    called = re.findall(r"^\s+(?:call\w*|blr?|jmp\s+\w+@PLT)\s+(.*)$", assembly, re.MULTILINE)
    own = set(re.findall(r"^(tilesmith\.\w+\.\w+):", assembly, re.MULTILINE))
    assert own
    assert set(called) == own  # functions of the same module only


def test_refuses_what_it_cannot_do() -> None:
    b = Builder(MACHINES[ARCH])
    with pytest.raises(BuildError, match="no vector code"):
        vecmath.emit(b, "gamma", V("%x", Type("float", 4)))
    with pytest.raises(BuildError, match="convert to float"):
        vecmath.emit(b, "exp", V("%x", Type("half", 4)))


def test_every_function_states_its_error() -> None:
    assert set(vecmath.ULP) == set(vecmath.FUNCTIONS)
