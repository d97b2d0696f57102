"""Function in, LLVM IR text out: the functions of a kernel, its threads. Statements, values and
memory have files of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Check
from tilesmith.codegen.llvm.builder import I64, V
from tilesmith.codegen.llvm.frames import Frame
from tilesmith.codegen.llvm.statements import Module, Statements
from tilesmith.codegen.passes.checks import check_indices
from tilesmith.codegen.pipeline import lower_for
from tilesmith.expr.ints import of
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, Stmt


@dataclass(frozen=True, slots=True)
class Emitted:
    source: str
    workspace_nbytes: int
    uses_threads: bool
    checks: tuple[Check, ...] = ()


def emit_function(func: Function, target: Target, *, checked: bool = False) -> Emitted:
    if func.sizes:
        raise BuildError(
            f"{func.name} has the open sizes {', '.join(func.sizes)}; "
            "put in numbers with instantiate()"
        )
    if target.kind != "cpu":
        raise BuildError(f"LLVM code is for CPUs; the target is {target.kind}")
    module = Module(target)
    if checked:
        func, module.checks = check_indices(func)
        module.reserve(16 * len(module.checks))
    Writer(module, lower_for(func, target)).entry()
    return Emitted(module.text(), module.workspace_nbytes, module.uses_threads, module.checks)


class Writer(Statements):
    """Writes one LLVM function. What is in it comes from `Statements`, through that stores from
    `Stores`, expressions from `Values` and memory from `Cells`.
    """

    def __init__(self, module: Module, func: Function) -> None:
        super().__init__(module)
        self.func = func

    def entry(self) -> None:
        params = []
        for k, p in enumerate(self.func.params):
            params.append(f"ptr noalias nocapture align {p.dtype.nbytes} %arg{k}")
            self.bind(p, f"%arg{k}", p.dtype.nbytes)
        self.open_function()
        self.body(self.func.body)
        text = self.close_function(
            f"define internal void @body({', '.join([*params, 'ptr noalias %workspace'])})"
        )
        self.module.functions.append(text)
        lines = ["define void @tilesmith_entry(ptr %args, ptr %workspace) #0 {"]
        for k in range(len(self.func.params)):
            lines.append(f"  %aa{k} = getelementptr ptr, ptr %args, i64 {k}")
            lines.append(f"  %arg{k} = load ptr, ptr %aa{k}")
        args = ", ".join(
            [*(f"ptr %arg{k}" for k in range(len(self.func.params))), "ptr %workspace"]
        )
        lines += [
            f"  call void @body({args})",
            "  ret void",
            "}",
            "",
            "attributes #0 = { nounwind }",
        ]
        self.module.functions.append("\n".join(lines))

    def open_function(self) -> None:
        self.frames = [Frame("function")]
        self.builder.lines = self.frames[0].lines
        self.label = "entry"

    def close_function(self, head: str) -> str:
        root = self.frames[0]
        self.flush_all(root)
        body = [
            f"{head} nounwind {{",
            "entry:",
            *self.entry_lines,
            *root.head,
            *root.lines,
            "  ret void",
            "}",
            "",
        ]
        return "\n".join(body)

    # threads
    def parallel(self, s: For) -> None:
        """Directly nested parallel loops become one range of numbers, and the body a function over
        a part of it.
        """
        chain = [s]
        while (
            len(chain[-1].body) == 1
            and isinstance(t := chain[-1].body[0], For)
            and t.kind == "parallel"
        ):
            chain.append(t)
        inner = chain[-1].body
        total = 1
        for f in chain:
            total *= f.extent.const or 0
        self.module.uses_threads = True
        b = self.builder
        for serial in self.touched(inner)[0]:
            self.flush_memory(serial, drop=True)
        name = f"@part{len(self.module.functions)}_{self.module.serial}"
        memories = list(self.memories.values())
        loops = [n for n, v in self.env.items() if isinstance(v, V)]
        slots = [*(m.pointer for m in memories), self.workspace]
        box = b.fresh("box")
        self.entry_lines.append(f"  {box} = alloca [{len(slots) + len(loops)} x ptr], align 64")
        for k, (kind, value) in enumerate(
            [*(("ptr", p) for p in slots), *(("i64", str(self.env[n].name)) for n in loops)]  # type: ignore[union-attr]
        ):
            at = b.fresh("at")
            b.emit(f"  {at} = getelementptr ptr, ptr {box}, i64 {k}")
            b.emit(f"  store {kind} {value}, ptr {at}")
        b.emit(
            f"  call void @tilesmith_parallel_for(ptr {name}, ptr {box}, "
            f"i64 {total}, i64 {self.target.num_cores})"
        )
        part = Writer(self.module, self.func)
        part.in_parallel, part.thread = True, "%thread"
        part.open_function()
        for k, m in enumerate(memories):
            part.entry_lines += [
                f"  %slot{k} = getelementptr ptr, ptr %box, i64 {k}",
                f"  %mem{k} = load ptr, ptr %slot{k}",
            ]
            part.memories[m.name] = replace(m, pointer=f"%mem{k}")
        last = len(memories)
        part.entry_lines += [
            f"  %slot{last} = getelementptr ptr, ptr %box, i64 {last}",
            f"  %ws = load ptr, ptr %slot{last}",
        ]
        part.workspace = "%ws"
        for k, n in enumerate(loops, last + 1):
            part.entry_lines += [
                f"  %slot{k} = getelementptr ptr, ptr %box, i64 {k}",
                f"  %out{k} = load i64, ptr %slot{k}",
            ]
            part.env[n] = V(f"%out{k}", I64)
            part.depth[n] = 0
        part.env |= {n: v for n, v in self.env.items() if isinstance(v, int)}
        part.ranges = dict(self.ranges)
        part.span(chain, inner, total)
        text = part.close_function(
            f"define internal void {name}(ptr %box, i64 %begin, i64 %end, i64 %thread)"
        )
        self.module.functions.insert(0, text)

    def span(self, chain: list[For], inner: tuple[Stmt, ...], total: int) -> None:
        """The loop of one thread over its numbers; each number gives the values of the flattened
        loops.
        """
        begin, end = V("%begin", I64), V("%end", I64)
        if len(chain) == 1:
            self.counted(replace(chain[0], kind="serial"), begin, end)
            return
        self.flattened = chain
        self.counted(For("+".join(f.name for f in chain), of(total), inner), begin, end)
