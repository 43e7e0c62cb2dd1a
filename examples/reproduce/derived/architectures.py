"""The five networks of MMlib's evaluation (table 1 of the thesis) in plain torch.

Layers, names and shapes are those of torchvision, so weights saved there load here. All take
float32 ``(batch, 3, height, width)`` and give logits ``(batch, 1000)``. GoogLeNet is the one
without auxiliary classifiers. From 64 x 64 on, training reaches every weight: at 32 x 32 the
last maps are one pixel, and all but the middle weights of a 3 x 3 kernel see only padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["ARCHITECTURES", "CLASSES", "Architecture"]

CLASSES = 1000


@dataclass(frozen=True)
class Architecture:
    """A network: ``build`` makes one with random weights; ``last`` names its last layer."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    last: str

    def empty(self) -> nn.Module:
        """The network without memory for weights: assign it a state dict before it is used."""
        with torch.device("meta"):
            return self.build()


class InvertedResidual(nn.Module):
    """MobileNetV2's block: widen, filter each channel by itself, narrow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [] if expansion == 1 else [_conv_norm_relu6(inputs, hidden, 1)]
        self.conv = nn.Sequential(
            *layers,
            _conv_norm_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.shortcut else y


class MobileNetV2(nn.Module):
    """Sandler et al. 2018, width 1."""

    BLOCKS = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    """Expansion, channels, blocks and stride of the first of them."""

    def __init__(self) -> None:
        super().__init__()
        width = 32
        layers: list[nn.Module] = [_conv_norm_relu6(3, width, 3, 2)]
        for expansion, channels, count, stride in self.BLOCKS:
            for number in range(count):
                step = stride if number == 0 else 1
                layers.append(InvertedResidual(width, channels, step, expansion))
                width = channels
        layers.append(_conv_norm_relu6(width, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, CLASSES))
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


class ConvNorm(nn.Module):
    """GoogLeNet's convolution: without bias, normalised, cut at zero."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Inception(nn.Module):
    """Four branches side by side. The third filters 3 x 3, as in torchvision, not 5 x 5."""

    def __init__(
        self, inputs: int, one: int, before3: int, three: int, before5: int, five: int, pool: int
    ) -> None:
        super().__init__()
        self.branch1 = ConvNorm(inputs, one, 1)
        self.branch2 = nn.Sequential(ConvNorm(inputs, before3, 1), ConvNorm(before3, three, 3))
        self.branch3 = nn.Sequential(ConvNorm(inputs, before5, 1), ConvNorm(before5, five, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvNorm(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNet(nn.Module):
    """Szegedy et al. 2015, normalised by batch, without auxiliary classifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = ConvNorm(3, 64, 7, 2)
        self.maxpool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = ConvNorm(64, 64, 1)
        self.conv3 = ConvNorm(64, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.inception3a = Inception(192, 64, 96, 128, 16, 32, 32)
        self.inception3b = Inception(256, 128, 128, 192, 32, 96, 64)
        self.maxpool3 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.inception4a = Inception(480, 192, 96, 208, 16, 48, 64)
        self.inception4b = Inception(512, 160, 112, 224, 24, 64, 64)
        self.inception4c = Inception(512, 128, 128, 256, 24, 64, 64)
        self.inception4d = Inception(512, 112, 144, 288, 32, 64, 64)
        self.inception4e = Inception(528, 256, 160, 320, 32, 128, 128)
        self.maxpool4 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.inception5a = Inception(832, 256, 160, 320, 32, 128, 128)
        self.inception5b = Inception(832, 384, 192, 384, 48, 128, 128)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(1024, CLASSES)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        for name, layer in self.named_children():  # in the order above
            if name != "dropout" and name != "fc":
                x = layer(x)
        logits: Tensor = self.fc(self.dropout(x.mean((2, 3))))
        return logits


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the middle one is narrow."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """He et al. 2016: four groups of so many blocks."""

    def __init__(self, block: type[BasicBlock | Bottleneck], counts: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for number, count in enumerate(counts):
            width = 64 << number
            blocks = []
            for position in range(count):
                blocks.append(block(inputs, width, 2 if number and not position else 1))
                inputs = width * block.expansion
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, CLASSES)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet18() -> ResNet:
    """Eight blocks of two convolutions."""
    return ResNet(BasicBlock, (2, 2, 2, 2))


def resnet50() -> ResNet:
    """16 blocks of three convolutions."""
    return ResNet(Bottleneck, (3, 4, 6, 3))


def resnet152() -> ResNet:
    """50 blocks of three convolutions."""
    return ResNet(Bottleneck, (3, 8, 36, 3))


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """The shortcut; without layers, and without tensors, where shapes fit."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def _conv_norm_relu6(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)


ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture("mobilenetv2", "MobileNetV2", MobileNetV2, "classifier.1"),
        Architecture("googlenet", "GoogLeNet", GoogLeNet, "fc"),
        Architecture("resnet18", "ResNet-18", resnet18, "fc"),
        Architecture("resnet50", "ResNet-50", resnet50, "fc"),
        Architecture("resnet152", "ResNet-152", resnet152, "fc"),
    )
}
"""By name, from the smallest to the largest."""
