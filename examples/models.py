"""The two networks that the examples and benchmarks train, in plain torch.

Invariant: names, order and shapes of the state_dict entries never change, because series made
from them are compared with each other over time. Both counts are checked by the tests.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

CONV_NET_PARAMETERS = 887_530
RESNET50_100_PARAMETERS = 23_712_932


def conv_net() -> nn.Sequential:
    """Build the convolutional net for 28 x 28 grey images and ten classes: 887,530 parameters.

    The Keras net of the VSOL experiments, layer for layer (all convolutions padded to the same
    size, so that two poolings leave 64 x 7 x 7 = 3136 features):

    ======  ==================  ==========
    entry   layer               parameters
    ======  ==================  ==========
    conv1   5x5, 1 -> 32               832
    conv2   5x5, 32 -> 32           25,632
    conv3   3x3, 32 -> 64           18,496
    conv4   3x3, 64 -> 64           36,928
    fc1     3136 -> 256            803,072
    fc2     256 -> 10                2,570
    ======  ==================  ==========

    Takes float32 ``(batch, 1, 28, 28)`` in [0, 1] and gives logits ``(batch, 10)``: the softmax
    is left to the loss. Twelve state_dict entries, all float32. Weights come from torch's
    default initialisation and global generator: seed it for the same net.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(1, 32, 5, padding="same"),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 32, 5, padding="same"),
            relu2=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            drop1=nn.Dropout(0.25),
            conv3=nn.Conv2d(32, 64, 3, padding="same"),
            relu3=nn.ReLU(),
            conv4=nn.Conv2d(64, 64, 3, padding="same"),
            relu4=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            drop2=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            fc1=nn.Linear(3136, 256),
            relu5=nn.ReLU(),
            drop3=nn.Dropout(0.5),
            fc2=nn.Linear(256, 10),
        )
    )


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3 (carries the stride), 1x1 expand by four, added to the shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        summed: Tensor = self.relu(x + shortcut)
        return summed


class ResNet50(nn.Module):
    """ResNet-50 (He et al. 2015) with the stride on the 3x3 convolution, as torchvision has it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, blocks=3, stride=1)
        self.layer2 = _stage(256, 128, blocks=4, stride=2)
        self.layer3 = _stage(512, 256, blocks=6, stride=2)
        self.layer4 = _stage(1024, 512, blocks=3, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                # Blocks start as the identity (Goyal et al. 2017). Otherwise activations grow
                # from block to block, and a net of few steps diverges in eval mode.
                nn.init.zeros_(module.bn3.weight)

    def features(self, x: Tensor) -> Tensor:
        """Give what the head sees: float32 ``(batch, 2048)`` of images ``(batch, 3, h, w)``."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        pooled: Tensor = self.avgpool(x)
        return pooled.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(x))
        return logits


def resnet50(classes: int = 100) -> ResNet50:
    """Build ResNet-50: 23,712,932 parameters at 100 classes (25,557,032 at 1,000).

    The body has 23,508,032 parameters, the head ``fc`` 2,049 for each class. The state_dict has
    torchvision's 320 names (``conv1.weight``, ``bn1.running_mean``, ...,
    ``layer4.2.bn3.num_batches_tracked``, ``fc.weight``, ``fc.bias``): 161 parameters and 159
    buffers (53,120 float32 statistics and 53 int64 counters). Weights come from torch's global
    generator: seed it for the same net.
    """
    return ResNet50(classes)


def parameter_count(model: nn.Module) -> int:
    """Count the trainable elements of ``model``; buffers are not among them."""
    return sum(parameter.numel() for parameter in model.parameters())


def _stage(inputs: int, width: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(1, blocks)))
