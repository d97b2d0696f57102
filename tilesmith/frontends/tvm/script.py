"""`ts.from_tvmscript`: the computation that a TVMScript PrimFunc states, as a Function. The text is
parsed as Python's syntax and never run; TVM is not needed.

A block says what it computes for every point of its axes. That is taken, and the loops around it,
with their splits, bindings and annotations, are left: how to compute it is for a search to find.

    for i, j, k in T.grid(8, 4, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():                                      C[i, j] = sum over k of
                C[vi, vj] = T.float32(0)                 ->         A[i, k] * B[k, j]
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import ExpressionError, TilesmithError
from tilesmith.base.given import checks_given
from tilesmith.expr import functions, reductions
from tilesmith.expr.dsl import Tensor, compute, placeholder, reduce_axis
from tilesmith.expr.nodes import Const
from tilesmith.expr.values import Axis, as_value, cast
from tilesmith.frontends.tvm.expressions import (
    Expressions,
    Refused,
    called,
    dtype_of,
    indices_of,
    is_call,
    whole_number,
)
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function

_LOOPS = ("grid", "serial", "parallel", "vectorized", "unroll", "thread_binding", "range")
_BLOCKS = ("block", "sblock")
_ALLOCATIONS = ("alloc_buffer", "sblock_alloc_buffer", "match_buffer", "decl_buffer")
# Statements that say how, or what is known anyway.
_LEFT = ("func_attr", "reads", "writes", "block_attr", "sblock_attr", "where")
_KINDS = {"spatial": "S", "S": "S", "reduce": "R", "R": "R"}
_JOINS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "add": (reductions.sum, lambda a, b: a + b, 0.0),
    "mul": (reductions.prod, lambda a, b: a * b, 1.0),
    "max": (reductions.amax, functions.maximum, float("-inf")),
    "min": (reductions.amin, functions.minimum, float("inf")),
}


@checks_given(error=ExpressionError)
def from_tvmscript(text: str, name: str | None = None) -> Function:
    """The Function that computes what a PrimFunc of TVMScript does, from its text.

    - `text`: a function under `@T.prim_func`, or a class under `@I.ir_module`, as TVM prints it
      (`mod.script()`). Blocks must write one buffer each, at an index that is one axis for each
      dimension; sizes must be numbers. Loops, splits, bindings and annotations are dropped: they
      say how, and `ts.tune` finds that.
    - `name`: which function, if there are several.

    Parameters that are written become outputs and come last. What cannot be imported is an
    ExpressionError that names the line.

    Example:

        func = ts.from_tvmscript('''
        @T.prim_func
        def main(A: T.Buffer((64, 32), "float32"), B: T.Buffer((64,), "float32")):
            for i, k in T.grid(64, 32):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]
        ''')
        print(func)
    """
    try:
        tree = ast.parse(_unindented(text))
    except SyntaxError as error:
        raise ExpressionError(f"line {error.lineno}: {error.msg}") from None
    try:
        return _Importer(_chosen(tree, name)).function()
    except Refused as why:
        raise ExpressionError(f"line {why.line}: {why.text}") from None


def _unindented(text: str) -> str:
    """With as many lines as before, so that errors name the right one."""
    lines = text.splitlines()
    indents = [len(s) - len(s.lstrip()) for s in lines if s.strip()]
    return "\n".join(s[min(indents, default=0) :] for s in lines)


def _chosen(tree: ast.Module, name: str | None) -> ast.FunctionDef:
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    marked = [f for f in found if any("prim_func" in ast.unparse(d) for d in f.decorator_list)]
    found = marked or found
    if name is not None:
        found = [f for f in found if f.name == name] or found
        if found and found[0].name != name:
            names = ", ".join(f.name for f in found)
            raise Refused(found[0], f"there is no function {name!r}; there is {names}")
    if not found:
        raise Refused(tree, "there is no function; give what @T.prim_func stands before")
    if len(found) > 1:
        names = ", ".join(f.name for f in found)
        raise Refused(found[0], f"there are several functions: {names}; say name=")
    return found[0]


@dataclass(frozen=True)
class _Buffer:
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class _BlockAxis:
    name: str
    kind: str
    extent: int


class _Importer:
    """Imports one function, statement by statement."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.tree = tree
        self.name = tree.name
        self.params: dict[str, int] = {}  # buffers, and which parameter each is
        self.handles: dict[str, int] = {}  # parameters that match_buffer gives a shape
        self.buffers: dict[str, _Buffer] = {}
        self.tensors: dict[str, Tensor] = {}  # what buffers hold now
        self.loops: dict[str, int] = {}  # extents
        self.written: Counter[str] = Counter()
        # Of buffers whose last block wrote the same number everywhere, that number.
        self.constants: dict[str, float] = {}
        self.writes = Counter(
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and is_call(node.items[0].context_expr, *_BLOCKS)
            for name in {_target(s) for s in node.body if isinstance(s, ast.Assign)} - {""}
        )

    def function(self) -> Function:
        for k, arg in enumerate(self.tree.args.args):
            self._parameter(k, arg)
        self._statements(self.tree.body)
        params = sorted(self.params, key=lambda p: self.params[p])
        outputs = [p for p in params if self.written[p]]
        inputs = [p for p in params if not self.written[p]]
        if not outputs:
            raise Refused(self.tree, f"{self.name} writes none of its parameters")
        tensors = [self.tensors[p] for p in (*inputs, *outputs)]
        try:
            return function(tensors, name=self.name)
        except TilesmithError as error:
            raise Refused(self.tree, str(error)) from None

    def _parameter(self, place: int, arg: ast.arg) -> None:
        if arg.annotation is None:
            raise Refused(arg, f"{arg.arg} has no type, such as T.Buffer((8, 8), 'float32')")
        match arg.annotation:
            case ast.Attribute(attr="handle") | ast.Name(id="handle"):
                self.handles[arg.arg] = place
            case ast.Call() as call if called(call) == "handle":
                self.handles[arg.arg] = place
            case ast.Call() as call if called(call) == "Buffer":
                self._declare(arg, arg.arg, call.args, call.keywords)
            case ast.Subscript(value=ast.Attribute(attr="Buffer"), slice=ast.Tuple(elts=args)):
                self._declare(arg, arg.arg, args, [])
            case other:
                what = ast.unparse(other)
                raise Refused(arg, f"{arg.arg} is a {what}; only buffers of known sizes are taken")
        if arg.arg in self.buffers:
            self._add_parameter(arg.arg, place)

    def _add_parameter(self, name: str, place: int) -> None:
        self.params[name] = place
        if not self.writes[name]:
            b = self.buffers[name]
            self.tensors[name] = placeholder(b.shape, b.dtype, name=name)

    def _declare(
        self, node: ast.AST, name: str, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> None:
        by_name = {k.arg: k.value for k in keywords}
        shape = args[0] if args else by_name.get("shape")
        if shape is None:
            raise Refused(node, f"{name} has no shape")
        extents = list(shape.elts) if isinstance(shape, ast.Tuple | ast.List) else [shape]
        given = args[1] if len(args) > 1 else by_name.get("dtype", ast.Constant("float32"))
        self.buffers[name] = _Buffer(tuple(map(whole_number, extents)), dtype_of(given))

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for s in body:
            self._statement(s)

    def _statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return
            case ast.Expr(value=ast.Call() as call) if called(call) in _LEFT:
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if (
                called(call) in _ALLOCATIONS
            ):
                self._allocate(s, name, call)
            case ast.For(target=target, iter=ast.Call() as call, body=body) if (
                called(call) in _LOOPS
            ):
                self._loop(target, call)
                self._statements(body)
            case ast.With(items=[item], body=body) if is_call(item.context_expr, *_BLOCKS):
                if _has_axes(body) or not any(isinstance(x, ast.For | ast.With) for x in body):
                    self._block(s)
                else:  # the root
                    self._statements(body)
            case ast.Assign() if _target(s):
                raise Refused(s, f"{_target(s)} is written outside of a block; print it as S-TIR")
            case _:
                first = ast.unparse(s).splitlines()[0]
                raise Refused(s, f"{first!r} is not a loop or a block that can be imported")

    def _allocate(self, s: ast.stmt, name: str, call: ast.Call) -> None:
        if called(call) not in ("match_buffer", "decl_buffer"):
            self._declare(s, name, call.args, call.keywords)
            return
        of = call.args[0] if call.args else None
        if isinstance(of, ast.Subscript):
            raise Refused(s, f"{name} is a part of a buffer, which a schedule made")
        if isinstance(of, ast.Name) and of.id in self.handles:
            self._declare(s, name, call.args[1:], call.keywords)
            self._add_parameter(name, self.handles[of.id])
        else:
            self._declare(s, name, call.args, call.keywords)

    def _loop(self, target: ast.expr, call: ast.Call) -> None:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        extents = call.args
        if called(call) != "grid" and len(call.args) == 2:  # from, to
            if whole_number(call.args[0]) != 0:
                raise Refused(call, f"{ast.unparse(call)} does not begin at 0")
            extents = call.args[1:]
        if len(names) != len(extents):
            raise Refused(call, f"{len(names)} loops have {len(extents)} extents")
        for n, extent in zip(names, extents, strict=True):
            self.loops[ast.unparse(n)] = whole_number(extent)

    # blocks
    def _block(self, node: ast.With) -> None:
        axes: list[_BlockAxis] = []
        init: list[ast.Assign] = []
        stores: list[ast.Assign] = []
        lets: dict[str, ast.expr] = {}
        for s in node.body:
            match s:
                case ast.Expr(value=ast.Call() as call) if called(call) in _LEFT:
                    continue
                case ast.Assign(targets=[target], value=ast.Call() as call) if _is_axis(call):
                    axes += self._axes(target, call)
                case ast.With(items=[item], body=body) if is_call(item.context_expr, "init"):
                    init = [x for x in body if isinstance(x, ast.Assign)]
                case ast.Assign() if _target(s):
                    stores.append(s)
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    lets[name] = value
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    continue
                case _:
                    first = ast.unparse(s).splitlines()[0]
                    raise Refused(s, f"{first!r} in a block cannot be imported")
        if len(stores) != 1:
            raise Refused(node, f"the block writes {len(stores)} buffers; one is taken")
        self._stage(stores[0], axes, init, lets)

    def _axes(self, target: ast.expr, call: ast.Call) -> Iterator[_BlockAxis]:
        if called(call) == "remap":
            kinds, bound = call.args
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            loops = bound.elts if isinstance(bound, ast.List | ast.Tuple) else [bound]
            text = kinds.value if isinstance(kinds, ast.Constant) else ""
            if not isinstance(text, str) or not len(text) == len(names) == len(loops):
                raise Refused(call, f"{ast.unparse(call)} does not name a kind for each axis")
            for n, kind, loop in zip(names, text, loops, strict=True):
                extent = self.loops.get(ast.unparse(loop))
                if extent is None or kind not in "SR":
                    raise Refused(call, f"{ast.unparse(loop)} is no loop around, or no S or R")
                yield _BlockAxis(ast.unparse(n), kind, extent)
            return
        domain = call.args[0]
        if isinstance(domain, ast.Tuple):
            if whole_number(domain.elts[0]) != 0:
                raise Refused(call, f"{ast.unparse(target)} does not begin at 0")
            domain = domain.elts[1]
        yield _BlockAxis(ast.unparse(target), _KINDS[called(call)], whole_number(domain))

    def _stage(
        self, store: ast.Assign, axes: Sequence[_BlockAxis], init: Sequence[ast.Assign],
        lets: dict[str, ast.expr],
    ) -> None:  # fmt: skip
        name = _target(store)
        if name not in self.buffers:
            raise Refused(store, f"{name} is not a buffer; allocate it by T.alloc_buffer")
        buffer = self.buffers[name]
        place = indices_of(_subscript(store))
        order = self._order(store, place, axes, buffer)
        spatial = {a.name: a for a in axes if a.kind == "S"}
        reduced = [a for a in axes if a.kind == "R"]
        if (
            name in self.params
            and not self.written[name]
            and _reads(store.value, name)
            and not init
        ):
            raise Refused(store, f"{name} is changed in place: it would be input and output")
        count = self.written[name]
        own = name if count == self.writes[name] - 1 else f"{name}_{count}"
        before = self.tensors.get(name)

        def body(*index: Any) -> Any:
            names: dict[str, Any] = dict.fromkeys(spatial, 0)
            names |= {n: i for n, i in zip(order, index, strict=True) if n}
            free = [reduce_axis(a.extent, a.name) for a in reduced]
            names |= {a.name: f for a, f in zip(reduced, free, strict=True)}
            tensors = {**self.tensors}
            if before is None:
                tensors.pop(name, None)
            for let, value in lets.items():
                names[let] = Expressions(names, tensors).value(value)
            read = Expressions(names, tensors)
            if not reduced:
                return cast(read.value(store.value), buffer.dtype)
            return self._reduced(store, init, read, free, before, index)

        labels = [n or f"i{k}" for k, n in enumerate(order)]
        try:
            tensor = compute(buffer.shape, body, name=own, axes=labels)
        except TilesmithError as error:
            raise Refused(store, str(error)) from None
        self.tensors[name] = tensor
        self.written[name] += 1
        self.constants.pop(name, None)
        if not reduced and isinstance(store.value, ast.Constant | ast.Call | ast.UnaryOp):
            self._note_constant(name, store.value)

    def _order(
        self, store: ast.Assign, place: Sequence[ast.expr], axes: Sequence[_BlockAxis],
        buffer: _Buffer,
    ) -> list[str]:  # fmt: skip
        """For each dimension of what is written the axis that runs over it; "" for one element."""
        spatial = {a.name: a.extent for a in axes if a.kind == "S"}
        order: list[str] = []
        for p, extent in zip(place, buffer.shape, strict=True):
            text = ast.unparse(p)
            if text in spatial and text not in order and spatial[text] == extent:
                order.append(text)
            elif text in spatial and text not in order and extent > spatial[text]:
                raise Refused(
                    store,
                    f"{text} runs over {spatial[text]} of the {extent} elements of a dimension",
                )
            elif extent == 1 and isinstance(p, ast.Constant | ast.Call) and whole_number(p) == 0:
                order.append("")
            else:
                raise Refused(
                    store,
                    f"{ast.unparse(store.targets[0])} is not written at one axis of the block for "
                    "each dimension",
                )
        left = [n for n, extent in spatial.items() if n not in order and extent != 1]
        if left:
            raise Refused(store, f"the result does not depend on the spatial axis {left[0]}")
        return order

    def _reduced(
        self, store: ast.Assign, init: Sequence[ast.Assign], read: Expressions,
        axes: Sequence[Axis], before: Tensor | None, index: Sequence[Any],
    ) -> Any:  # fmt: skip
        """The update of a reduction, as a reduction of what is added in each step."""
        name, target = _target(store), ast.unparse(store.targets[0])
        op, term = _update(store, target)
        if _reads(term, name):
            raise Refused(store, f"{name} is read twice in its own update")
        reduce, join, identity = _JOINS[op]
        over = tuple(axes)
        value = reduce(as_value(read.value(term)), axis=over)
        if init:
            first = init[0].value
            start = as_value(read.value(first))
        elif before is not None:
            if self.constants.get(name) in (identity, _lowest(op, before.dtype)):
                return value
            return join(before[tuple(index)], value)
        else:
            raise Refused(
                store, f"{name} is updated, but nothing has begun it: T.init() is missing"
            )
        is_neutral = isinstance(start.node, Const) and start.node.value in (
            identity, _lowest(op, start.dtype),
        )  # fmt: skip
        return value if is_neutral else join(start, value)

    def _note_constant(self, name: str, node: ast.expr) -> None:
        try:
            value = as_value(Expressions({}, {}).value(node))
        except Refused:
            return
        if isinstance(value.node, Const):
            self.constants[name] = float(value.node.value)


def _lowest(op: str, d: DType) -> float | None:
    """What begins a maximum or minimum of a type, besides infinity."""
    return {"max": float(d.lowest()), "min": float(d.highest())}.get(op)


def _update(store: ast.Assign, target: str) -> tuple[str, ast.expr]:
    """How a reduction joins its result with another term, and the term."""
    match store.value:
        case ast.BinOp(left=a, op=ast.Add() | ast.Mult() as op, right=b):
            name = "add" if isinstance(op, ast.Add) else "mul"
            pair = a, b
        case ast.BinOp(left=a, op=ast.Sub(), right=b) if ast.unparse(a) == target:
            return "add", ast.copy_location(ast.UnaryOp(ast.USub(), b), b)
        case ast.Call(args=[a, b, *_]) as call if called(call).lower() in ("max", "min"):
            name, pair = called(call).lower(), (a, b)
        case _:
            name, pair = "", (store.value, store.value)
    for own, term in (pair, pair[::-1]):
        if name and ast.unparse(own) == target:
            return name, term
    raise Refused(
        store,
        f"{ast.unparse(store.value)} is not {target} with a term added or multiplied, or their "
        "maximum or minimum",
    )


def _has_axes(body: Sequence[ast.stmt]) -> bool:
    return any(
        isinstance(s, ast.Assign) and isinstance(s.value, ast.Call) and _is_axis(s.value)
        for s in body
    )


def _is_axis(call: ast.Call) -> bool:
    """T.axis.spatial(...) and the like."""
    match call.func:
        case ast.Attribute(value=ast.Attribute(attr="axis"), attr=kind):
            if kind not in (*_KINDS, "remap"):
                raise Refused(call, f"axes of the kind {kind} cannot be imported")
            return True
    return False


def _subscript(s: ast.Assign) -> ast.Subscript:
    (target,) = s.targets
    assert isinstance(target, ast.Subscript)
    return target


def _target(s: ast.stmt) -> str:
    """The buffer that a statement writes; empty if it writes none."""
    match s:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
    return ""


def _reads(node: ast.AST, buffer: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == buffer for n in ast.walk(node))
