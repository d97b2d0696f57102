"""ts.from_torch: names, shared weights, open shapes, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_models import Decoder, StaticDecoder

import tilesmith as ts
from tilesmith.frontends.torch.compiled import Building
from tilesmith.frontends.torch.decompositions import lstm_with_states
from tilesmith.frontends.torch.dynamo import compiled
from tilesmith.frontends.torch.export import MAX_STEPS
from tilesmith_contest.networks.catalogue import SMALL


def run(graph: Any, **feeds: Any) -> dict[str, Any]:
    return ts.compile_model(graph, cache=None, progress=False)(feeds)


@pytest.mark.parametrize("name", SMALL)
def test_networks_become_one_graph(name: str) -> None:
    """What they compute is tested with torch.compile, which imports the same operators."""
    net = SMALL[name]
    module, inputs = net.module(), net.inputs(1)
    graph = ts.from_torch(module, (torch.from_numpy(inputs[net.input]),), name=name)
    assert isinstance(graph, ts.Graph)
    assert (graph.name, graph.inputs) == (name, (net.input,))
    assert len(graph.outputs) == len(net.outputs)


def test_decoder_takes_and_gives_its_cache_by_name() -> None:
    module = Decoder().eval()
    tokens = torch.tensor([[3, 4]])
    with torch.no_grad():
        _, past = module(tokens)
        want, (k, _) = module(tokens[:, :1], past)
    graph = ts.from_torch(module, (tokens[:, :1], past))
    assert graph.inputs == ("tokens", "past_0", "past_1")
    got = run(graph, tokens=tokens[:, :1], past_0=past[0], past_1=past[1])
    assert list(got) == ["output_0", "output_1_0", "output_1_1"]
    np.testing.assert_allclose(got["output_0"], want.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got["output_1_0"], k.numpy(), rtol=1e-4, atol=1e-4)


def test_outputs_have_the_names_of_their_places() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor, scale: float) -> dict[str, Any]:
            return {"logits": x * scale, "states": (x + 1, [x]), "none": None, "x": x - 1}

    x = torch.ones(2)
    got = run(ts.from_torch(Many(), (x, 3.0)), x=x)
    assert list(got) == ["logits", "states_0", "states_1_0", "x_out"]
    assert [a.tolist() for a in got.values()] == [[3, 3], [2, 2], [1, 1], [0, 0]]


def test_parameters_are_copied_once() -> None:
    """Tied ones are one array, and a table that is not packed is read where the graph has it."""
    module = Decoder().eval()
    graph = ts.from_torch(module, (torch.tensor([[1]]),))
    arrays = [a for a in graph.constants.values() if a.size == module.words.weight.numel()]
    (address,) = {a.ctypes.data for a in arrays}
    assert address != module.words.weight.data_ptr()
    model = ts.compile_model(graph, cache=None, progress=False)
    held = [a for e in model.executors for step in e._held for a in step.values()]
    assert any(a.ctypes.data == address for a in held)


def test_open_shapes_are_a_program() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(0))
    batch = torch.export.Dim("batch", min=2)
    program = ts.from_torch(module, (torch.ones(2, 3),), dynamic_shapes=({0: batch},))
    assert isinstance(program, ts.Program)
    (given,) = program.inputs
    assert given.dims == ("batch", 3)
    once = ts.compile_model(program, ts.cpu(1), sizes={"batch": (2, 8)}, cache=None)
    assert once.is_open
    model = ts.compile_model(program, sizes="each", cache=None, progress=False)
    for n in (2, 5):
        x = torch.randn(n, 3)
        for made in (model, once):
            (got,) = made({given.name: x}).values()
            np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_sizes_that_depend_on_contents_run_in_pytorch() -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x * 2
            return y[y > 0], y.exp()

    x = torch.tensor([1.0, -1.0, 3.0])
    with pytest.warns(UserWarning, match="depends on"):
        program = ts.from_torch(Chosen(), (x,))
    got = run(program, x=x)
    assert got["output_0"].tolist() == [2, 6]
    np.testing.assert_allclose(got["output_1"], np.exp(2 * x.numpy()), rtol=1e-6)


def test_recurrent_modules_along_many_steps_run_in_pytorch() -> None:
    """Unrolled, each step would be kernels of its own."""
    module = nn.LSTM(2, 3).eval()
    x = torch.randn(MAX_STEPS + 2, 1, 2)
    with pytest.warns(UserWarning, match=r"aten\.lstm\.input"):
        program = ts.from_torch(module, {"input": x})
    got = run(program, input=x)
    np.testing.assert_allclose(got["output_0"], module(x)[0].detach().numpy(), atol=1e-5)


def test_state_is_refused() -> None:
    with pytest.raises(ts.GraphError, match=r"writes its buffer 'keys'.*torch\.compile"):
        ts.from_torch(StaticDecoder().eval(), (torch.tensor([[1]]), torch.tensor([0])))
    with pytest.raises(ts.GraphError, match=r"module\.eval\(\)"):
        ts.from_torch(nn.BatchNorm1d(3), (torch.ones(2, 3),))


def test_what_cannot_be_traced_is_said() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(ts.GraphError, match=r"torch\.export cannot trace Asks"):
        ts.from_torch(Asks(), (torch.ones(2),))
    with pytest.raises(ts.GraphError, match=r"takes a torch\.nn\.Module"):
        ts.from_torch(torch.relu, (torch.ones(2),))
    with pytest.raises(ts.GraphError, match="complex64"):
        ts.from_torch(nn.Identity(), (torch.ones(2, dtype=torch.complex64),))


def test_last_states_of_an_lstm_have_the_shape_of_the_first() -> None:
    """Whatever axes a version of PyTorch gives them when it decomposes the layer."""
    h, c = torch.zeros(4, 2, 3), torch.zeros(4, 2, 5)

    def decompose(x: torch.Tensor, states: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return x, *(s.unsqueeze(1) for s in states)

    out, *last = lstm_with_states(decompose)(torch.zeros(7, 2, 6), (h, c))
    assert [tuple(t.shape) for t in (out, *last)] == [(7, 2, 6), (4, 2, 3), (4, 2, 5)]


class Named(nn.Module):
    """Two blocks, whose kernels have equal names but for the module that they come from."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 8, 3), nn.BatchNorm2d(8), nn.ReLU()) for c in (3, 8)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def test_kernels_name_the_modules_that_they_come_from() -> None:
    module, x = Named().eval(), torch.randn(1, 3, 9, 9)
    want = ["blocks.0.{0, 1, 2}", "blocks.1.{0, 1, 2}", "head"]
    model = ts.compile_model(ts.from_torch(module, (x,)), ts.cpu(1), cache=None, progress=False)
    text = model.summary()
    assert [place for place in want if place not in text] == []
    assert "blocks.1" not in model.summary("blocks.0")
    built: list[ts.Model] = []

    def note(source: Any, first: bool, feeds: Any) -> ts.Model:
        built.append(ts.compile_model(source, ts.cpu(1), cache=None, progress=False))
        return built[-1]

    def backend(graph: Any, inputs: Any) -> Any:
        return compiled(graph, inputs, lambda: Building(note, 4))

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(module, backend=backend)(x)
    assert [place for place in want if place not in built[0].summary()] == []
