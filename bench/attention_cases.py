"""The cases of `bench.attention --target cpu`, each stated three times: in our DSL with scores of
its own, as a PyTorch module, and as an ONNX file with one Attention node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

import tilesmith as ts
from bench.module_contestants import by_onnxruntime, by_openvino
from tilesmith_contest.peer import Contestant

_NOTHING = float("-inf")
_WINDOW, _CAP, _DOCUMENT = 512, 20.0, 300  # keys, scores, tokens

Value = Any  # of the DSL


@dataclass(frozen=True)
class Case:
    """`form` says which scores count: full, causal, window, softcap, alibi or document."""

    form: str
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    values: int
    batch: int = 1

    @property
    def name(self) -> str:
        heads = f"{self.heads}" if self.heads == self.groups else f"{self.heads}/{self.groups}"
        tokens = f"{self.queries}" if self.queries == self.keys else f"{self.queries}:{self.keys}"
        sizes = f"{self.size}" if self.size == self.values else f"{self.size}/{self.values}"
        return f"{self.form} {self.batch}x{heads}x{tokens}x{sizes}"

    @property
    def work(self) -> float:
        """Operations of both products, of all scores that count."""
        pairs = float(np.isfinite(self.mask()).sum()) if self.queries > 1 else self.keys
        return 2.0 * self.batch * self.heads * pairs * (self.size + self.values)

    @property
    def slopes(self) -> np.ndarray:
        return (0.5 ** (8 * (np.arange(self.heads) + 1) / self.heads)).astype(np.float32)

    @property
    def documents(self) -> np.ndarray:
        return (np.arange(self.keys) // _DOCUMENT).astype(np.int32)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        shapes = (
            (self.heads, self.queries, self.size), (self.groups, self.keys, self.size),
            (self.groups, self.keys, self.values),
        )  # fmt: skip
        given = [rng.standard_normal((self.batch, *s)).astype(np.float32) for s in shapes]
        more = {"alibi": [self.slopes], "document": [self.documents]}
        return given + more.get(self.form, [])

    def mask(self) -> np.ndarray:
        """What is added to the scores of a head: 0 or -inf."""
        i = np.arange(self.queries)[:, None] + (self.keys - self.queries)
        j = np.arange(self.keys)[None]
        seen = np.ones((self.queries, self.keys), bool)
        if self.form in ("causal", "window"):
            seen = j <= i
        if self.form == "window":
            seen &= i - j < _WINDOW
        if self.form == "document":
            seen = self.documents[i] == self.documents[j]
        return np.where(seen, np.float32(0), np.float32(_NOTHING))

    def function(self) -> ts.Function:
        """In the DSL: masks and biases are expressions of the indices."""
        arrays = self.arrays()
        names = ("Q", "K", "V", "given")
        tensors = [
            ts.placeholder(a.shape, str(a.dtype), name=n)
            for a, n in zip(arrays, names, strict=False)
        ]
        q, k, v = tensors[:3]
        given = tensors[-1]

        def score(s: Value, b: Value, h: Value, i: Value, j: Value) -> Value:
            match self.form:
                case "causal":
                    return ts.where(j <= i, s, _NOTHING)
                case "window":
                    return ts.where((j <= i) & (i - j < _WINDOW), s, _NOTHING)
                case "softcap":
                    return ts.tanh(s * (1 / _CAP)) * _CAP
                case "alibi":
                    return s - given[h] * ts.cast(ts.abs(i - j), "float32")
                case "document":
                    return ts.where(given[i] == given[j], s, _NOTHING)
            return s

        y = ts.ops.attention(q, k, v, score=None if self.form == "full" else score)
        return ts.function([*tensors, y], name=f"attention_{self.form}")

    def bias(self) -> np.ndarray | None:
        """What libraries are given as a mask of all heads."""
        if self.form == "alibi":
            i, j = np.arange(self.queries)[:, None], np.arange(self.keys)[None]
            return (-self.slopes[:, None, None] * abs(i - j)).astype(np.float32)[None]
        return self.mask() if self.form in ("window", "document") else None


class Attention(torch.nn.Module):  # type: ignore[misc]
    """`F.scaled_dot_product_attention`; eager where it has no such scores."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case
        bias = case.bias()
        self.bias = None if bias is None else torch.from_numpy(bias)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        case = self._case
        if case.form == "softcap":
            s = torch.tanh(q @ k.transpose(-1, -2) * (1 / sqrt(case.size) / _CAP)) * _CAP
            return torch.softmax(s, -1) @ v
        return attend(
            q, k, v, attn_mask=self.bias, is_causal=case.form == "causal",
            enable_gqa=case.heads != case.groups,
        )  # fmt: skip


def by_torch(case: Case, threads: int, compiled: bool = False) -> list[Contestant]:
    torch.set_num_threads(threads)
    given = [torch.from_numpy(a) for a in case.arrays()[:3]]
    module = Attention(case)
    calls = {"PyTorch": lambda: module(*given)}
    if compiled:
        calls["torch.compile"] = _flex(case, given)
    return [
        Contestant(name, call, lambda call=call: call().numpy(), torch.inference_mode)  # type: ignore[misc]
        for name, call in calls.items()
    ]


def _flex(case: Case, given: Sequence[torch.Tensor]) -> Any:
    """FlexAttention, compiled; blocks that a mask empties are left out."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slopes, documents = torch.from_numpy(case.slopes), torch.from_numpy(case.documents)
    scores = {
        "softcap": lambda s, b, h, i, j: torch.tanh(s / _CAP) * _CAP,
        "alibi": lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(),
    }
    masks = {
        "causal": lambda b, h, i, j: j <= i,
        "window": lambda b, h, i, j: (j <= i) & (i - j < _WINDOW),
        "document": lambda b, h, i, j: documents[i] == documents[j],
    }
    kept = masks.get(case.form)
    blocks = kept and create_block_mask(kept, None, None, case.queries, case.keys, device="cpu")
    compiled = torch.compile(flex_attention)
    settings = {"score_mod": scores.get(case.form), "block_mask": blocks}
    settings["enable_gqa"] = case.heads != case.groups
    return lambda: compiled(*given, **settings)


def onnx_bytes(case: Case) -> bytes:
    from onnx import TensorProto, helper

    arrays, bias = case.arrays()[:3], case.bias()
    named = dict(zip("qkv", arrays, strict=True)) | ({} if bias is None else {"mask": bias})
    attributes: dict[str, float] = {"is_causal": 1} if case.form == "causal" else {}
    if case.form == "softcap":
        attributes["softcap"] = _CAP
    node = helper.make_node("Attention", list(named), ["y"], **attributes)
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in named.items()]
    shape = (case.batch, case.heads, case.queries, case.values)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "attention", given, [made])
    opset = [helper.make_opsetid("", 23)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    return data


def by_engine(case: Case, threads: int, engine: str, path: str) -> list[Contestant]:
    with open(path, "wb") as file:
        file.write(onnx_bytes(case))
    bias = case.bias()
    arrays = [*case.arrays()[:3], *([] if bias is None else [bias])]
    make = {"onnxruntime": by_onnxruntime, "openvino": by_openvino}[engine]
    return [make(path, arrays, threads)]


def ours(case: Case, threads: int, database: str) -> list[Contestant]:
    """The function of the DSL, with the records of a database; without one, the draft."""
    func, target = case.function(), ts.cpu(threads)
    if database:
        with ts.open_database(database) as records:
            kernel = ts.build(func, target, database=records)
    else:
        kernel = ts.build(func, target)
    arrays = case.arrays()
    out = np.empty((case.batch, case.heads, case.queries, case.values), np.float32)
    call = kernel.bind(*arrays, out=out)

    def answer() -> np.ndarray:
        call()
        return out

    return [Contestant("tilesmith", call, answer)]
