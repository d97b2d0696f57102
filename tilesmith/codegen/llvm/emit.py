"""Emits a Function for a Target as the text of an LLVM module.

The emitter is composed of parts: Position (shared by all), Addressing, RegisterCache, Vectors,
Expressions, Stores, Statements. Each knows only those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import ENTRY, PARALLEL_FOR, Check, OpenSizes
from tilesmith.codegen.llvm.addressing import Addressing, Prefetches
from tilesmith.codegen.llvm.builder import I64, Builder, V
from tilesmith.codegen.llvm.expressions import Expressions
from tilesmith.codegen.llvm.frames import Memory
from tilesmith.codegen.llvm.position import Module, Position
from tilesmith.codegen.llvm.register_cache import RegisterCache
from tilesmith.codegen.llvm.statements import Statements
from tilesmith.codegen.llvm.stores import Stores
from tilesmith.codegen.llvm.vectors import Vectors
from tilesmith.codegen.passes.check_indices import check_indices
from tilesmith.codegen.pipeline import CPU_PASSES, Pass, lower
from tilesmith.expr.ints import ZERO, Int, product
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, Stmt


@dataclass(frozen=True, slots=True)
class Emitted:
    source: str
    workspace_nbytes: int
    uses_threads: bool
    checks: tuple[Check, ...] = ()
    workspace: Int = ZERO  # bytes, if they depend on open sizes


def emit_function(
    func: Function,
    target: Target,
    *,
    checked: bool = False,
    passes: Sequence[Pass] = CPU_PASSES,
) -> Emitted:
    if target.kind != "cpu":
        raise BuildError(f"LLVM code is for CPUs; the target is {target.kind}")
    module = Module(target)
    if checked:
        func, module.checks = check_indices(func)
        module.reserve(16 * len(module.checks))
    sizes = OpenSizes.of(func)
    names = () if sizes is None else sizes.names
    Emitter(module).entry(lower(func, target, passes), names)
    room = module.workspace
    nbytes = 0 if names else room.number
    return Emitted(module.text(), nbytes, module.uses_threads, module.checks, room)


class Emitter:
    """Writes one LLVM function: creates the parts of the emitter and connects them.

    The body of a parallel loop is a function of its own, with an emitter of its own.
    """

    def __init__(self, module: Module) -> None:
        target = module.target
        builder = Builder(target.machine, target.features)
        builder.declarations = module.declarations
        self.module, self.builder = module, builder
        self.position = position = Position(target, builder)
        addressing = Addressing(position)
        prefetches = Prefetches(position, addressing)
        self.cache = cache = RegisterCache(position, addressing, prefetches)
        vectors = Vectors(position)
        expressions = Expressions(position, addressing, cache, vectors, module.checks)
        stores = Stores(position, addressing, cache, vectors, expressions)
        self.statements = Statements(
            module, position, addressing, cache, expressions, stores, self.parallel
        )

    def entry(self, func: Function, sizes: tuple[str, ...] = ()) -> None:
        """The function of the body, and the entry that unpacks its arguments."""
        params = []
        for k, p in enumerate(func.params):
            params.append(f"ptr noalias nocapture align {p.dtype.nbytes} %arg{k}")
            self.statements.bind(p, f"%arg{k}", p.dtype.nbytes)
        for k, name in enumerate(sizes):
            params.append(f"i64 %size{k}")
            self.position.env[name] = V(f"%size{k}", I64)
            self.position.depth[name] = 0
        self.statements.body(func.body)
        text = self.function(
            f"define internal void @body({', '.join([*params, 'ptr noalias %workspace'])})"
        )
        self.module.functions.append(text)
        lines = [f"define void @{ENTRY}(ptr %args, ptr %workspace) #0 {{"]
        for k in range(len(func.params)):
            lines.append(f"  %aa{k} = getelementptr ptr, ptr %args, i64 {k}")
            lines.append(f"  %arg{k} = load ptr, ptr %aa{k}")
        for k in range(len(sizes)):
            at = len(func.params) + k
            lines.append(f"  %sa{k} = getelementptr i64, ptr %args, i64 {at}")
            lines.append(f"  %size{k} = load i64, ptr %sa{k}")
        given = [f"ptr %arg{k}" for k in range(len(func.params))]
        given += [f"i64 %size{k}" for k in range(len(sizes))]
        args = ", ".join([*given, "ptr %workspace"])
        lines += [
            f"  call void @body({args})",
            "  ret void",
            "}",
            "",
            "attributes #0 = { nounwind }",
        ]
        self.module.functions.append("\n".join(lines))

    def function(self, head: str) -> str:
        """The text of the function, after all its statements."""
        root = self.position.frames[0]
        self.cache.flush_frame(root)
        body = [
            f"{head} nounwind {{",
            "entry:",
            *self.position.entry_lines,
            *root.head,
            *root.lines,
            "  ret void",
            "}",
            "",
        ]
        return "\n".join(body)

    def parallel(self, s: For) -> None:
        """Perfectly nested parallel loops become one flat range, and the body a function over a
        part of it. Values that it uses from outside are passed in an array of pointers, the box.
        """
        chain = [s]
        while (
            len(chain[-1].body) == 1
            and isinstance(t := chain[-1].body[0], For)
            and t.kind == "parallel"
        ):
            chain.append(t)
        inner, total = chain[-1].body, product(f.extent for f in chain)
        module, position, b = self.module, self.position, self.builder
        module.uses_threads = True
        for serial in self.statements.touched(inner)[0]:
            self.cache.flush(serial, drop=True)
        name = f"@part{len(module.functions)}_{module.serial}"
        memories = list(position.memories.values())
        loops = {n: v for n, v in position.env.items() if isinstance(v, V)}
        slots = [f"ptr {m.pointer}" for m in memories] + [f"ptr {position.workspace}"]
        slots += map(str, loops.values())
        box = b.fresh("box")
        position.entry_lines.append(f"  {box} = alloca [{len(slots)} x ptr], align 64")
        for k, slot in enumerate(slots):
            at = b.fresh("at")
            b.emit(f"  {at} = getelementptr ptr, ptr {box}, i64 {k}")
            b.emit(f"  store {slot}, ptr {at}")
        count = self.statements.expressions.integer(total)
        b.emit(
            f"  call void @{PARALLEL_FOR}(ptr {name}, ptr {box}, "
            f"{count}, i64 {position.target.num_cores})"
        )
        part = Emitter(module)
        part.unbox(memories, loops)
        part.position.env |= {n: v for n, v in position.env.items() if isinstance(v, int)}
        part.position.ranges |= position.ranges
        part.span(chain, inner, total)
        text = part.function(
            f"define internal void {name}(ptr %box, i64 %begin, i64 %end, i64 %thread)"
        )
        module.functions.insert(0, text)

    def unbox(self, memories: Sequence[Memory], loops: Iterable[str]) -> None:
        """At the start of a thread's function: loads what `parallel` stored in the box."""
        position = self.position

        def slot(k: int, kind: str, name: str) -> str:
            position.entry_lines += [
                f"  %slot{k} = getelementptr ptr, ptr %box, i64 {k}",
                f"  {name} = load {kind}, ptr %slot{k}",
            ]
            return name

        for k, m in enumerate(memories):
            position.memories[m.name] = replace(m, pointer=slot(k, "ptr", f"%mem{k}"))
        position.workspace = slot(len(memories), "ptr", "%ws")
        for k, n in enumerate(loops, len(memories) + 1):
            position.env[n] = V(slot(k, "i64", f"%out{k}"), I64)
            position.depth[n] = 0
        position.thread = "%thread"

    def span(self, chain: list[For], inner: tuple[Stmt, ...], total: Int) -> None:
        """The loop of one thread over its part of the flat range; each number determines the values
        of the flattened loops.
        """
        begin, end = V("%begin", I64), V("%end", I64)
        if len(chain) == 1:
            self.statements.counted(replace(chain[0], kind="serial"), begin, end)
            return
        self.statements.flattened = chain
        self.statements.counted(For("+".join(f.name for f in chain), total, inner), begin, end)
