import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from models import (  # noqa: E402
    CONV_NET_PARAMETERS,
    RESNET50_100_PARAMETERS,
    conv_net,
    parameter_count,
    resnet50,
)


def test_conv_net_has_the_counts_of_its_table():
    model = conv_net()
    assert parameter_count(model) == CONV_NET_PARAMETERS == 887_530
    sizes = [tensor.numel() for tensor in model.state_dict().values()]
    assert sizes == [800, 32, 25_600, 32, 18_432, 64, 36_864, 64, 802_816, 256, 2_560, 10]
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_resnet50_has_torchvisions_names_and_counts():
    with torch.device("meta"):
        model = resnet50(100)
    assert parameter_count(model) == RESNET50_100_PARAMETERS == 23_712_932
    state = model.state_dict()
    names = list(state)
    assert len(names) == 320
    assert len(list(model.parameters())) == 161
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean"]
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert state["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert state["layer4.2.bn3.num_batches_tracked"].dtype == torch.int64
    counters = sum(not tensor.is_floating_point() for tensor in state.values())
    statistics = sum(t.numel() for name, t in state.items() if "running_" in name)
    assert (counters, statistics) == (53, 53_120)


def test_resnet50_with_a_thousand_classes_has_the_published_count():
    with torch.device("meta"):
        assert parameter_count(resnet50(1000)) == 25_557_032
