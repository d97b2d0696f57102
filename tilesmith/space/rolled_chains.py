"""Chains that `roll` (schedule/roll.py) takes: scores, reductions of their rows, and a product of
what is made of them, as attention is, whatever its parts are called.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.dynamic import code_cost, condition_parts
from tilesmith.expr.nodes import FLOAT_FUNCTIONS, Select, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block, walk
from tilesmith.schedule.inline import Inline
from tilesmith.space import analysis
from tilesmith.space.chains import Chain, chain_of, is_product
from tilesmith.space.derive import State

_LONG = 16  # operations that are rather stored than computed for each reader


def scores_and_values(
    state: State, inlined: Callable[[Block], bool], stored: Callable[[Block], bool]
) -> tuple[State, Chain] | None:
    """The chain whose last product the state's block stores; None if there is none. Element-wise
    blocks of it are inlined unless they are `stored`; of others that the products read, those that
    are to be `inlined`.
    """
    func, result = state.func, state.block
    last = next((b for b in analysis.producers(func, result) if is_product(b)), None)
    if last is None or result.combiner is not None:
        return None
    after = analysis.fusible_consumer(func, last, permuted=True)
    if after is None or after.name != result.name:
        return None
    if any(i.extent.const is None for _, b in walk(func.body) for i in b.iters):
        return None
    chain = chain_of(func, last)
    if chain is None or len(chain.products) != 1 or len(last.reducing) != 1:
        return None
    if not any(b.combiner is not None and not is_product(b) for b in chain.blocks):
        return None
    (scores,) = chain.products
    for b in (scores, last):
        for p in analysis.producers(func, b):
            if p.combiner is None and p.name not in {x.name for x in chain.blocks} and inlined(p):
                state = state.attempt(Inline(p.name)) or state
    # Statistics make of an element-wise block more than a view of the scores.
    late: set[str] = set()
    for b in chain.blocks:
        before = {p.name for p in analysis.producers(func, b)}
        if (b.combiner is not None and b.name != scores.name) or before & late:
            late.add(b.name)
    for b in chain.blocks:
        if b.combiner is not None:
            continue
        _, b = find_block(state.func, b.name)
        readers = analysis.consumers(state.func, b)
        if b.name not in late:
            several = len(readers) > 1 or readers[0].combiner is not None
            keep = several and stored(b)
        else:
            keep = len(readers) > 1 or readers[0].name == last.name
        if not keep:
            without = state.attempt(Inline(b.name))
            if without is None:
                return None
            state = without
    chain = chain_of(state.func, find_block(state.func, last.name)[1])
    return None if chain is None or len(chain.products) != 1 else (state, chain)


def is_long(b: Block) -> bool:
    """Whether it is rather stored than computed for each of its readers."""
    values = [w.value for w in b.writes]
    functions = (
        isinstance(e, Unary) and e.op in FLOAT_FUNCTIONS
        for v in values for e in preorder(v, children)
    )  # fmt: skip
    return any(functions) or sum(map(code_cost, values)) > _LONG


def is_masked(func: Function, chain: Chain) -> bool:
    """Whether some scores are left out, depending on where they are."""
    names = {b.name for b in chain.blocks if b.combiner is not None and not is_product(b)}
    values = (find_block(func, n)[1].writes[0].value for n in names)
    return any(isinstance(e, Select) and any(condition_parts(e.cond)[0]) for e in values)


def weights_of(func: Function, chain: Chain) -> str:
    """The factor of the last product that the chain makes."""
    made = {b.name for b in chain.blocks}
    names = {x.buffer for x in chain.last.loads} & made
    if len(names) != 1:
        raise ScheduleError(f"{chain.last.name} does not read one result of its chain")
    return names.pop()
