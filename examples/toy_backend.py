"""A back end of one's own: it prints a program as C, and the system's `cc` compiles it. It knows
the common operations on numbers, and runs everything in one thread. Tuning measures what it
makes, and records say so.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np

import tilesmith as ts
from tilesmith.expr import dynamic, ints, nodes
from tilesmith.ir import nodes as ir

HEAD = """#include <math.h>
#include <stdint.h>
static int64_t floordiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
"""
TYPES = {"float32": "float", "float64": "double", "bool": "uint8_t"} | {
    f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
CONSTANTS = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN", "True": "1", "False": "0"}
FUNCTIONS = ("exp", "log", "sqrt", "tanh", "erf", "sin", "cos", "floor", "ceil")


def type_of(dtype: ts.DType) -> str:
    if dtype.name not in TYPES:
        raise ts.BuildError(f"the C back end has no {dtype}")
    return TYPES[dtype.name]


@dataclass
class Printer:
    """C text of statements. Names of loops and buffers get a number each: C names have no dots."""

    names: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, ir.Buffer] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    workspace_nbytes: int = 0

    def name(self, of: str) -> str:
        return self.names.setdefault(of, f"{re.sub('[^0-9A-Za-z]', '_', of)}_{len(self.names)}")

    def bind(self, b: ir.Buffer, address: str) -> None:
        self.buffers[b.name], t = b, type_of(b.dtype)
        self.lines.append(f"{t} *restrict {self.name(b.name)} = ({t} *)({address});")

    def integer(self, p: ints.Int) -> str:
        terms = ["*".join([f"{c}", *map(self.atom, m)]) for m, c in p.terms.items()]
        return f"({' + '.join(terms) or '0'})"

    def atom(self, a: object) -> str:
        match a:
            case str():
                return self.name(a)
            case ints.FloorDiv():
                return f"floordiv({self.integer(a.a)}, {self.integer(a.b)})"
            case ints.Maximum():
                return f"larger({self.integer(a.a)}, {self.integer(a.b)})"
            case dynamic.Dynamic():
                return f"(int64_t){self.value(a.expr)}"
        raise AssertionError(a)

    def element(self, buffer: str, index: tuple[ints.Int, ...]) -> str:
        strides = self.buffers[buffer].strides
        at = sum((i * s for i, s in zip(index, strides, strict=True)), start=ints.of(0))
        return f"{self.name(buffer)}[{self.integer(at)}]"

    def value(self, e: nodes.Expr) -> str:
        suffix = "f" if e.dtype.name == "float32" else ""
        match e:
            case nodes.Const(value=v):
                return f"(({type_of(e.dtype)}){CONSTANTS.get(str(v), str(v))})"
            case nodes.IntValue(value=p):
                return f"({type_of(e.dtype)}){self.integer(p)}"
            case nodes.Load(buffer=b, index=index):
                return self.element(b, index)
            case nodes.Cast(x=x):
                return f"({type_of(e.dtype)})({self.value(x)})"
            case nodes.Select(cond=c, a=a, b=b):  # reads only what is chosen
                return f"({self.value(c)} ? {self.value(a)} : {self.value(b)})"
            case nodes.Unary(op="neg", x=x):
                return f"(-{self.value(x)})"
            case nodes.Unary(op="not", x=x):
                return f"(!{self.value(x)})"
            case nodes.Unary(op=op, x=x) if op in FUNCTIONS:
                return f"{op}{suffix}({self.value(x)})"
            case nodes.Binary(op=op, a=a, b=b) if op in INFIX:
                return f"({self.value(a)} {INFIX[op]} {self.value(b)})"
            case nodes.Binary(op="max" | "min" as op, a=a, b=b):
                x, y = self.value(a), self.value(b)
                return f"({x} {'>' if op == 'max' else '<'} {y} ? {x} : {y})"
        raise ts.BuildError(f"the C back end has no code for {e}")

    def body(self, body: tuple[ir.Stmt, ...]) -> None:
        for s in body:
            match s:
                case ir.For(name=loop, extent=n):
                    v = self.name(loop)
                    self.block(f"for (int64_t {v} = 0; {v} < {self.integer(n)}; {v}++)", s.body)
                case ir.If(conds=conds):
                    tests = " && ".join(f"{self.integer(p)} >= 0" for p in conds)
                    self.block(f"if ({tests})", s.body)
                case ir.Alloc(buffer=b):
                    self.bind(b, f"(char *)workspace + {self.workspace_nbytes}")
                    nbytes = b.size.number * b.dtype.nbytes
                    self.workspace_nbytes += -(-nbytes // 64) * 64
                case ir.Store(intrinsic=None):  # all values are computed before one is stored
                    for k, w in enumerate(s.writes):
                        t = type_of(w.value.dtype)
                        self.lines.append(f"{{ {t} new_{k} = {self.value(w.value)};")
                    for k, w in enumerate(s.writes):
                        self.lines.append(f"{self.element(w.buffer, w.index)} = new_{k};")
                    self.lines.append("}" * len(s.writes))
                case _:
                    raise ts.BuildError(f"the C back end has no code for {type(s).__name__}")

    def block(self, head: str, body: tuple[ir.Stmt, ...]) -> None:
        self.lines.append(f"{head} {{")
        self.body(body)
        self.lines.append("}")


@dataclass(frozen=True)
class CBackend:
    compiler: str  # its path
    kind: str = "cpu"

    def compile(
        self, func: ts.Function, target: ts.Target, *, checked: bool = False
    ) -> ts.Artifact:
        if checked:
            raise ts.BuildError("the C back end has no checked kernels")
        func = ts.lower(func, target, ts.PLAIN_PASSES)
        printer = Printer()
        for k, p in enumerate(func.params):
            printer.bind(p, f"args[{k}]")
        printer.body(func.body)
        text = "\n".join(printer.lines)
        symbol = f"toy_{sha256(text.encode()).hexdigest()[:16]}"
        source = f"{HEAD}void {symbol}(void **args, void *workspace) {{\n{text}\n}}\n"
        entry = ts.Entry.of(func, symbol, printer.workspace_nbytes)
        with tempfile.TemporaryDirectory() as folder:
            c, o = Path(folder, "kernel.c"), Path(folder, "kernel.o")
            c.write_text(source)
            command = [self.compiler, "-O2", "-fPIC", "-c", "-o", str(o), str(c)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ts.BuildError(f"{self.compiler} fails: {done.stderr.strip()[:300]}")
            return ts.Artifact(func.name, target, (entry,), source, o.read_bytes(), language="C")


def main(n: int = 48) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        print("there is no C compiler named cc here, so nothing was built")
        return
    x = ts.placeholder((n, n), name="x")
    softmax = ts.function([x, ts.ops.softmax(x)], name="softmax")
    a, b = ts.placeholder((n, n), name="a"), ts.placeholder((n, n), name="b")
    sch = ts.Schedule(ts.function([a, b, ts.ops.relu(ts.ops.matmul(a, b))], name="matmul_relu"))
    sch.split(sch.loops(sch.blocks[0])[0], [None, 10])
    rng = np.random.default_rng(0)
    parts = ts.Parts(backends=(CBackend(compiler),))
    for what, func in ((softmax, softmax), (sch, sch.func)):
        kernel = ts.build(what, backend=CBackend(compiler))
        arrays = [rng.standard_normal((n, n), dtype=np.float32) for _ in func.inputs]
        np.testing.assert_allclose(
            kernel(*arrays), ts.evaluate(func, *arrays), rtol=1e-4, atol=1e-5
        )
        print(f"{kernel.name}: {len(kernel.source.splitlines())} lines of C, and right")
    result = ts.tune(softmax, ts.cpu(1), budget=ts.Budget(trials=2), parts=parts, quiet=True)
    assert result.kernel.source.startswith("#include")
    print(f"{result.trials} trials of {result.task.codegen.partition('+')[2].partition(':')[0]}")


if __name__ == "__main__":
    main()
