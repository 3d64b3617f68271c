"""Models that are trained, as people train them: a ResNet-50 and a small transformer, on synthetic data.

They run in bfloat16 with float32 weights. Each is given as its training step and a check of the last loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Trained = tuple[Callable[[], Any], Callable[[], bool]]

_IMAGES, _PIXELS, _CLASSES = 64, 224, 1000
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
_EXPANSION = 4
_TEXTS, _LENGTH, _WIDTH, _HEADS, _LAYERS, _WORDS = 16, 512, 768, 12, 6, 32_000


class _Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not there for mypy
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet_50() -> Trained:
    torch.manual_seed(1)
    layers: list[Any] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, blocks, stride in _STAGES:
        for block in range(blocks):
            layers.append(_Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = width * _EXPANSION
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, _CLASSES)]
    model = nn.Sequential(*layers).to("cuda", memory_format=torch.channels_last)
    images = torch.randn(_IMAGES, 3, _PIXELS, _PIXELS, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(_CLASSES, (_IMAGES,), device="cuda")
    return _trained(model, lambda: nn.functional.cross_entropy(model(images), labels))


def transformer() -> Trained:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(_WORDS, _WIDTH),
        nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False),
        nn.Linear(_WIDTH, _WORDS),
    ).to("cuda")
    words = torch.randint(_WORDS, (_TEXTS, _LENGTH), device="cuda")
    return _trained(model, lambda: nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()))


def _trained(model: Any, loss_of: Callable[[], Any]) -> Trained:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    last: list[Any] = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return step, lambda: bool(torch.isfinite(last[0]))
