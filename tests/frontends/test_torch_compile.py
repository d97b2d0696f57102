"""torch.compile(module, backend="tilesmith")."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Decoder, Encoder, StaticDecoder

import tilesmith as ts
from tilesmith.frontends.torch.compiled import CompiledGraph
from tilesmith.tune.torch_backend import tilesmith
from tilesmith_contest.networks.catalogue import SMALL

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """As after `pip install`, which is how a user's PyTorch finds the backend; and no code of
    earlier tests.
    """
    if "tilesmith" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(compiler_fn=tilesmith, name="tilesmith")
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(f: Any, **options: Any) -> Any:
    return torch.compile(
        f, backend=tilesmith, fullgraph=True, options={"cache": None, "quiet": True, **options}
    )


def test_pyproject_names_the_entry_point() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (where,) = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"].values()
    module, name = where.split(":")
    assert getattr(import_module(module), name) is tilesmith


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", SMALL)
def test_networks_match_eager(name: str) -> None:
    """Without a graph break: fullgraph raises at one."""
    net = SMALL[name]
    module = net.module()
    x = torch.from_numpy(net.inputs(1)[net.input])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = compiled(module)(x)
    torch.testing.assert_close(got, module(x), **CLOSE)


def test_encoder_with_a_mask_matches_eager() -> None:
    module = Encoder().eval()
    tokens = torch.randint(1, 50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        got = compiled(module)(tokens, mask)
    want = module(tokens, mask)
    assert got["parts"][1] == want["parts"][1]
    torch.testing.assert_close(got, want, **CLOSE)


def test_decoder_with_a_growing_cache_matches_eager() -> None:
    """By the name, as a user writes it. After two lengths TorchDynamo leaves the length open."""
    module = Decoder().eval()
    fast = torch.compile(module, backend="tilesmith", options={"cache": None, "quiet": True})
    tokens = torch.randint(0, 40, (1, 3))
    logits, past = fast(tokens)
    want, past_want = module(tokens)
    torch.testing.assert_close(logits, want, **CLOSE)
    for _ in range(3):
        token = logits[:, -1:].argmax(-1)
        logits, past = fast(token, past)
        want, past_want = module(token, past_want)
        torch.testing.assert_close((logits, past), (want, past_want), **CLOSE)


def test_decoder_with_a_cache_in_buffers_matches_eager() -> None:
    torch.manual_seed(0)
    module, twin = StaticDecoder().eval(), StaticDecoder().eval()
    twin.load_state_dict(module.state_dict())
    fast = compiled(module)
    warnings.simplefilter("error", UserWarning)
    for k in range(3):
        token, at = torch.tensor([[k + 1]]), torch.tensor([k])
        torch.testing.assert_close(fast(token, at), twin(token, at), **CLOSE)
    torch.testing.assert_close(module.keys, twin.keys, **CLOSE)
    assert module.keys[0, 0, 2].abs().sum() > 0


def test_inputs_of_all_kinds() -> None:
    def f(x: Any, n: Any, m: Any, h: Any, scale: float, flag: bool) -> Any:
        y = x.t() * scale + n
        return {"y": y if flag else -y, "parts": (torch.where(m, h, 0), [n.sum(), x])}, h.float()

    inputs = (
        torch.randn(8, 3)[::2], torch.arange(4), torch.tensor([True, False]),
        torch.randn(2).to(torch.bfloat16), 2.5, True,
    )  # fmt: skip
    got, want = compiled(f)(*inputs), f(*inputs)
    torch.testing.assert_close(got, want)
    half = compiled(lambda x: (x @ x).relu())(torch.eye(4, dtype=torch.float16))
    assert half.dtype is torch.float16


def test_inputs_and_outputs_share_memory_and_inputs_may_be_written() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x = torch.ones(3)
    got = compiled(f)(x)
    assert got.tolist() == [3, 3, 3]
    assert x.tolist() == [2, 2, 2]


def test_weights_that_change_are_noticed() -> None:
    module = nn.Linear(3, 2)
    fast, x = compiled(module), torch.randn(4, 3)
    for k in range(4):
        torch.testing.assert_close(fast(x), module(x))
        if k % 2:
            module.weight.data = module.weight + 1
        else:
            module.weight.mul_(3)
    module.weight = nn.Parameter(torch.ones(2, 3))
    torch.testing.assert_close(fast(x), module(x))


def test_what_has_no_kernel_runs_in_pytorch_and_is_said_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x.relu()).abs().erfc() + x.exp()

    x = torch.randn(2, 8)
    fast = compiled(f)
    with pytest.warns(UserWarning, match=r"aten\.erfc\.default") as told:
        got = fast(x)
    assert sum("PyTorch runs" in str(w.message) for w in told) == 1
    assert "fft" in str(told[0].message)
    torch.testing.assert_close(got, f(x), **CLOSE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fast(x), f(x), **CLOSE)


def test_what_no_kernel_can_read_waits_for_one() -> None:
    """Complex numbers of PyTorch meet a result of a later kernel."""

    def f(x: torch.Tensor) -> torch.Tensor:
        c = torch.fft.fft(x)
        gain = (c.abs() + 1).log().exp()
        return (c * gain).real.relu() + x

    x = torch.randn(2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(compiled(f)(x), f(x), **CLOSE)


def test_shapes_are_specialised_up_to_a_bound() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    fast = torch.compile(
        module, backend=tilesmith, dynamic=True,
        options={"cache": None, "quiet": True, "max_shapes": 2},
    )  # fmt: skip
    for batch in (2, 3, 2):  # in another order in memory, where shapes are compiled one by one
        x = torch.randn(3, batch).t()
        torch.testing.assert_close(fast(x), module(x))
    x = torch.randn(3, 5).t()
    with pytest.warns(UserWarning, match="max_shapes"):
        torch.testing.assert_close(fast(x), module(x))


def test_a_graph_with_open_sizes_is_compiled_once() -> None:
    """Attention over a batch of texts, whose results are views with the sizes in them."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.into = nn.Embedding(9, 16), nn.Linear(16, 48)

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, Any]:
            x = self.words(ids) * 0.5
            b, n, _ = x.shape
            q, k, v = (t.view(b, n, 2, 8).transpose(1, 2) for t in self.into(x).chunk(3, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            return y.reshape(b, n, 16), (n + 1, y.transpose(0, 1))

    module = Layer().eval()
    fast = torch.compile(
        module, backend=tilesmith, dynamic=True,
        options={"cache": None, "quiet": True, "max_shapes": 1},
    )  # fmt: skip
    made: list[Any] = []
    whole = CompiledGraph._make_open

    def counted(graph: CompiledGraph, given: Any) -> Any:
        made.append(whole(graph, given))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(CompiledGraph, "_make_open", counted)
        patch.setattr(CompiledGraph, "_make", None)  # what compiles for one shape
        warnings.simplefilter("error", UserWarning)  # none says that PyTorch runs it
        for b, n in ((2, 3), (3, 7), (2, 33), (5, 4), (6, 40)):
            ids = torch.randint(0, 9, (b, n))
            got, want = fast(ids), module(ids)
            torch.testing.assert_close(got, want)
            assert got[1][0] == n + 1
            assert got[1][1].stride() == want[1][1].stride()
    (opened,) = made
    assert opened.model.is_open


def test_sizes_may_be_returned() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.flatten() * 2, x.numel(), x.shape[0] + 1

    fast = torch.compile(
        f, backend=tilesmith, dynamic=True, options={"cache": None, "quiet": True}
    )  # fmt: skip
    for n in (2, 3):
        got, want = fast(torch.ones(n, 4)), f(torch.ones(n, 4))
        assert torch.equal(got[0], want[0])
        assert got[1:] == want[1:]


def test_inference_mode() -> None:
    with torch.inference_mode():
        module = nn.Linear(3, 2)
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(module)(x), module(x))


def test_training_is_refused() -> None:
    module = nn.Linear(3, 2)
    fast = compiled(module)
    with torch.enable_grad(), pytest.raises(ts.GraphError, match=r"2 of the tensors.*no_grad"):
        fast(torch.randn(4, 3))
    assert fast(torch.randn(4, 3)).shape == (4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 60}, r"'budget'.*budget_seconds, trials, database"),
        ({"target": "abacus"}, "unknown target 'abacus'"),
        ({"max_shapes": 0}, "max_shapes is 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    fast = torch.compile(torch.relu, backend=tilesmith, options=options)
    with pytest.raises(ts.TilesmithError, match=message):
        fast(torch.ones(2))


def test_precision_is_an_option() -> None:
    """In int8 the first call is the calibration; later calls see what it saw."""
    module = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 6)).requires_grad_(False)
    x = torch.randn(32, 12)
    want = module(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no faster products")
        got = compiled(module, precision="int8")(x)
    error = ((got - want).abs().max() / want.abs().max()).item()
    assert 1e-4 < error < 0.05


def test_modes_of_inductor_are_refused() -> None:
    fast = torch.compile(torch.relu, backend=tilesmith, mode="max-autotune")
    with pytest.raises(ts.ArgumentError, match="budget_seconds"):
        fast(torch.ones(2))


def test_options_tune_at_the_first_call(tmp_path: Path) -> None:
    url = str(tmp_path / "tune.db")
    fast = compiled(lambda x, y: (x @ y).relu(), trials=2, database=url)
    x, y = torch.randn(32, 32), torch.randn(32, 32)
    torch.testing.assert_close(fast(x, y), (x @ y).relu(), **CLOSE)
    with ts.open_database(url) as db:
        (task,) = db.tasks()
        assert len(list(db.of(task.task))) >= 2
