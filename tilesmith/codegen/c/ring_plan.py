"""The plan of a launch with rings of tiles (rings.py): the ring of each tile, and what the body
of the launch becomes before it is printed: without barriers, with exponentials in base two.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32
from tilesmith.base.errors import BuildError
from tilesmith.codegen.c.position import Position
from tilesmith.codegen.c.statements import size_of
from tilesmith.codegen.c.tensor_plan import Copy, copy_of, is_copy
from tilesmith.expr.nodes import Binary, Const, Expr, Load, Select, Unary, rewrite
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import BARRIERS_NBYTES, LEAST_STAGES, TILE_ALIGNMENT
from tilesmith.ir.nodes import Buffer, For, If, Stmt, Store, Sync
from tilesmith.ir.nodes import rewrite as rewrite_statements
from tilesmith.ir.notes import PipelineStages

_FAR_BELOW = -1e30  # no product of 16-bit numbers gets there
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Ring:
    """The stages of one tile in shared memory, and what fills them."""

    tile: str
    stages: int
    offset: int  # of the first stage
    nbytes: int  # of a stage
    barriers: int  # of the first barrier: all that say full, then all that say empty
    name: str  # of the variables that count


def rings_of(
    nest: LaunchForm, buffers: dict[str, Buffer], position: Position
) -> tuple[dict[str, Ring], dict[int, Copy]]:
    """The ring of each tile, and what each statement copies, by its id."""
    tiles = {b.name: b for b in nest.shared}
    copies: dict[int, Copy] = {}
    depth: dict[str, int] = {}

    def walk(body: tuple[Stmt, ...], stages: int) -> None:
        for s in body:
            if isinstance(s, For):
                walk(s.body, s.count(PipelineStages) or LEAST_STAGES)
            elif isinstance(s, If):
                walk(s.body, stages)
            elif isinstance(s, Store) and is_copy(s):
                copies[id(s)] = copy = copy_of(s, buffers, tiles)
                depth[copy.to] = max(stages, depth.get(copy.to, 1))

    walk(nest.body, 1)
    if depth.keys() != tiles.keys():
        raise BuildError("a tile of a matrix instruction is not filled by the copy engine")
    found: dict[str, Ring] = {}
    offset, barriers = 0, 0
    for name, b in tiles.items():
        nbytes = -(-size_of(b) * b.dtype.nbytes // TILE_ALIGNMENT) * TILE_ALIGNMENT
        ring = Ring(name, depth[name], offset, nbytes, barriers, _name(position, name))
        found[name] = ring
        offset += ring.stages * nbytes
        barriers += ring.stages * BARRIERS_NBYTES
    return found, copies


def _name(position: Position, hint: str) -> str:
    """What the variables of a ring are named after."""
    taken = position.names.taken
    while True:
        name = position.fresh(hint)
        own = {f"{name}_{x}" for x in ("full", "empty", "stage", "phase")}
        if not own & taken:
            taken |= own
            return name


def advance(r: Ring) -> str:
    """Code that goes on to the next stage; the phase changes with every round."""
    if r.stages == 1:
        return f"{r.name}_phase ^= 1;"
    return f"if (++{r.name}_stage == {r.stages}) {{ {r.name}_stage = 0; {r.name}_phase ^= 1; }}"


def copies_of(s: Stmt) -> list[Store]:
    """The statement, if it is a copy by the copy engine."""
    return [s] if isinstance(s, Store) and is_copy(s) else []


def filled_tile(s: Stmt) -> str:
    """The tile that a statement fills, if it does nothing else."""
    copies = copies_of(s)
    return copies[0].writes[0].buffer if copies else ""


def without_barriers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Rings say when a tile may be read or filled, so no barrier among all threads is needed."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For | If):
            out.append(replace(s, body=without_barriers(s.body)))
        elif not isinstance(s, Sync):
            out.append(s)
    return tuple(out)


def without_copies(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements that access memory by themselves, not by the copy engine."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For | If):
            out.append(replace(s, body=without_copies(s.body)))
        elif not is_copy(s):
            out.append(s)
    return tuple(out)


def by_producer(body: tuple[Stmt, ...], threads: frozenset[str]) -> tuple[Stmt, ...]:
    """Copies without the condition that one thread makes them: the producer does."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, If) and all(map(is_copy, s.body)):
            conds = tuple(p for p in s.conds if not p.names & threads)
            out += (replace(s, conds=conds),) if conds else s.body
        elif isinstance(s, For | If):
            out.append(replace(s, body=by_producer(s.body, threads)))
        else:
            out.append(s)
    return tuple(out)


def in_base_two(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """exp(x) as a power of two. Where x is the difference of a scaled product and a value of its
    row, the factor goes into the scale, and the difference takes one instruction.
    """

    def scaled(e: Expr) -> Expr | None:
        match e:
            case Binary(op="mul", a=Load() as a, b=Const() as c):
                return Binary("mul", a, Const(float(c.value) * _LOG2_E, c.dtype), e.dtype)
            case Select(cond=c, a=a, b=Const() as b) if b.value == -inf:
                inner = scaled(a)
                return None if inner is None else Select(c, inner, b, e.dtype)
        return None

    def put(e: Expr) -> Expr:
        if not isinstance(e, Unary) or e.op != "exp" or e.dtype is not FLOAT32:
            return e
        x, factor = e.x, Const(_LOG2_E, e.dtype)
        if isinstance(x, Binary) and x.op == "sub" and (a := scaled(x.a)) is not None:
            # Of a row that saw nothing yet, the value times the factor would be infinite.
            b = Binary("max", x.b, Const(_FAR_BELOW, e.dtype), e.dtype)
            x = Binary("sub", a, Binary("mul", b, factor, e.dtype), e.dtype)
        else:
            x = Binary("mul", x, factor, e.dtype)
        return Unary("exp", x, e.dtype)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Store) or s.intrinsic is not None:
            return (s,)
        return (
            replace(s, writes=tuple(replace(w, value=rewrite(w.value, put)) for w in s.writes)),
        )

    return rewrite_statements(body, go)
