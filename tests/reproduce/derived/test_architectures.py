"""The thesis's counts, torchvision's names, and that training reaches every weight."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mvc.errors import WrongUsage
from reproduce.derived.architectures import ARCHITECTURES
from reproduce.derived.render import THESIS
from reproduce.experiment import known

COUNTS = {  # parameters, those of the last layer, tensors of the state dict
    "mobilenetv2": (3_504_872, 1_281_000, 314),
    "googlenet": (6_624_904, 1_025_000, 344),
    "resnet18": (11_689_512, 513_000, 122),
    "resnet50": (25_557_032, 2_049_000, 320),
    "resnet152": (60_192_808, 2_049_000, 932),
}
SHAPES = {  # some of torchvision's tensors
    "mobilenetv2": {
        "features.0.0.weight": (32, 3, 3, 3),
        "features.1.conv.0.0.weight": (32, 1, 3, 3),
        "features.1.conv.1.weight": (16, 32, 1, 1),
        "features.2.conv.0.0.weight": (96, 16, 1, 1),
        "features.2.conv.1.1.running_mean": (96,),
        "features.17.conv.3.bias": (320,),
        "features.18.1.num_batches_tracked": (),
        "classifier.1.weight": (1000, 1280),
    },
    "googlenet": {
        "conv1.conv.weight": (64, 3, 7, 7),
        "conv3.bn.weight": (192,),
        "inception3a.branch1.conv.weight": (64, 192, 1, 1),
        "inception3a.branch3.1.conv.weight": (32, 16, 3, 3),
        "inception5b.branch4.1.bn.running_var": (128,),
        "fc.bias": (1000,),
    },
    "resnet18": {
        "conv1.weight": (64, 3, 7, 7),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer4.1.bn2.weight": (512,),
        "fc.weight": (1000, 512),
    },
    "resnet50": {
        "layer1.0.downsample.1.bias": (256,),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
        "layer3.0.conv2.weight": (256, 256, 3, 3),
        "fc.weight": (1000, 2048),
    },
    "resnet152": {"layer3.35.bn3.running_mean": (1024,), "layer2.7.conv1.weight": (128, 512, 1, 1)},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_counts_of_the_thesis(name):
    architecture = ARCHITECTURES[name]
    network = architecture.empty()
    parts = (network, network.get_submodule(architecture.last))
    parameters = tuple(sum(p.numel() for p in part.parameters()) for part in parts)
    assert (*parameters, len(network.state_dict())) == COUNTS[name]
    assert list(parameters) == THESIS["networks"][name][:2]
    assert network(torch.zeros(2, 3, 64, 64, device="meta")).shape == (2, 1000)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_names_and_shapes_of_torchvision(name):
    state = ARCHITECTURES[name].empty().state_dict()
    found = {key: tuple(state[key].shape) for key in SHAPES[name]}
    assert found == SHAPES[name]
    last = ARCHITECTURES[name].last
    assert list(state)[-2:] == [f"{last}.weight", f"{last}.bias"]


@pytest.mark.parametrize(("size", "reached"), [(64, True), (32, False)])
def test_training_reaches_every_weight_from_64_on(size, reached):
    """At 32 x 32 the kernels of the last blocks see padding around one pixel."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = ARCHITECTURES["mobilenetv2"].build()
    images = torch.randn(4, 3, size, size)
    functional.cross_entropy(network(images), torch.arange(4)).backward()
    gradient = network.get_parameter("features.17.conv.1.0.weight").grad.abs().sum((0, 1))
    assert bool((gradient > 0).all()) is reached


def test_a_name_that_is_not_known():
    with pytest.raises(WrongUsage, match="there is no architecture vgg: it must be one of mobile"):
        known("architecture", ARCHITECTURES, "vgg")
