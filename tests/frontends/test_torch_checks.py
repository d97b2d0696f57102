"""Models of PyTorch raise where eager does: indices outside of a tensor, assertions, matrices that
have no inverse.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilesmith as ts
from tilesmith.tune.torch_backend import tilesmith


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what PyTorch runs
        yield
    torch._dynamo.reset()


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def models(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Callable[..., Any]]:
    """Both ways to a model, for the same function."""
    fast = torch.compile(function, backend=tilesmith, options={"cache": None, "quiet": True})
    model = ts.compile_model(ts.from_torch(Of(function), inputs), cache=None, progress=False)
    names = [s.name for s in model.inputs]

    def exported(*given: torch.Tensor) -> torch.Tensor:
        (out,) = model(dict(zip(names, given, strict=True))).values()
        return out

    return [fast, exported]


T = torch.arange(10.0).reshape(5, 2)
ONES = torch.ones(2, 2)
# Operators that read or write at indices, and whether these may count from the end.
INDEXED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "embedding": (lambda i: F.embedding(i, T), False),
    "embedding of a sum": (lambda i: F.embedding((i + 1) - 1, T), False),
    "embedding of a reshaped": (lambda i: F.embedding(i.view(2, 1), T), False),
    "index_select": (lambda i: T.index_select(0, i), False),
    "index": (lambda i: T[i] + 1, True),
    "index of two": (lambda i: T[i, i * 0], True),
    "gather": (lambda i: T.gather(0, i[:, None]), False),
    "scatter": (lambda i: T.scatter(0, i[:, None], 1.0), False),
    "scatter_add": (lambda i: T.scatter_add(0, i[:, None], ONES), False),
    "index_put": (lambda i: T.index_put((i,), ONES), True),
    "index_add": (lambda i: T.index_add(0, i, ONES), False),
    "index_copy": (lambda i: T.index_copy(0, i, ONES), False),
    "nll_loss": (lambda i: F.nll_loss(T.t().contiguous(), i, reduction="sum"), False),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_outside_of_a_tensor(name: str) -> None:
    function, counts_back = INDEXED[name]
    good = torch.tensor([1, 3])
    for model in models(function, good):
        torch.testing.assert_close(model(good), function(good))
        for wrong in (5, -6, -1):
            ids = torch.tensor([2, wrong])
            if wrong == -1 and counts_back:
                torch.testing.assert_close(model(ids), function(ids))
                continue
            with pytest.raises(IndexError, match=f"index {wrong} is out of range") as told:
                model(ids)
            assert isinstance(told.value, ts.GraphError)
        torch.testing.assert_close(model(good), function(good))


def test_a_loss_ignores_what_it_is_told_to() -> None:
    x = torch.randn(3, 5)
    for model in models(lambda i: F.cross_entropy(x, i), torch.tensor([1, 2, 3])):
        ids = torch.tensor([4, -100, 0])
        torch.testing.assert_close(model(ids), F.cross_entropy(x, ids))


def asserting(*message: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), *message)
        return x + 1

    return function


@pytest.mark.parametrize("message", [(), ("x must be positive",)])
def test_assertions(message: tuple[str, ...]) -> None:
    x = torch.ones(3)
    for model in models(asserting(*message), x):
        assert model(x).tolist() == [2, 2, 2]
        with pytest.raises(RuntimeError, match=message[0] if message else "not 0") as told:
            model(-x)
        assert isinstance(told.value, ts.GraphError)


def test_a_failed_check_writes_nothing() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return T[i] + x

    fast = torch.compile(function, backend=tilesmith, options={"cache": None, "quiet": True})
    x = torch.zeros(2)
    with pytest.raises(IndexError):
        fast(x, torch.tensor([9]))
    assert x.tolist() == [0, 0]
    assert fast(x, torch.tensor([1])).tolist() == [[3, 4]]
    assert x.tolist() == [1, 1]


MATRIX = torch.tensor([[4.0, 1.0], [1.0, 3.0]])


@pytest.mark.parametrize("name", ["inv", "cholesky", "lu_factor", "det", "eigvalsh", "pinv"])
def test_linear_algebra_runs_in_pytorch(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = getattr(torch.linalg, name)(x * 2)
        return (y if isinstance(y, torch.Tensor) else y[0]) + 1

    for model in models(function, MATRIX):
        torch.testing.assert_close(model(MATRIX), function(MATRIX))


def test_equations_without_a_solution() -> None:
    """torch.compile raises what eager raises: programs catch it, and try another matrix."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(x, MATRIX)

    fast, exported = models(function, MATRIX)
    torch.testing.assert_close(exported(MATRIX), function(MATRIX))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        fast(torch.zeros(2, 2))
    with pytest.raises(ts.GraphError, match=r"aten\._linalg_solve_ex.*singular"):
        exported(torch.zeros(2, 2))


F32, F64 = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)
IMAGE = torch.ones(1, 3, 2, 2, dtype=torch.float64)
IDS = torch.tensor([0, 1])
# Operands of dtypes that eager refuses to join.
MIXED: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "linear": (nn.Linear(2, 3), (F64,)),
    "linear of half": (nn.Linear(2, 3), (F32.half(),)),
    "linear of integers": (nn.Linear(2, 3), (F32.int(),)),
    "linear without a bias": (nn.Linear(2, 3, bias=False), (F64,)),
    "mm": (torch.mm, (F32, F64)),
    "mv": (torch.mv, (F32, F64[0])),
    "addmm": (torch.addmm, (F64, F32, F32)),
    "layer_norm": (nn.LayerNorm(2), (F64,)),
    "group_norm": (nn.GroupNorm(1, 3), (IMAGE,)),
    "batch_norm": (nn.BatchNorm2d(3).eval(), (IMAGE,)),
    "instance_norm": (nn.InstanceNorm2d(3, affine=True), (IMAGE,)),
    "index_put": (lambda x, i, v: x.index_put((i,), v), (F32, IDS, F64)),
    "index_add": (lambda x, i, v: x.index_add(0, i, v), (F32, IDS, F64)),
    "argmax": (lambda x: x.argmax(0), (F32.bool(),)),
    "index_select": (lambda x, i: x.index_select(0, i), (F32, IDS.short())),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_eager_refuses_by_dtype_is_refused(name: str) -> None:
    function, inputs = MIXED[name]
    with pytest.raises(RuntimeError, match=r"dtype|type|support"):
        function(*inputs)
    options = {"cache": None, "quiet": True}
    with pytest.raises(RuntimeError, match=r"dtype|type|support"):
        torch.compile(function, backend=tilesmith, options=options)(*inputs)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_norms_of_narrow_tensors_take_wider_weights(kind: torch.dtype) -> None:
    x = torch.randn(2, 8).to(kind)
    norm = nn.LayerNorm(8)
    options = {"cache": None, "quiet": True}
    got = torch.compile(norm, backend=tilesmith, options=options)(x)
    torch.testing.assert_close(got, norm(x))
