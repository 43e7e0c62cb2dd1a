"""Parameter counts, one bias a direction, initial weights, and which network fits which data."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from mvc.errors import WrongUsage
from reproduce.data import Dataset
from reproduce.networks import (
    LSTM,
    RECIPES,
    Rows,
    conv,
    recipe_for,
    small,
    tensors_of,
)

IMAGES = Dataset("i", "images", np.zeros((4, 28, 28), np.uint8), np.arange(4) % 2, ("a", "b"))
TINY = Dataset("t", "images", np.full((4, 8, 8), 8, np.uint8), np.arange(4) % 2, ("a", "b"), 16)
TEXTS = Dataset("x", "texts", np.ones((4, 100), np.int32), np.arange(4) % 2, ("a", "b"))


def parameter_count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_counts_of_the_thesis():
    assert parameter_count(conv()) == 887_530
    assert parameter_count(LSTM(4)) == 1_905_924
    assert parameter_count(LSTM(10)) == 1_907_466
    assert parameter_count(small()) == 2_410
    assert parameter_count(Rows()) == 11_146


def test_counts_by_tensor():
    sizes = [parameter.numel() for parameter in conv().parameters()]
    assert sizes == [800, 32, 25_600, 32, 18_432, 64, 36_864, 64, 802_816, 256, 2_560, 10]
    of_lstm = {name.partition(".")[0]: 0 for name, _ in LSTM(4).named_parameters()}
    for name, parameter in LSTM(4).named_parameters():
        of_lstm[name.partition(".")[0]] += parameter.numel()
    assert of_lstm == {
        "embedding": 1_280_000,
        "lstm1": 263_168,
        "lstm2": 164_352,
        "fc1": 66_048,
        "fc2": 131_328,
        "fc3": 1_028,
    }


def test_the_second_bias_is_no_parameter_and_stays_zero():
    model = LSTM(4)
    names = list(model.state_dict())
    assert not any("bias_hh" in name for name in names)
    assert set(names) == {name for name, _ in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.randint(0, 100, (2, 5))).square().sum().backward()
    optimizer.step()
    assert not model.lstm1.bias_hh_l0.any()
    assert model.lstm1.bias_ih_l0.grad.any()


def test_one_bias_computes_what_two_compute_whose_second_is_zero():
    model = LSTM(4)
    plain = torch.nn.LSTM(128, 128, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(getattr(model.lstm1, name))
    words = torch.randn(3, 7, 128)
    assert torch.equal(model.lstm1(words)[0], plain(words)[0])


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_a_loaded_state_is_what_the_lstm_computes_with(assign):
    torch.manual_seed(1)
    one, other = LSTM(3).eval(), LSTM(3).eval()
    words = torch.randint(0, 1000, (2, 12))
    assert not torch.equal(one(words), other(words))
    other.load_state_dict(copy.deepcopy(one.state_dict()), assign=assign)
    assert torch.equal(one(words), other(words))


def test_initial_weights_are_those_of_keras():
    torch.manual_seed(0)
    state = LSTM(4).state_dict()
    assert state["embedding.weight"].abs().max() <= 0.05
    recurrent = state["lstm1.weight_hh_l0"]
    assert torch.allclose(recurrent.T @ recurrent, torch.eye(128), atol=1e-5)
    assert state["lstm1.weight_ih_l0"].abs().max() <= (6 / (512 + 128)) ** 0.5
    bias = state["lstm1.bias_ih_l0"].reshape(4, 128)
    assert bias.sum(1).tolist() == [0, 128, 0, 0]
    kernel = conv().state_dict()["fc1.weight"]
    assert kernel.abs().max() <= (6 / (3136 + 256)) ** 0.5
    assert not conv().state_dict()["fc1.bias"].any()


def test_optimizers():
    rms = RECIPES["conv"].optimizer(small()).defaults
    assert (rms["lr"], rms["alpha"], rms["eps"], rms["momentum"]) == (1e-3, 0.9, 1e-8, 0)
    adam = RECIPES["lstm"].optimizer(small()).defaults
    assert (adam["lr"], adam["betas"], adam["eps"]) == (1e-3, (0.9, 0.999), 1e-7)


def test_which_network_fits():
    assert recipe_for(None, IMAGES).name == "conv"
    assert recipe_for(None, TINY).name == "small"
    assert recipe_for(None, TEXTS).name == "lstm"
    assert recipe_for("small", IMAGES).build(IMAGES)(torch.zeros(1, 1, 28, 28)).shape == (1, 2)
    with pytest.raises(WrongUsage, match="there is no model net: it must be one of conv, lstm"):
        recipe_for("net", IMAGES)
    with pytest.raises(WrongUsage, match="lstm takes texts, but i holds images"):
        recipe_for("lstm", IMAGES)
    with pytest.raises(WrongUsage, match="images of 28 x 28, not 8 x 8"):
        recipe_for("conv", TINY).build(TINY)


def test_samples_as_networks_take_them():
    images, labels = tensors_of(TINY, np.array([2, 1]))
    assert (images.shape, images.dtype) == ((2, 1, 8, 8), torch.float32)
    assert images.unique().tolist() == [0.5]
    assert labels.tolist() == [0, 1]
    words, _ = tensors_of(TEXTS, np.array([0]))
    assert (words.shape, words.dtype) == ((1, 100), torch.int64)
