"""Assertions of a model about tensors: they become checks of its graph."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.base.dtype import BOOL
from tilesmith.frontends.shared.wishes import Wish
from tilesmith.frontends.torch.call import Call, Importer, Term
from tilesmith.graph.graph import Value


def assert_true(call: Call, x: Term, message: str) -> None:
    """A tensor that must not be 0; a number is known only where PyTorch runs."""
    known = call.contents(x) if isinstance(x, Value) else x
    if known is None:
        assert isinstance(x, Value)
        call.wishes.append(Wish(call.cast(x, BOOL), message))
    elif not known:
        call.leave("it fails")


IMPORTERS: Mapping[str, Importer] = {
    "aten._assert_async.msg": assert_true,
    "aten._assert_scalar.default": assert_true,
}
# Operators that are there for what they do, and not for a result; "with_effects" wraps others.
EFFECTS = frozenset({*IMPORTERS, "with_effects"})
