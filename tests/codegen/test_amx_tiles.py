"""AMX: the code of tile products, run with simulated tile registers, since few machines have them.
The LLVM text is compiled for this machine, with calls of its own in place of the instructions.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from itertools import islice

import llvmlite.binding as llvm
import numpy as np
import pytest

import tilesmith as ts
from tests.support.typed_programs import random_typed_program
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.llvm.backend import LlvmBackend
from tilesmith.ir.function import Function
from tilesmith.runtime.loader import Library
from tilesmith.space.sets import default_rules
from tilesmith.space.spaces import SketchSpace, variants

TARGET = ts.Target.named("sapphirerapids").with_cores(1)


class Tiles:
    """The registers as 16 rows of 64 bytes, and what the instructions do with them."""

    def __init__(self) -> None:
        self.tiles = np.full((8, 16, 64), 77, np.uint8)
        self.configured = self.stored = 0
        pointer, byte, number = ctypes.c_void_p, ctypes.c_int8, ctypes.c_int64
        self.calls = {
            "ldtilecfg": ctypes.CFUNCTYPE(None, pointer)(self.configure),
            "tileloadd64": ctypes.CFUNCTYPE(None, byte, pointer, number)(self.load),
            "tileloaddt164": ctypes.CFUNCTYPE(None, byte, pointer, number)(self.load),
            "tilestored64": ctypes.CFUNCTYPE(None, byte, pointer, number)(self.store),
        }
        self.calls["tilezero"] = ctypes.CFUNCTYPE(None, byte)(self.zero)
        for name, left, right in (("bssd", "i1", "i1"), ("busd", "u1", "i1")):
            self.calls[f"tdp{name}"] = self._product(left, right)
        self.calls["tdpbf16ps"] = self._product("u2", "u2")

    def configure(self, at: int) -> None:
        config = ctypes.string_at(at, 64)
        assert config[0] == 1
        assert all(config[16 + 2 * t] == 64 and config[48 + t] == 16 for t in range(8))
        self.configured += 1

    def load(self, tile: int, at: int, apart: int) -> None:
        assert self.configured
        for row in range(16):
            self.tiles[tile, row] = np.frombuffer(ctypes.string_at(at + row * apart, 64), np.uint8)

    def zero(self, tile: int) -> None:
        assert self.configured
        self.tiles[tile] = 0

    def store(self, tile: int, at: int, apart: int) -> None:
        self.stored += 1
        for row in range(16):
            ctypes.memmove(at + row * apart, self.tiles[tile, row].tobytes(), 64)

    def _product(self, left: str, right: str) -> Callable[..., None]:
        group, total = (2, "f4") if left == "u2" else (4, "i4")

        def widened(tile: int, kind: str) -> np.ndarray:
            x = self.tiles[tile].view(kind).reshape(16, 16, group)
            if kind == "u2":
                return (x.astype("u4") << 16).view("f4")
            return x.astype("i4")

        def product(to: int, a: int, b: int) -> None:
            c = self.tiles[to].view(total)
            c += np.einsum("ikg,kjg->ij", widened(a, left), widened(b, right)).astype(total)

        byte = ctypes.c_int8
        return ctypes.CFUNCTYPE(None, byte, byte, byte)(product)


def simulated(source: str, symbol: str, arrays: list[np.ndarray], workspace: int) -> Tiles:
    tiles = Tiles()
    text = re.sub(r"@llvm\.x86\.(\w+)", r"@simulated_\1", source).replace(" immarg", "")
    text = re.sub(r"^(target .*|attributes .*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r" #\d+", "", text)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, jit=True)
    code = machine.emit_object(llvm.parse_assembly(text))
    calls = {
        f"simulated_{n}": ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in tiles.calls.items()
    }
    used = {n: at for n, at in calls.items() if f"@{n}(" in text}
    library = Library("amx", code, (symbol,), used)
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    scratch = np.zeros(workspace + 64, np.uint8)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    run = signature(library.addresses[symbol])
    run(ctypes.addressof(pointers), scratch.ctypes.data + -scratch.ctypes.data % 64)
    return tiles


def matmul(m: int, n: int, k: int, left: str, right: str, *, constant: bool) -> Function:
    a, b = ts.placeholder((m, k), left, name="A"), ts.placeholder((k, n), right, name="B")
    total = "float32" if left == "bfloat16" else "int32"
    kk = ts.reduce_axis(k, name="k")
    c = ts.compute(
        (m, n),
        lambda i, j: ts.sum(ts.cast(a[i, kk], total) * ts.cast(b[kk, j], total), axis=kk),
        name="C",
    )
    return ts.function([a, b, c], constants=[b] if constant else [])


def image(h: int, ci: int, co: int) -> Function:
    x = ts.placeholder((1, h, h, ci), "int8", name="X")
    w = ts.placeholder((3, 3, ci, co), "int8", name="W")
    y = ts.ops.relu(ts.ops.conv2d(x, w, padding=1, layout="NHWC"))
    return ts.function([x, w, y], constants=[w])


CASES = {
    "s8": lambda: matmul(32, 32, 64, "int8", "int8", constant=True),
    "u8": lambda: matmul(40, 35, 70, "uint8", "int8", constant=True),
    "b_not_constant": lambda: matmul(48, 32, 128, "int8", "int8", constant=False),
    "bf16": lambda: matmul(32, 64, 64, "bfloat16", "bfloat16", constant=True),
    "conv": lambda: image(16, 20, 32),
}


@pytest.mark.parametrize("name", CASES)
def test_tile_products(name: str) -> None:
    func = CASES[name]()
    task = ts.Task(func, TARGET)
    rng = np.random.default_rng(0)
    arrays = []
    for b in func.inputs:
        shape = [e.number for e in b.shape]
        x = rng.integers(-8, 8, shape) if b.dtype.is_float else rng.integers(0, 256, shape)
        arrays.append(
            x.astype(np.uint8).view(b.dtype.numpy) if b.dtype.is_int else x.astype(b.dtype.numpy)
        )
    want = ts.evaluate(func, *arrays)
    sketches = SketchSpace(default_rules(TARGET)).sketches(task)
    tiled = [s for s in sketches if "'amx." in str(s)]
    assert tiled
    for sketch in tiled[:: max(1, len(tiled) // 3)]:
        for variant in islice(variants(task, sketch), 1):
            row = variant.sample(rng, 1)[0]
            scheduled = variant.function(row)
            artifact = LlvmBackend().compile(scheduled, TARGET)
            assert "tdpb" in artifact.source
            out = np.zeros_like(want)
            given = [
                ts.pack(scheduled, b.name, x) for b, x in zip(func.inputs, arrays, strict=True)
            ]
            tiles = simulated(
                artifact.source, artifact.symbol, [*given, out], artifact.workspace_nbytes
            )
            assert tiles.configured
            np.testing.assert_allclose(out, want, rtol=1e-5)


def sources(func: Function, count: int) -> Iterator[tuple[Function, Artifact]]:
    """Random candidates with the largest tiles."""
    task, rng = ts.Task(func, TARGET), np.random.default_rng(0)
    for sketch in SketchSpace(default_rules(TARGET)).sketches(task):
        if "'amx.tiles_s8s8_32" in str(sketch):
            for variant in islice(variants(task, sketch), 1):
                for row in variant.sample(rng, count):
                    scheduled = variant.function(row)
                    yield scheduled, LlvmBackend().compile(scheduled, TARGET)


def test_sums_stay_in_tile_registers() -> None:
    """Where the loops of the sum are innermost, each result is stored once and never loaded."""
    func = matmul(64, 64, 256, "int8", "int8", constant=True)
    a, b = (np.ones((64, 256), np.int8), np.ones((256, 64), np.int8))
    scheduled, artifact = next(x for x in sources(func, 20) if "tilezero" in x[1].source)
    out = np.zeros((64, 64), np.int32)
    tiles = simulated(
        artifact.source, artifact.symbol, [a, ts.pack(scheduled, "B", b), out],
        artifact.workspace_nbytes,
    )  # fmt: skip
    assert tiles.stored == 16
    assert (out == 256).all()


def test_what_passes_by_is_not_kept_in_l1() -> None:
    small = matmul(64, 64, 256, "int8", "int8", constant=True)
    large = matmul(64, 2048, 1024, "int8", "int8", constant=True)
    assert not any("tileloaddt1" in x.source for _, x in sources(small, 5))
    assert any("tileloaddt1" in x.source for _, x in sources(large, 5))


@pytest.mark.parametrize("seed", [990119, 990381, 991231])
def test_windows_that_step_over_rows_have_tiles(seed: int) -> None:
    """Rows of a tile lie 2 or 3 apart in the input; a layout of its own brings them together."""
    rng = np.random.default_rng(seed)
    typed = random_typed_program(rng)
    assert typed.kind.startswith("windows of rows")
    task, built = ts.Task(typed.func, TARGET), 0
    for sketch in SketchSpace(accuracy=0).sketches(task):
        if "amx" not in str(sketch):
            continue
        for variant in islice(variants(task, sketch), 6):
            for row in variant.sample(rng, 1):
                built += bool(LlvmBackend().compile(variant.function(row), TARGET).code)
    assert built >= 6
