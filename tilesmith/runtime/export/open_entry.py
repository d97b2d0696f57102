"""The LLVM functions of an exported library whose sizes are open: what depends on them, in text.
The functions around them are in `open_run.ll`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from tilesmith.codegen.llvm.builder import I1, I64, PTR, Builder, V
from tilesmith.codegen.llvm.run_time_sizes import value_at
from tilesmith.expr.ints import Int, of, product
from tilesmith.runtime.dispatch import Branch, Choice
from tilesmith.runtime.export.library import (
    ALIGNMENT,
    Address,
    Library,
    OpenCall,
    OpenPlan,
    Part,
    Port,
)
from tilesmith.runtime.export.opening import functions_of, text_constant

TEXTS = {
    "no_sizes": "the list of sizes is NULL",
    "size_range": "the size %s is %lld; it is between %lld and %lld",
    "no_shape": "%s has no shape at these sizes: they are too small or too large",
    "workspace": "the workspace is at an address that is no multiple of 64",
    "workspace_memory": "there is not enough memory: %lld bytes are needed",
}


def running_source(library: Library, values: Mapping[str, object]) -> str:
    """The functions that check sizes, tell bytes and run."""
    plan, num_inputs = library.open, len(library.inputs)
    assert plan is not None
    num_outputs = len(library.outputs)
    more = {
        "NUM_SIZES": len(plan.names),
        "NUM_ARRAYS": num_inputs + num_outputs,
        "IN_NBYTES": 8 * num_inputs,
        "OUT_NBYTES": 8 * num_outputs,
    }
    ports = (*library.inputs, *library.outputs)
    names = [*(n.removeprefix("#") for n in plan.names), *(p.name for p in ports)]
    names += [name for _, name in plan.lengths]
    texts = [text_constant(f"name.{k}", n) for k, n in enumerate(names)]
    listed = ", ".join(f"ptr @name.{k}" for k in range(len(names)))
    return "\n".join(
        [
            *texts,
            f"@names = private constant [{len(names)} x ptr] [{listed}]",
            _numbers("lows", [low for low, _ in plan.limits]),
            _numbers("highs", [high for _, high in plan.limits]),
            functions_of("open_run.ll", TEXTS, {**values, **more}),
        ]
    )


def _numbers(name: str, values: Sequence[int]) -> str:
    listed = ", ".join(f"i64 {v}" for v in values)
    return f"@{name} = private constant [{len(values)} x i64] [{listed}]"


def open_plan_source(library: Library) -> str:
    """sized(sizes, nbytes, elements), workspace_of(sizes), and void plan(sizes, inputs, outputs,
    weights, workspace), which calls the kernels.
    """
    plan = library.open
    assert plan is not None
    builder = Builder(library.target.machine, library.target.features)
    parts = [
        _sized(builder, plan, (*library.inputs, *library.outputs)),
        _workspace(builder, plan),
        _Plan(builder, plan, library).text(),
    ]
    symbols = sorted({m.symbol for c in plan.calls for m in c.members})
    return "\n".join(
        [
            *(f"declare void @{s}(ptr, ptr)" for s in symbols),
            "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
            "declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64)",
            *builder.declarations.values(),
            *parts,
        ]
    )


class _Values:
    """The values of expressions of the sizes in a function, each computed once."""

    def __init__(self, builder: Builder, plan: OpenPlan) -> None:
        builder.lines = []
        self.builder, self._known = builder, dict[Int, V]()
        self._sizes: dict[str, V] = {}
        for k, name in enumerate(plan.names):
            at = builder.value(PTR, f"getelementptr i64, ptr %sizes, i64 {k}").name
            self._sizes[name] = builder.value(I64, f"load i64, ptr {at}")
        self.given = [*self._sizes.values()]
        self._derived = dict(plan.derived)

    def __call__(self, e: int | Int) -> V:
        if not isinstance(e, Int) or e.const is not None:
            return self.number(e if isinstance(e, int) else e.number)
        for name in e.names:
            if name not in self._sizes:
                self._sizes[name] = self(self._derived[name])
        if e not in self._known:
            self._known[e] = value_at(self.builder, e, self._sizes)
        return self._known[e]

    @staticmethod
    def number(n: int) -> V:
        return V(str(n), I64)

    def larger(self, a: V, b: V) -> V:
        return self.builder.select(self.builder.compare("sgt", a, b), a, b)


def _sized(b: Builder, plan: OpenPlan, ports: tuple[Port, ...]) -> str:
    """The number of the first size or array that cannot be, or -1. Nothing is computed of sizes
    that are outside of their limits: it might be a division by zero.
    """
    values = _Values(b, plan)
    outside = []
    for v, (low, high) in zip(values.given, plan.limits, strict=True):
        below, above = (
            b.compare(op, v, values.number(n)) for op, n in (("slt", low), ("sgt", high))
        )
        outside.append(b.op("or", below, above))
    size = _first(b, outside, 0)
    bad = b.compare("sge", size, values.number(0)).name
    b.lines += [f"  br i1 {bad}, label %outside, label %inside", "outside:", f"  ret {size}"]
    b.emit("inside:")
    wrong = []
    for k, p in enumerate(ports):
        total, bad_shape = values.number(p.dtype.nbytes), V("false", I1)
        for e in p.extents or map(of, p.shape):
            n = values(e)
            pair = b.value(I64, f"call {{ i64, i1 }} @llvm.smul.with.overflow.i64({total}, {n})")
            total = b.value(I64, f"extractvalue {{ i64, i1 }} {pair.name}, 0")
            over = b.value(I1, f"extractvalue {{ i64, i1 }} {pair.name}, 1")
            below = b.compare("slt", n, values.number(0))
            bad_shape = b.op("or", bad_shape, b.op("or", over, below))
        wrong.append(bad_shape)
        some = b.compare("ne", total, values.number(0))
        element = b.select(some, values.number(p.dtype.nbytes), values.number(0))
        for name, v in (("nbytes", total), ("elements", element)):
            at = b.value(PTR, f"getelementptr i64, ptr %{name}, i64 {k}").name
            b.emit(f"  store {v}, ptr {at}")
    wrong += [b.compare("slt", values(e), values.number(0)) for e, _ in plan.lengths]
    out = _first(b, wrong, len(plan.names))
    head = "define internal i64 @sized(ptr %sizes, ptr %nbytes, ptr %elements) nounwind {"
    return "\n".join([head, *b.lines, f"  ret {out}", "}"])


def _first(b: Builder, wrong: Sequence[V], begin: int) -> V:
    """The number of the first that is true, counted from `begin` on; or -1."""
    out = V("-1", I64)
    for k, bad in reversed([*enumerate(wrong, begin)]):
        out = b.select(bad, V(str(k), I64), out)
    return out


def _arena(values: _Values, plan: OpenPlan) -> tuple[list[V], V]:
    """Where each array of the arena begins, and the bytes of all. The kernels' workspace is behind
    them.
    """
    b, ends, begins = values.builder, list[V](), list[V]()
    mask = values.number(-ALIGNMENT)
    for a in plan.arena:
        begin = values.number(0)
        for k in a.below:
            begin = values.larger(ends[k], begin)
        begins.append(begin)
        end = b.op("add", values(a.nbytes + (ALIGNMENT - 1)), begin)
        ends.append(b.op("and", end, mask))
    total = values.number(0)
    for end in ends:
        total = values.larger(end, total)
    return begins, total


def _workspace(b: Builder, plan: OpenPlan) -> str:
    """The bytes of the arena and those that any of the kernels needs, so that it does not matter
    which ones run.
    """
    values = _Values(b, plan)
    _, arena = _arena(values, plan)
    out = values.number(0)
    for e in dict.fromkeys(m.workspace for c in plan.calls for m in c.members):
        out = values.larger(values(e), out)
    out = b.op("add", arena, out)
    head = "define internal i64 @workspace_of(ptr %sizes) nounwind {"
    return "\n".join([head, *b.lines, f"  ret {out}", "}"])


class _Plan:
    """The function that copies parts of constants, calls the kernels, and copies outputs."""

    def __init__(self, builder: Builder, plan: OpenPlan, library: Library) -> None:
        self.plan, self.library, self.values = plan, library, _Values(builder, plan)
        self.builder = builder

    def text(self) -> str:
        b, plan = self.builder, self.plan
        for kind in ("input", "output"):
            for k in range(len(getattr(self.library, f"{kind}s"))):
                b.emit(f"  %{kind}{k}.p = getelementptr ptr, ptr %{kind}s, i64 {k}")
                b.emit(f"  %{kind}{k} = load ptr, ptr %{kind}{k}.p")
        # All numbers first: what comes behind has branches.
        self.begins, arena = _arena(self.values, plan)
        b.emit(f"  %scratch = getelementptr i8, ptr %workspace, {arena}")
        self._prepare()
        for k, part in enumerate(plan.parts):
            self._copy_part(k, part)
        for k, call in enumerate(plan.calls):
            self._call(k, call)
        for copy in self.library.copies:
            source, nbytes = self._address(copy.source), self.values(copy.nbytes)
            b.emit(
                f"  call void @llvm.memmove.p0.p0.i64(ptr %output{copy.output}, ptr {source}, "
                f"{nbytes}, i1 false)"
            )
        most = max((len(c.addresses) + len(m.sizes) for c in plan.calls for m in c.members),
                   default=1)  # fmt: skip
        return "\n".join(
            [
                "define internal void @plan(ptr %sizes, ptr %inputs, ptr %outputs, ptr %weights, "
                "ptr %workspace) nounwind {",
                f"  %args = alloca [{most} x ptr], align 16",
                "  %row.p = alloca i64",
                *(f"  %arg{p} = getelementptr ptr, ptr %args, i64 {p}" for p in range(most)),
                *b.lines,
                "  ret void",
                "}",
                "",
            ]
        )

    def _prepare(self) -> None:
        """Computes every number that is used behind a branch."""
        for call in self.plan.calls:
            used = [a.offset for a in call.addresses]
            for e in (*used, *call.own.values(), *(e for m in call.members for e in m.sizes)):
                self.values(e)
        for copy in self.library.copies:
            self.values(copy.nbytes)
            self.values(copy.source.offset)
        for part in self.plan.parts:
            for e in part.shape:
                self.values(e)

    def _address(self, a: Address) -> str:
        b, offset = self.builder, self.values(a.offset)
        match a.base:
            case "none":
                return "null"
            case "arena":
                offset = b.op("add", self.begins[a.number], offset)
                base = "%workspace"
            case "weights":
                base = "%weights"
            case _:
                base = f"%{a.base}{a.number}"
        if offset.name == "0":
            return base
        return b.value(PTR, f"getelementptr i8, ptr {base}, {offset}").name

    def _call(self, k: int, call: OpenCall) -> None:
        b, count = self.builder, len(call.addresses)
        for p, a in enumerate(call.addresses):
            b.emit(f"  store ptr {self._address(a)}, ptr %arg{p}")
        if len(call.members) > 1:
            b.lines += self._chosen(call, call.choice, f"{k}.")
        for m, member in enumerate(call.members):
            if len(call.members) > 1:
                b.emit(f"call{k}.{m}:")
            for at, e in enumerate(member.sizes):
                b.emit(f"  store {self.values(e)}, ptr %arg{count + at}")
            b.emit(f"  call void @{member.symbol}(ptr %args, ptr %scratch)")
            if len(call.members) > 1:
                b.emit(f"  br label %done{k}")
        if len(call.members) > 1:
            b.emit(f"done{k}:")

    def _chosen(self, call: OpenCall, choice: Choice, at: str) -> Iterator[str]:
        """Branches to the call of a kernel. `at` is the place in the tree."""
        if not isinstance(choice, Branch):
            yield f"  br label %call{at.split('.')[0]}.{choice}"
            return
        yield f"  %is{at} = icmp slt {self.values(call.own[choice.size])}, {choice.least}"
        yield f"  br i1 %is{at}, label %below{at}, label %other{at}"
        for name, inner in (("below", choice.below), ("other", choice.other)):
            yield f"{name}{at}:"
            yield from self._chosen(call, inner, f"{at}{name[0]}")

    def _copy_part(self, k: int, part: Part) -> None:
        """Row by row: a row is what lies together in the whole and in the part."""
        b, values = self.builder, self.values
        pairs = enumerate(zip(part.shape, part.whole, strict=True))
        last = max((d for d, (e, n) in pairs if e.const != n), default=0)
        row = values(product(part.shape[last:]) * part.itemsize)
        count = values(product(part.shape[:last]))
        to = self._address(Address("arena", 0, part.number))
        source = self._address(Address("weights", part.weights))
        b.lines += [
            "  store i64 0, ptr %row.p",
            f"  br label %part{k}.test",
            f"part{k}.test:",
            f"  %part{k}.t = load i64, ptr %row.p",
            f"  %part{k}.more = icmp slt i64 %part{k}.t, {count.name}",
            f"  br i1 %part{k}.more, label %part{k}.row, label %part{k}.done",
            f"part{k}.row:",
        ]
        rest, offset = V(f"%part{k}.t", I64), values.number(0)
        place = b.op("mul", rest, row)
        stride = part.itemsize * prod(part.whole[last:])
        for d in reversed(range(last)):
            n = values(part.shape[d])
            at = b.op("mul", b.op("urem", rest, n), values.number(stride))
            offset, rest = b.op("add", at, offset), b.op("udiv", rest, n)
            stride *= part.whole[d]
        goal = b.value(PTR, f"getelementptr i8, ptr {to}, {place}").name
        from_ = b.value(PTR, f"getelementptr i8, ptr {source}, {offset}").name
        b.emit(f"  call void @llvm.memmove.p0.p0.i64(ptr {goal}, ptr {from_}, {row}, i1 false)")
        b.lines += [
            f"  %part{k}.next = add i64 %part{k}.t, 1",
            f"  store i64 %part{k}.next, ptr %row.p",
            f"  br label %part{k}.test",
            f"part{k}.done:",
        ]
