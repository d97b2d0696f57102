"""Networks that nobody here wrote: those of torchvision, and classes of transformers in small
configurations. Weights are random; nothing is downloaded. And contestants made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.module_contestants import by_onnxruntime, by_openvino, ours, save_onnx
from tilesmith_contest.peer import Contestant

Tensor = torch.Tensor

# The compiled operators of torchvision, which its networks do not call but its import looks up.
_OPERATORS = (
    "roi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward", "roi_pool",
    "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "nms", "qnms", "qroi_align",
    "deform_conv2d", "_deform_conv2d_backward",
)  # fmt: skip


def torchvision() -> Any:
    """The package, also where its compiled part does not load beside this PyTorch."""
    try:
        import torchvision as package
    except (RuntimeError, OSError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in _OPERATORS:
            library.define(f"{name}(Tensor x) -> Tensor")
        _KEPT.append(library)
        import torchvision as package
    return package


_KEPT: list[Any] = []  # what is defined vanishes with its library


@dataclass(frozen=True)
class Network:
    """`make` returns the module and what it is called with."""

    name: str
    make: Callable[[], tuple[torch.nn.Module, tuple[Tensor, ...]]]


class FirstTensor(torch.nn.Module):
    """A network of which the first tensor of its result counts; inputs are given by position."""

    def __init__(self, inner: torch.nn.Module, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.inner, self._names = inner, names

    def forward(self, *given: Tensor) -> Tensor:
        named = dict(zip(self._names, given, strict=bool(self._names)))
        return first_tensor(self.inner(**named) if named else self.inner(*given))


def first_tensor(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    values = result.values() if hasattr(result, "values") else result
    return first_tensor(next(v for v in values if v is not None))


def of_torchvision() -> Iterator[Network]:
    """Image classification, segmentation and video; quantised and detection networks are left."""
    package = torchvision()
    kinds = {
        package.models: (1, 3, 224, 224),
        package.models.segmentation: (1, 3, 224, 224),
        package.models.video: (1, 3, 16, 112, 112),
    }
    for module, shape in kinds.items():
        for name in package.models.list_models(module=module):
            yield Network(name, _Pictured(name, shape))


@dataclass(frozen=True)
class _Pictured:
    name: str
    shape: tuple[int, ...]

    def __call__(self) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
        torch.manual_seed(0)
        segments = self.name.startswith(("fcn_", "deeplabv3_", "lraspp_"))
        extra = {"weights_backbone": None} if segments else {}
        # Some take images of one size only.
        side = {
            "vit_h_14": 224,
            "inception_v3": 299,
            "mvit_v1_b": 224,
            "mvit_v2_s": 224,
            "s3d": 224,
        }
        shape = (*self.shape[:-2], *[side.get(self.name, self.shape[-1])] * 2)
        module = torchvision().models.get_model(self.name, weights=None, **extra).eval()
        image = torch.randn(shape)
        settle_batch_norms(module, image)
        return FirstTensor(module), (image,)


def settle_batch_norms(module: torch.nn.Module, given: Tensor) -> None:
    """Sets the running statistics of batch norms to those of one call. With the initial ones, the
    activations of random weights fade from layer to layer, and the answer is a bias or 1e-15.
    """
    hooks = [
        m.register_forward_pre_hook(_settle)
        for m in module.modules()
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
    ]
    with torch.no_grad():
        module(given)
    for hook in hooks:
        hook.remove()


def _settle(norm: Any, given: tuple[Tensor]) -> None:
    x = given[0].transpose(0, 1).flatten(1)
    norm.running_mean.copy_(x.mean(1))
    norm.running_var.copy_(x.var(1, correction=0).clamp(min=1e-3))


@dataclass(frozen=True)
class Class:
    """A class of transformers with the settings of its configuration, and its inputs by name:
    numbers of a shape, or token numbers below a bound.
    """

    model: str
    config: str
    settings: dict[str, Any]
    inputs: dict[str, tuple[tuple[int, ...], int]]  # shape; bound of integers, 0 for numbers
    fixed: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
        torchvision()  # which transformers imports
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        module = getattr(transformers, self.model)(config).eval()
        given = tuple(
            torch.randint(0, below, shape) if below else torch.randn(shape)
            for shape, below in self.inputs.values()
        )
        return FirstTensor(_With(module, self.fixed), tuple(self.inputs)), given


class _With(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module, fixed: dict[str, Any]) -> None:
        super().__init__()
        self.inner, self._fixed = inner, fixed

    def forward(self, **given: Tensor) -> Any:
        return self.inner(**given, **self._fixed)


_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
          "intermediate_size": 1024}  # fmt: skip
_DECODER = {**_SMALL, "vocab_size": 2000, "num_key_value_heads": 2}
_TOKENS = {"input_ids": ((1, 96), 2000)}
_WORDS = {"vocab_size": 2000}
_ALONE = {"use_cache": False}
_IMAGE = {"pixel_values": ((1, 3, 224, 224), 0)}

CLASSES: dict[str, Class] = {
    "bert": Class("BertModel", "BertConfig", {**_SMALL, **_WORDS}, _TOKENS),
    "roberta": Class("RobertaModel", "RobertaConfig", {**_SMALL, **_WORDS}, _TOKENS),
    "distilbert": Class(
        "DistilBertModel", "DistilBertConfig",
        {**_WORDS, "dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024}, _TOKENS,
    ),
    "electra": Class("ElectraModel", "ElectraConfig", {**_SMALL, **_WORDS}, _TOKENS),
    "deberta-v2": Class("DebertaV2Model", "DebertaV2Config", {**_SMALL, **_WORDS}, _TOKENS),
    "gpt2": Class(
        "GPT2LMHeadModel", "GPT2Config", {**_WORDS, "n_embd": 256, "n_layer": 4, "n_head": 4},
        _TOKENS, _ALONE,
    ),
    "llama": Class("LlamaForCausalLM", "LlamaConfig", _DECODER, _TOKENS, _ALONE),
    "mistral": Class("MistralForCausalLM", "MistralConfig", _DECODER, _TOKENS, _ALONE),
    "qwen2": Class("Qwen2ForCausalLM", "Qwen2Config", _DECODER, _TOKENS, _ALONE),
    "gemma": Class(
        "GemmaForCausalLM", "GemmaConfig", {**_DECODER, "head_dim": 64}, _TOKENS, _ALONE
    ),
    "mixtral": Class(
        "MixtralForCausalLM", "MixtralConfig", {**_DECODER, "num_local_experts": 4}, _TOKENS, _ALONE
    ),
    "mamba": Class(
        "MambaForCausalLM", "MambaConfig", {**_WORDS, "hidden_size": 256, "num_hidden_layers": 4},
        _TOKENS, _ALONE,
    ),
    "t5": Class(
        "T5Model", "T5Config", {**_WORDS, "d_model": 256, "d_ff": 1024, "num_layers": 4,
                                "num_heads": 4, "d_kv": 64},
        {**_TOKENS, "decoder_input_ids": ((1, 32), 2000)}, _ALONE,
    ),
    "whisper": Class(
        "WhisperModel", "WhisperConfig",
        {**_WORDS, "d_model": 256, "encoder_layers": 4, "decoder_layers": 4,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 0},
        {"input_features": ((1, 80, 3000), 0), "decoder_input_ids": ((1, 32), 2000)}, _ALONE,
    ),
    "clip-vision": Class(
        "CLIPVisionModel", "CLIPVisionConfig", {**_SMALL, "patch_size": 16}, _IMAGE
    ),
    "clip-text": Class("CLIPTextModel", "CLIPTextConfig", {**_SMALL, **_WORDS},
                       {"input_ids": ((1, 64), 2000)}),
    "vit": Class("ViTModel", "ViTConfig", _SMALL, _IMAGE),
    "swin": Class("SwinModel", "SwinConfig", {"embed_dim": 48, "depths": [2, 2, 2, 2]}, _IMAGE),
    "sam-encoder": Class(
        "SamVisionModel", "SamVisionConfig",
        {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "image_size": 512,
         "mlp_dim": 768, "initializer_range": 0.02},  # 1e-10 by default: the answer would be 0
        {"pixel_values": ((1, 3, 512, 512), 0)},
    ),
    "wav2vec2": Class("Wav2Vec2Model", "Wav2Vec2Config", _SMALL, {"input_values": ((1, 16000), 0)}),
}  # fmt: skip


def networks(names: tuple[str, ...] = ()) -> Iterator[Network]:
    """All of them, or those of these names."""
    if not names or not set(names) <= CLASSES.keys():
        for n in of_torchvision():
            if not names or n.name in names:
                yield n
    for name, make in CLASSES.items():
        if not names or name in names:
            yield Network(name, make)


def typed(network: Network, precision: str) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """The network and its inputs with numbers of this type."""
    module, given = network.make()
    if precision != "float32":
        kind = getattr(torch, precision)
        module = module.to(kind)
        given = tuple(t.to(kind) if t.is_floating_point() else t for t in given)
    return module, given


def our_contestants(
    network: Network, precision: str, threads: int, database: str
) -> list[Contestant]:
    module, given = typed(network, precision)
    return [ours(module, given, threads, database)]


def theirs(network: Network, precision: str, threads: int, compiled: bool) -> list[Contestant]:
    torch.set_num_threads(threads)
    module, given = typed(network, precision)
    call: Any = torch.compile(module) if compiled else module
    with torch.inference_mode():
        call(*given)
    name = "torch.compile" if compiled else "PyTorch"
    return [
        Contestant(
            name, lambda: call(*given), lambda: call(*given).float().numpy(), torch.inference_mode
        )
    ]


def by_onnx(network: Network, threads: int, path: str, engine: str) -> list[Contestant]:
    module, given = network.make()
    save_onnx(module, given, path)
    made = by_onnxruntime if engine == "onnxruntime" else by_openvino
    return [made(path, [t.numpy() for t in given], threads)]
