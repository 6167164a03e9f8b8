"""The models that are trained in these runs, each in three sizes: of the papers, quick, and tiny for a CPU.

They are written for this purpose: plain layers, random data made on the device, no files. A model with its batches is a
:class:`Task`. No operation of those that are compared bit for bit adds in an order that changes (no atomics), if
:func:`deterministic` was called.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZES = ("full", "quick", "tiny")


class Task(nn.Module):  # type: ignore[misc]  # torch is not typed for us
    """A model and its mini-batches."""

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        """The data of a mini-batch: the same in every run."""
        raise NotImplementedError

    def loss(self, *batch: Tensor) -> Tensor:
        """The loss of one. The first call of a module after ``optimizer.step`` is within: the boundary."""
        raise NotImplementedError


def _generator(step: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(1_000 + step)


def parameters(model: nn.Module) -> int:
    """Numbers that are learnt."""
    return sum(each.numel() for each in model.parameters())


def deterministic() -> None:
    """Make equal runs give equal bits. To be called before the first operation on the GPU."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would be part of what a suspension takes
    torch.backends.cudnn.benchmark = False


# -- images -----------------------------------------------------------------------------------------------------------


class _Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not typed for us
    """1x1, 3x3, 1x1 convolutions and the way around them; the stride is in the 3x3 one."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.main = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.main(x) + self.around(x))


class ResNet(Task):
    """ResNet-50 (25.6 M parameters with 1,000 classes), or narrower and shorter. ``small``: the stem for 32 x 32."""

    def __init__(
        self,
        images: int,
        side: int,
        classes: int = 1000,
        blocks: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        small: bool = False,
    ) -> None:
        super().__init__()
        self._images, self._side, self._classes = images, side, classes
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
        if not small:
            layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if not small:
            layers.append(nn.MaxPool2d(3, 2, 1))
        before = width
        for stage, count in enumerate(blocks):
            for index in range(count):
                layers.append(_Bottleneck(before, width << stage, 2 if stage and not index else 1))
                before = 4 * (width << stage)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(before, classes)

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        made = _generator(step, device)
        images = torch.randn(self._images, 3, self._side, self._side, device=device, generator=made)
        return images, torch.randint(self._classes, (self._images,), device=device, generator=made)

    def loss(self, *batch: Tensor) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self.head(self.body(images).mean((2, 3))), labels)


class Vgg(Task):
    """VGG16 with batch normalization, for images of 32 x 32 in 10 classes (14.7 M parameters)."""

    def __init__(self, images: int, width: int = 64) -> None:
        super().__init__()
        self._images = images
        layers: list[nn.Module] = []
        before = 3
        for factor, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(count):
                layers += [
                    nn.Conv2d(before, factor * width, 3, padding=1),
                    nn.BatchNorm2d(factor * width),
                    nn.ReLU(inplace=True),
                ]
                before = factor * width
            layers.append(nn.MaxPool2d(2))
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        made = _generator(step, device)
        images = torch.randn(self._images, 3, 32, 32, device=device, generator=made)
        return images, torch.randint(10, (self._images,), device=device, generator=made)

    def loss(self, *batch: Tensor) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self.body(images), labels)


class SuperResolution(Task):
    """Four convolutions and a shuffle of pixels: three times the side (the SR of both papers)."""

    def __init__(self, images: int, side: int) -> None:
        super().__init__()
        self._images, self._side = images, side
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 9, 3, padding=1),
            nn.PixelShuffle(3),
        )

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        wanted = torch.rand(
            self._images, 1, 3 * self._side, 3 * self._side, device=device, generator=_generator(step, device)
        )
        return functional.avg_pool2d(wanted, 3), wanted

    def loss(self, *batch: Tensor) -> Tensor:
        small, wanted = batch
        return functional.mse_loss(self.body(small), wanted)


class Vae(Task):
    """A variational autoencoder of images of 28 x 28, of fully connected layers."""

    def __init__(self, images: int) -> None:
        super().__init__()
        self._images = images
        self.encode = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
        self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        made = _generator(step, device)
        images = torch.rand(self._images, 784, device=device, generator=made)
        return images, torch.randn(self._images, 20, device=device, generator=made)

    def loss(self, *batch: Tensor) -> Tensor:
        images, noise = batch
        mean, variance = self.encode(images).chunk(2, 1)
        logits = self.decode(mean + noise * (0.5 * variance).exp())
        apart = -0.5 * (1 + variance - mean.square() - variance.exp()).sum()
        return functional.binary_cross_entropy_with_logits(logits, images, reduction="sum") + apart


# -- text -------------------------------------------------------------------------------------------------------------


class Lstm(Task):
    """A language model of two LSTM layers."""

    def __init__(self, texts: int, length: int, words: int, width: int) -> None:
        super().__init__()
        self._shape, self._words = (texts, length), words
        self.embed = nn.Embedding(words, width)
        self.body = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        texts, length = self._shape
        return (torch.randint(self._words, (texts, length + 1), device=device, generator=_generator(step, device)),)

    def loss(self, *batch: Tensor) -> Tensor:
        (text,) = batch
        found, _ = self.body(self.embed(text[:, :-1]))
        return functional.cross_entropy(self.head(found).flatten(0, 1), text[:, 1:].flatten())


class _Layer(nn.Module):  # type: ignore[misc]  # torch is not typed for us
    """Causal attention and two linear layers. Attention is written out: its sums have one order."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        texts, length, width = x.shape
        query, key, value = (
            each.view(texts, length, self._heads, -1).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, 2)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(width / self._heads)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(3) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(texts, length, width))
        made: Tensor = x + self.wide(self.norm2(x))
        return made


class Transformer(Task):
    """A language model: ``layers`` of ``width``, input and output with one matrix.

    ``lengths``: of the text in a mini-batch, at least and at most; each mini-batch has another one between.
    """

    def __init__(self, texts: int, lengths: tuple[int, int], words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self._texts, self._lengths, self._words = texts, lengths, words
        self.embed = nn.Embedding(words, width)
        self.place = nn.Embedding(lengths[1], width)
        self.body = nn.Sequential(*[_Layer(width, heads) for _ in range(layers)], nn.LayerNorm(width))
        nn.init.normal_(self.embed.weight, std=0.02)

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        least, most = self._lengths
        length = least + step * 2_654_435_761 % 65_521 % (most - least + 1)
        return (
            torch.randint(self._words, (self._texts, length + 1), device=device, generator=_generator(step, device)),
        )

    def logits(self, text: Tensor) -> Tensor:
        """Of the next word, at every place."""
        places = torch.arange(text.shape[1], device=text.device)
        return functional.linear(self.body(self.embed(text) + self.place(places)), self.embed.weight)

    def loss(self, *batch: Tensor) -> Tensor:
        (text,) = batch
        return functional.cross_entropy(self.logits(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def decode(self, text: Tensor) -> Tensor:
        """One more word for each text, the likeliest; the text stays within its greatest length."""
        with torch.no_grad():
            word = self.logits(text)[:, -1].argmax(1, keepdim=True)
        return torch.cat([text, word], 1)[:, -self._lengths[1] :]


# -- graphs -----------------------------------------------------------------------------------------------------------


class Gcn(Task):
    """Graph convolutions over many small graphs, each with an adjacency matrix of its own."""

    def __init__(self, graphs: int, nodes: int, width: int, layers: int) -> None:
        super().__init__()
        self._shape = (graphs, nodes, width)
        self.mix = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 10)

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, ...]:
        graphs, nodes, width = self._shape
        made = _generator(step, device)
        edges = (torch.rand(graphs, nodes, nodes, device=device, generator=made) < 0.1).float()
        features = torch.randn(graphs, nodes, width, device=device, generator=made)
        return edges / edges.sum(2, keepdim=True).clamp(min=1), features, torch.arange(graphs, device=device) % 10

    def loss(self, *batch: Tensor) -> Tensor:
        edges, x, labels = batch
        for layer in self.mix:
            x = functional.relu(edges @ layer(x))
        return functional.cross_entropy(self.head(x.mean(1)), labels)


# -- by name ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name: how to make it in the size of the papers, quick, and tiny."""

    full: Callable[[], Task]
    quick: Callable[[], Task]
    tiny: Callable[[], Task]


def _tiny_resnet(images: int = 4) -> Task:
    return ResNet(images, 32, 10, (1, 1, 1, 1), 8)


def _tiny_transformer() -> Task:
    return Transformer(2, (8, 8), 512, 64, 2, 4)


def _transformer(texts: int, width: int, layers: int, heads: int) -> Callable[[], Task]:
    return lambda: Transformer(texts, (512, 512), 32_768, width, layers, heads)


#: bytes that stay on the device between two mini-batches: 12 a parameter (itself, and two of AdamW)
MODELS: dict[str, Model] = {
    "resnet50": Model(lambda: ResNet(128, 224), lambda: ResNet(16, 224), _tiny_resnet),
    "resnet50-large-batch": Model(lambda: ResNet(360, 224), lambda: ResNet(48, 224), lambda: _tiny_resnet(8)),
    "resnet50-cache": Model(lambda: ResNet(192, 224), lambda: ResNet(32, 224), _tiny_resnet),
    "resnet50-cifar": Model(
        lambda: ResNet(128, 32, 10, small=True),
        lambda: ResNet(64, 32, 10, small=True),
        lambda: ResNet(4, 16, 10, (1, 1, 1, 1), 8, small=True),
    ),
    "vgg16-cifar": Model(lambda: Vgg(512), lambda: Vgg(128), lambda: Vgg(4, 4)),
    "super-resolution": Model(
        lambda: SuperResolution(64, 85), lambda: SuperResolution(16, 85), lambda: SuperResolution(2, 12)
    ),
    "vae": Model(lambda: Vae(128), lambda: Vae(128), lambda: Vae(16)),
    "lstm": Model(lambda: Lstm(20, 35, 33_278, 1500), lambda: Lstm(20, 35, 10_000, 650), lambda: Lstm(4, 8, 200, 32)),
    "gcn": Model(lambda: Gcn(1400, 128, 256, 4), lambda: Gcn(350, 128, 256, 4), lambda: Gcn(8, 64, 64, 2)),
    "lm-117m": Model(_transformer(8, 768, 13, 12), _transformer(2, 768, 13, 12), _tiny_transformer),
    "lm-475m": Model(_transformer(4, 1408, 18, 11), _transformer(1, 1024, 12, 8), _tiny_transformer),
    "lm-1750m": Model(_transformer(2, 2304, 26, 18), _transformer(1, 1408, 18, 11), _tiny_transformer),
    "lm-varying": Model(
        lambda: Transformer(16, (16, 128), 32_768, 512, 6, 8),
        lambda: Transformer(8, (16, 64), 32_768, 512, 6, 8),
        lambda: Transformer(2, (4, 16), 512, 64, 2, 4),
    ),
    "lm-bursty": Model(
        lambda: Transformer(16, (256, 256), 16_384, 512, 6, 8),
        lambda: Transformer(8, (128, 128), 16_384, 512, 6, 8),
        _tiny_transformer,
    ),
}


def make(name: str, size: str, device: torch.device) -> tuple[Task, torch.optim.Optimizer]:
    """A model, the same in every run, and its optimizer (AdamW, fused on a GPU)."""
    torch.manual_seed(0)
    with torch.device(device):
        made: Task = getattr(MODELS[name], size)()
    return made, torch.optim.AdamW(made.parameters(), lr=1e-4, fused=device.type == "cuda")


def state_tensors(task: Task, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What training changes: parameters, buffers, and the optimizer's state, in an order that is always the same."""
    found = [*task.parameters(), *task.buffers()]
    for parameter in task.parameters():
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        found += [state[key] for key in sorted(state) if isinstance(state[key], Tensor)]
    return found


def checksum(tensors: Sequence[Tensor]) -> str:
    """64 bits of all bits, computed where the tensors are. Equal tensors give equal sums in whatever order it adds."""
    total = 0
    for tensor in tensors:
        bits = tensor.detach().reshape(-1)
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.element_size()]
        for piece in bits.view(kind).split(1 << 24):
            weights = torch.arange(piece.numel(), device=piece.device) % 65_521 + 1
            total = (total * 1_000_003 + int((piece.to(torch.int64) * weights).sum().item())) % (1 << 64)
    return f"{total:016x}"
