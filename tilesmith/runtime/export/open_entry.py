"""The LLVM functions of an exported library whose sizes are open: what depends on them, in text.
The functions around them are in `open_run.ll`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilesmith.codegen.llvm.builder import I1, I64, Builder, V
from tilesmith.codegen.llvm.run_time_sizes import value_at
from tilesmith.expr.ints import of
from tilesmith.runtime.dispatch import Branch, Choice
from tilesmith.runtime.export.library import Address, Library, OpenPlan, Port
from tilesmith.runtime.export.opening import functions_of, text_constant

LARGEST = 1 << 40  # of a size; expressions of larger ones may overflow

TEXTS = {
    "no_sizes": "the list of sizes is NULL",
    "size_range": "the size %s is %lld; it is between 0 and $LARGEST",
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
        "LARGEST": LARGEST,
        "NUM_SIZES": len(plan.names),
        "NUM_ARRAYS": num_inputs + num_outputs,
        "IN_NBYTES": 8 * num_inputs,
        "OUT_NBYTES": 8 * num_outputs,
    }
    ports = (*library.inputs, *library.outputs)
    names = [*(n.removeprefix("#") for n in plan.names), *(p.name for p in ports)]
    texts = [text_constant(f"name.{k}", n) for k, n in enumerate(names)]
    listed = ", ".join(f"ptr @name.{k}" for k in range(len(names)))
    return "\n".join(
        [
            *texts,
            f"@names = private constant [{len(names)} x ptr] [{listed}]",
            functions_of("open_run.ll", TEXTS, {**values, **more}),
        ]
    )


def open_plan_source(library: Library) -> str:
    """sized(sizes, nbytes, elements), workspace_of(sizes), and void plan(sizes, inputs, outputs,
    weights, workspace), which calls one kernel.
    """
    plan = library.open
    assert plan is not None
    builder = Builder(library.target.machine, library.target.features)
    parts = [
        _sized(builder, plan, (*library.inputs, *library.outputs)),
        _workspace(builder, plan),
        _plan(plan, library),
    ]
    symbols = sorted({c.symbol for c in library.calls})
    return "\n".join(
        [
            *(f"declare void @{s}(ptr, ptr)" for s in symbols),
            "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
            "declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64)",
            *builder.declarations.values(),
            *parts,
        ]
    )


def _begin(builder: Builder, plan: OpenPlan) -> dict[str, V]:
    """Loads the sizes."""
    builder.lines = []
    values = {}
    for k, name in enumerate(plan.names):
        at = builder.value(I64, f"getelementptr i64, ptr %sizes, i64 {k}").name
        values[name] = builder.value(I64, f"load i64, ptr {at}")
    return values


def _sized(b: Builder, plan: OpenPlan, ports: tuple[Port, ...]) -> str:
    """The number of the first size or array that cannot be, or -1."""
    values = _begin(b, plan)
    wrong = [b.compare("ugt", v, V(str(LARGEST), I64)) for v in values.values()]
    for k, p in enumerate(ports):
        total, bad = V(str(p.dtype.nbytes), I64), V("false", I1)
        for e in p.extents or map(of, p.shape):
            n = value_at(b, e, values)
            pair = b.value(I64, f"call {{ i64, i1 }} @llvm.smul.with.overflow.i64({total}, {n})")
            total = b.value(I64, f"extractvalue {{ i64, i1 }} {pair.name}, 0")
            over = b.value(I1, f"extractvalue {{ i64, i1 }} {pair.name}, 1")
            below = b.compare("slt", n, V("0", I64))
            bad = b.op("or", bad, b.op("or", over, below))
        wrong.append(bad)
        some = b.compare("ne", total, V("0", I64))
        element = b.select(some, V(str(p.dtype.nbytes), I64), V("0", I64))
        for name, v in (("nbytes", total), ("elements", element)):
            at = b.value(I64, f"getelementptr i64, ptr %{name}, i64 {k}").name
            b.emit(f"  store {v}, ptr {at}")
    out = V("-1", I64)
    for k, bad in reversed(list(enumerate(wrong))):
        out = b.select(bad, V(str(k), I64), out)
    head = "define internal i64 @sized(ptr %sizes, ptr %nbytes, ptr %elements) nounwind {"
    return "\n".join([head, *b.lines, f"  ret {out}", "}"])


def _workspace(b: Builder, plan: OpenPlan) -> str:
    """The bytes that any of the kernels needs, so that it does not matter which one runs."""
    values = _begin(b, plan)
    out = V("0", I64)
    for p in dict.fromkeys(m.workspace for m in plan.members):
        n = value_at(b, p, values)
        out = b.select(b.compare("sgt", n, out), n, out)
    head = "define internal i64 @workspace_of(ptr %sizes) nounwind {"
    return "\n".join([head, *b.lines, f"  ret {out}", "}"])


def _plan(plan: OpenPlan, library: Library) -> str:
    count = len(library.calls[0].addresses)
    lines = [
        "define internal void @plan(ptr %sizes, ptr %inputs, ptr %outputs, ptr %weights, "
        "ptr %workspace) nounwind {",
        f"  %args = alloca [{count + len(plan.names)} x ptr], align 16",
    ]
    for k, a in enumerate(library.calls[0].addresses):
        lines += [*_address(f"a{k}", a), f"  %arg{k} = getelementptr ptr, ptr %args, i64 {k}"]
        lines.append(f"  store ptr %a{k}, ptr %arg{k}")
    for k, name in enumerate(plan.names):
        lines.append(f"  %size{k}.p = getelementptr i64, ptr %sizes, i64 {k}")
        lines.append(f"  %size{k} = load i64, ptr %size{k}.p  ; {name}")
    lines += _chosen(plan, plan.choice, "0")
    for m, call in enumerate(library.calls):
        lines.append(f"call{m}:")
        for at, name in enumerate(plan.members[m].names):
            own = plan.names.index(name)
            lines.append(f"  %to{m}.{at} = getelementptr i64, ptr %args, i64 {count + at}")
            lines.append(f"  store i64 %size{own}, ptr %to{m}.{at}")
        lines += [f"  call void @{call.symbol}(ptr %args, ptr %workspace)", "  ret void"]
    return "\n".join([*lines, "}", ""])


def _chosen(plan: OpenPlan, choice: Choice, at: str) -> Iterator[str]:
    """Branches to the call of a kernel. `at` is the place in the tree."""
    if not isinstance(choice, Branch):
        yield f"  br label %call{choice}"
        return
    k = plan.names.index(f"#{choice.size}")
    yield f"  %is{at} = icmp slt i64 %size{k}, {choice.least}"
    yield f"  br i1 %is{at}, label %below{at}, label %other{at}"
    for name, inner in (("below", choice.below), ("other", choice.other)):
        yield f"{name}{at}:"
        yield from _chosen(plan, inner, f"{at}{name[0]}")


def _address(name: str, a: Address) -> Iterator[str]:
    """The address of an argument: an array of the caller, or one of the weights."""
    if a.base == "weights":
        yield f"  %{name} = getelementptr i8, ptr %weights, i64 {a.offset}"
    else:
        yield f"  %{name}.p = getelementptr ptr, ptr %{a.base}s, i64 {a.number}"
        yield f"  %{name} = load ptr, ptr %{name}.p"
